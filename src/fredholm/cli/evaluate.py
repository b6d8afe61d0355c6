"""`fredholm evaluate`: a trained model on its test split."""

import json
from dataclasses import dataclass
from pathlib import Path

import tyro

from fredholm.cli.changed_task import changed_task
from fredholm.cli.command import Command
from fredholm.cli.open_run import open_run
from fredholm.cli.parsing import Flag, parse
from fredholm.training.checkpoint import Which


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


def _evaluate(argv: list[str]) -> None:
    arguments = parse(EvaluateArguments, "evaluate", argv)
    run = open_run(arguments.run, arguments.recipe, arguments.device)
    if arguments.task:
        run.task = changed_task(run, arguments.task, "evaluate")
    step, metrics = run.step(arguments.checkpoint), run.evaluate(arguments.checkpoint)
    if arguments.json:
        print(json.dumps({"run": str(arguments.run), "step": step, "examples": run.task.num_test, **metrics}))
        return
    objective = run.task.objective
    print(f"{run.task.measured} {objective.metric}: {objective.format(metrics.pop(objective.metric))}")
    for name, value in metrics.items():
        print(f"{run.task.measured} {name}: {value:.4f}")
    print(f"{run.task.num_test} examples, averaged weights of step {step}")


EVALUATE = Command(
    name="evaluate",
    operands="RUN",
    summary="measure a trained model on its test split",
    run=_evaluate,
)
