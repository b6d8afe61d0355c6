"""Changed task settings of a run, for commands that do not train."""

import contextlib
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, fields

from fredholm.cli.option_names import with_option_names
from fredholm.cli.parsing import is_switch, parse, takes_several, typed_settings
from fredholm.tasks.files.data_files import is_there
from fredholm.tasks.task import Task
from fredholm.training.run import Run

_SEVERAL = re.compile(r"((?:[A-Z]+ )+[A-Z]+); got ([^;]*)")
"""Pattern of the parser's message about a tuple; here the values of a tuple are typed with commas."""


@dataclass(frozen=True, kw_only=True)
class _Changed:
    """A task with its settings, as an argument of the parser."""

    task: Task.Config


def changed_task(run: Run, settings: Sequence[str], command: str, *, measures: bool) -> Task:
    """Returns the run's task with changed settings, each NAME=VALUE (a switch has no value), and the same facts.

    Args:
        run: run of the task.
        settings: settings as typed.
        command: name of the command, for messages.
        measures: whether the command measures splits, which must then equal the run's.

    Raises:
        ValueError: a setting is unknown to the task, would change the training data or the model, or has no effect.
    """
    words: list[str] = []
    for setting in settings:
        name, equals, value = setting.partition("=")
        if equals and is_switch(run.config.task, name):
            owner, dot, last = name.rpartition(".")
            off = f"{owner}{dot}no-{last}"
            raise ValueError(f"--task {setting}: a switch takes no value; write --task {name} or --task {off}")
        values = value.split(",") if takes_several(run.config.task, name) else [value]
        words += [f"--task.{name.replace('_', '-')}", *(values if equals else [])]
    default = _Changed(task=run.config.task)
    try:
        config = parse(_Changed, command, words, default).task
        if measures:
            config.check_same_split(run.config.task)
        task = config.build(run.task.facts)
    except ValueError as error:
        message = pair_names(str(error), run)
        message = _SEVERAL.sub(lambda found: f"{found[1].replace(' ', ',')}; got {found[2].replace(' ', ',')}", message)
        raise ValueError(message) from error
    _check_effect(run, config, settings, measures=measures)
    return task


@contextlib.contextmanager
def naming_absent_data(run: Run, settings: Sequence[str]) -> Iterator[None]:
    """A context in which errors about missing data of the run explain how to give the new path.

    Args:
        run: run whose data are read.
        settings: its task settings as typed.
    """
    try:
        yield
    except (ValueError, OSError) as error:
        data = run.config.task.data
        if is_there(data) or any(setting.partition("=")[0] == "data" for setting in settings):
            raise
        message = f"there is no {data!r}, the data of this model; say where they lie: --task data=PATH"
        raise ValueError(message) from error


def pair_names(text: str, run: Run) -> str:
    """Returns a message with the task's settings spelt as typed here, `--task NAME=VALUE`."""
    message = with_option_names(text, _Changed(task=run.config.task), is_pair=True)
    return message.replace("--task.", "--task ")  # the parser's spelling


def _check_effect(run: Run, config: Task.Config, settings: Sequence[str], *, measures: bool) -> None:
    """Raises a ValueError for a changed setting that the weights of a run depend on, or that has no effect."""
    then = run.config.task
    changed = [each.name for each in fields(config) if getattr(config, each.name) != getattr(then, each.name)]
    of_weights = {name for name in changed if name in config.weight_settings}
    if of_weights:
        typed = _typed(settings, of_weights)
        raise ValueError(f"--task {typed} makes another model than the one that was trained; leave it out")
    unread = config.unmeasured_settings
    if not measures:
        unread = [name for name in changed if name not in config.prediction_settings]
    if idle := {name for name in changed if name in unread}:
        result = "a measurement" if measures else "predictions"
        raise ValueError(f"--task {_typed(settings, idle)} has no effect on {result}; leave it out")


def _typed(settings: Sequence[str], names: Collection[str]) -> str:
    """Returns those of the settings as typed that change a field of one of these names."""
    return " ".join(each for each in settings if typed_settings([f"--task.{each}"], "task")[0].split(".")[0] in names)
