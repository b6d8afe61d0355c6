"""`fredholm report`: writes a page about a run, several side by side, or a comparison."""

import time
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fredholm.cli.parsing import Flag, parse
from fredholm.report import write_page
from fredholm.tasks import TASKS
from fredholm.tasks.outputs import refuse_absent_parent
from fredholm.training.device import choose_device
from fredholm.training.recipes import open_recipe


@dataclass(frozen=True, kw_only=True)
class ReportArguments:
    """Show runs on a page: a single file that opens without a network connection."""

    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN...")]
    """The run folders, several of which are shown side by side; or the folder of a comparison."""
    output: Path | None = None
    """The page. Default: report.html in the run folder, for several runs in the current folder.
    An existing page is replaced.
    """
    open: Flag = False
    """Open it in the web browser."""
    recipe: str | None = None
    """FILE.py:FUNCTION, where the runs' task is not one of the library but of that file."""
    device: str = "auto"
    """Device: auto, cpu, cuda, ..."""


def run_command(argv: list[str]) -> None:
    """Runs `fredholm report` with these arguments."""
    arguments = parse(ReportArguments, "report", argv)
    if not arguments.runs:
        raise ValueError("no run is given; expected a run folder or several")
    choose_device(arguments.device)
    if arguments.output is not None:
        refuse_absent_parent("--output", arguments.output)
    started, (first, *others) = time.monotonic(), arguments.runs
    path = write_page(
        first,
        further=others,
        to=arguments.output or (Path("report.html") if others else None),
        tasks=open_recipe(arguments.recipe).tasks if arguments.recipe is not None else TASKS,
        device=arguments.device,
    )
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB, {time.monotonic() - started:.1f} s")
    if arguments.open and not webbrowser.open(path.absolute().as_uri()):
        raise ValueError(f"no web browser could be started; open {path} in one")
