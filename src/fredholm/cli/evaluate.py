"""`fredholm evaluate`: a trained model on its test split."""

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args, get_origin, get_type_hints

import tyro

from fredholm.cli.command import Command
from fredholm.cli.open_run import open_run
from fredholm.cli.parsing import Flag, parse
from fredholm.tasks.task import Task
from fredholm.training.checkpoint import Which
from fredholm.training.run import Run


@dataclass(frozen=True, kw_only=True)
class EvaluateArguments:
    """Measure a trained model on its test split."""

    run: tyro.conf.Positional[Path]
    """The run folder."""
    checkpoint: Which = "last"
    """The last checkpoint, or the one that was best on the test split (which flatters it)."""
    device: str = "auto"
    """Where to compute: auto, cpu, cuda, ..."""
    recipe: str | None = None
    """FILE.py:FUNCTION, where the run's task is not the library's but that file's."""
    task: tuple[str, ...] = ()
    """Settings of the task to measure with, such as test-every=2 or image-size=64,64 (a switch has no value); the
    others are the run's."""
    json: Flag = False
    """Print one JSON object."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The task as it is measured with."""

    task: Task.Config


def _evaluate(argv: list[str]) -> None:
    arguments = parse(EvaluateArguments, "evaluate", argv)
    run = open_run(arguments.run, arguments.recipe, arguments.device)
    if arguments.task:
        run.task = _changed(run, arguments.task)
    step, metrics = run.step(arguments.checkpoint), run.evaluate(arguments.checkpoint)
    if arguments.json:
        print(json.dumps({"run": str(arguments.run), "step": step, "examples": run.task.num_test, **metrics}))
        return
    objective = run.task.objective
    print(f"test {objective.metric}: {objective.format(metrics.pop(objective.metric))}")
    for name, value in metrics.items():
        print(f"test {name}: {value:.4f}")
    print(f"{run.task.num_test} examples, averaged weights of step {step}")


def _changed(run: Run, settings: Sequence[str]) -> Task:
    """The run's task with other settings and the same facts."""
    words: list[str] = []
    for setting in settings:
        name, equals, value = setting.partition("=")
        values = value.split(",") if _holds_several(run.config.task, name) else [value]
        words += [f"--task.{name.replace('_', '-')}", *(values if equals else [])]
    return parse(Measured, "evaluate", words, Measured(task=run.config.task)).task.build(run.task.facts)


def _holds_several(config: Task.Config, name: str) -> bool:
    """Whether the setting of that name, such as augmentation.scale, may be a tuple; commas in others are their own."""
    *parts, last = name.replace("-", "_").split(".")
    owner = functools.reduce(lambda owner, part: getattr(owner, part, None), parts, config)
    kind = get_type_hints(type(owner)).get(last)
    return tuple in (get_origin(kind), *map(get_origin, get_args(kind)))


EVALUATE = Command(
    name="evaluate",
    operands="RUN",
    summary="measure a trained model on its test split",
    run=_evaluate,
)
