"""The task of a run with settings of its own, for a command that does not train."""

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args, get_origin, get_type_hints

from fredholm.cli.option_names import with_option_names
from fredholm.cli.parsing import parse
from fredholm.tasks.task import Task
from fredholm.training.run import Run

_SEVERAL = re.compile(r"((?:[A-Z]+ )+[A-Z]+); got ([^;]*)")
"""What the parser says of several values, which are typed with commas here."""


@dataclass(frozen=True, kw_only=True)
class _Changed:
    """The task with its settings."""

    task: Task.Config


def changed_task(run: Run, settings: Sequence[str], command: str) -> Task:
    """The run's task with other settings, each NAME=VALUE (a switch has no value), and the same facts.

    Raises:
        ValueError: a setting that the task does not have or take, or that chooses other data to learn from.
    """
    words: list[str] = []
    for setting in settings:
        name, equals, value = setting.partition("=")
        values = value.split(",") if _holds_several(run.config.task, name) else [value]
        words += [f"--task.{name.replace('_', '-')}", *(values if equals else [])]
    default = _Changed(task=run.config.task)
    try:
        config = parse(_Changed, command, words, default).task
        config.check_not_divided_anew(run.config.task)
        return config.build(run.task.facts)
    except ValueError as error:
        told = with_option_names(str(error), default, is_pair=True)
        told = _SEVERAL.sub(lambda found: f"{found[1].replace(' ', ',')}; got {found[2].replace(' ', ',')}", told)
        raise ValueError(told.replace("--task.", "--task ")) from error  # which the parser was given


def _holds_several(config: Task.Config, name: str) -> bool:
    """Whether the setting of that name, such as augmentation.scale, may be a tuple; commas in others are their own."""
    *parts, last = name.replace("-", "_").split(".")
    owner = functools.reduce(lambda owner, part: getattr(owner, part, None), parts, config)
    kind = get_type_hints(type(owner)).get(last)
    return tuple in (get_origin(kind), *map(get_origin, get_args(kind)))
