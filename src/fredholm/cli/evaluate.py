"""`fredholm evaluate`: measures a trained model on its test split."""

import warnings
from dataclasses import dataclass
from pathlib import Path

from fredholm.cli.changed_task import changed_task, naming_absent_data
from fredholm.cli.json_text import json_text
from fredholm.cli.open_run import RunPlace, open_run
from fredholm.cli.parsing import Flag, parse
from fredholm.report import write_page
from fredholm.storage.hub import hub_name
from fredholm.tasks import TASKS
from fredholm.tasks.files.read_record import recording_reads
from fredholm.tasks.files.terminal_text import counted
from fredholm.tasks.objective import Objective
from fredholm.tasks.splits.splits import HeldOut
from fredholm.training.recipes import open_recipe
from fredholm.training.run import Run
from fredholm.training.storage.checkpoint import Which
from fredholm.training.trainer import measured_split, which_weights


@dataclass(frozen=True, kw_only=True)
class EvaluateArguments:
    """Measure a trained model on held-out data."""

    run: RunPlace
    """The run folder, or hf://OWNER/NAME, a model on the Hugging Face hub."""
    split: HeldOut | None = None
    """The split to measure on; default: test, or valid where there is no test split."""
    checkpoint: Which = "best"
    """The checkpoint that was best on the validation split, or the last one."""
    device: str = "auto"
    """Device: auto, cpu, cuda, ..."""
    recipe: str | None = None
    """FILE.py:FUNCTION, where the run's task is not one of the library but of that file."""
    task: tuple[str, ...] = ()
    """Settings of the task to measure with, such as test-every=2 or image-size=64,64 (a switch has no value).
    Others are those of the run.
    """
    json: Flag = False
    """Print one JSON object."""
    report: Flag = False
    """Also write report.html, a page about the run with its own settings, into the run folder."""


def run_command(argv: list[str]) -> None:
    """Runs `fredholm evaluate` with these arguments."""
    arguments = parse(EvaluateArguments, "evaluate", argv)
    if arguments.report and arguments.task:
        raise ValueError("--report has no effect with --task: a page is of the run as it is; pass one of them")
    if arguments.report and hub_name(arguments.run) is not None:
        raise ValueError(f"--report has no folder to write into with {arguments.run}; leave it out")
    run = open_run(arguments.run, arguments.recipe, arguments.device)
    if arguments.task:
        run.task = changed_task(run, arguments.task, "evaluate", measures=True)
    with recording_reads() as read:
        with naming_absent_data(run, arguments.task):
            split = arguments.split or measured_split(run.task) or "test"
            count = run.task.num_held_out(split)
        step, metrics = run.step(arguments.checkpoint), run.evaluate(split, arguments.checkpoint)
    if not arguments.task and (difference := run.data_difference(read)):
        warnings.warn(difference, stacklevel=2)
    if arguments.json:
        print(json_text({"run": arguments.run, "split": split, "step": step, "examples": count, **metrics}))
    else:
        _print(run, split, metrics, step, count)
    if arguments.report:
        tasks = open_recipe(arguments.recipe).tasks if arguments.recipe is not None else TASKS
        path = write_page(Path(arguments.run), tasks=tasks, device=arguments.device)
        if not arguments.json:
            print(f"page: {path}")


def _print(run: Run, split: str, metrics: dict[str, float], step: int, count: int) -> None:
    """Prints the metrics of a split, the objective first."""
    objective, needs = run.task.objective, {each.metric: each.needs for each in run.task.measures}
    print(f"{split} {objective.metric}: {objective.format(metrics.pop(objective.metric))}")
    for name, value in metrics.items():
        print(f"{split} {name}: {Objective(name, needs=needs.get(name, '')).format(value)}")
    print(f"{counted(count, 'example')}, {which_weights(run.task, step)}")
