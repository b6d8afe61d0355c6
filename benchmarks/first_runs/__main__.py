"""The command ``python -m benchmarks.first_runs [NAMES] [options]``."""

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from benchmarks.first_runs import (
    FirstRun,
    forecasts,
    functions,
    graphs,
    image_text,
    images,
    masked,
    measure,
    points,
    segmentation,
    sentences,
    series,
    table,
    tables,
    texts,
    words,
)
from benchmarks.first_runs.first_run import write_json
from fredholm.tasks.splits.splits import HeldOut

FIRST_RUNS: tuple[FirstRun, ...] = (
    *texts.FIRST_RUNS,
    *sentences.FIRST_RUNS,
    *words.FIRST_RUNS,
    *tables.FIRST_RUNS,
    *masked.FIRST_RUNS,
    *points.FIRST_RUNS,
    *segmentation.FIRST_RUNS,
    *image_text.FIRST_RUNS,
    *images.FIRST_RUNS,
    *series.FIRST_RUNS,
    *forecasts.FIRST_RUNS,
    *graphs.FIRST_RUNS,
    *functions.FIRST_RUNS,
)
"""All first runs, in the order of the list."""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Runs to measure, and their data."""

    names: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Names of the runs; none: all."""
    seed: int = 0
    """Seed of the data; the runs themselves have the command's seed, 0."""
    split: HeldOut = "test"
    """Split to measure on: valid while rules are being chosen, test afterwards."""
    folder: Path | None = None
    """Folder that keeps data and runs, one subfolder per run; default: they are deleted."""
    json: Path | None = None
    """JSON file for the rows, besides the printed table."""
    list: tyro.conf.FlagCreatePairsOff[bool] = False
    """List the runs and exit."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the chosen first runs and prints their table.

    Returns:
        0; 2 on an unknown name.
    """
    arguments = tyro.cli(Arguments, prog="python -m benchmarks.first_runs", args=argv)
    by_name = {first.name: first for first in FIRST_RUNS}
    if arguments.list:
        print("\n".join(f"{first.name:<22} {first.task:<14} {first.data}" for first in FIRST_RUNS))
        return 0
    if unknown := [name for name in arguments.names if name not in by_name]:
        print(f"error: no first run {unknown[0]!r}; expected some of {', '.join(by_name)}", file=sys.stderr)
        return 2
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in arguments.names or by_name:
            folder = (arguments.folder or Path(scratch)) / name
            rows.append(measure(by_name[name], folder, arguments.seed, arguments.split))
            print(table(rows[-1:]).splitlines()[-1], flush=True)
            if arguments.json is not None:
                write_json(arguments.json, rows)
    print(f"\n{table(rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
