"""`fredholm predict`: a trained model applied to files."""

import json
from dataclasses import dataclass
from pathlib import Path

import tyro

from fredholm.cli.changed_task import changed_task
from fredholm.cli.command import Command
from fredholm.cli.open_run import open_run
from fredholm.cli.parsing import Flag, parse
from fredholm.training.checkpoint import Which
from fredholm.training.progress import print_line, progress_bar


@dataclass(frozen=True, kw_only=True)
class PredictArguments:
    """Apply a trained model to files. Prints a line a result (file, class and probability, say), separated by tabs."""

    run: tyro.conf.Positional[Path]
    """The run folder."""
    files: tyro.conf.Positional[tuple[Path, ...]]
    """The files."""
    checkpoint: Which = "best"
    """The checkpoint that was best on the validation split, or the last one."""
    batch_size: int = 64
    """Files at a time."""
    device: str = "auto"
    """Where to compute: auto, cpu, cuda, ..."""
    recipe: str | None = None
    """FILE.py:FUNCTION, where the run's task is not the library's but that file's."""
    task: tuple[str, ...] = ()
    """Settings of the task to predict with, such as answer.grid=64,64 (a switch has no value); the others are the
    run's."""
    json: Flag = False
    """Print a JSON list, one object a result."""


def _predict(argv: list[str]) -> None:
    arguments = parse(PredictArguments, "predict", argv)
    if not arguments.files:
        raise ValueError("fredholm predict needs at least one file after the run folder; see fredholm predict --help")
    if arguments.batch_size < 1:
        raise ValueError(f"batch_size is {arguments.batch_size}; expected at least 1")
    run = open_run(arguments.run, arguments.recipe, arguments.device)
    if arguments.task:
        run.task = changed_task(run, arguments.task, "predict")
    model, files, size = run.model(arguments.checkpoint), arguments.files, arguments.batch_size
    rows: list[dict[str, str | float]] = []
    with progress_bar("predict", len(files), unit="file") as bar:
        for start in range(0, len(files), size):
            batch = files[start : start + size]
            part = run.task.predict(model, batch, run.device)
            bar.update(len(batch))
            rows += part
            if not arguments.json:
                for row in part:
                    cells = (f"{value:.4f}" if isinstance(value, float) else str(value) for value in row.values())
                    print_line("\t".join(cells))
    if arguments.json:
        print(json.dumps(rows, indent=2))


PREDICT = Command(
    name="predict",
    operands="RUN FILES...",
    summary="apply a trained model to files",
    run=_predict,
)
