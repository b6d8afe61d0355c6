"""The page of a run that a command leaves behind, as far as one can be drawn."""

import os
from collections.abc import Sequence
from pathlib import Path

from fredholm.report import missing_extra, write_page
from fredholm.tasks.task import Task
from fredholm.training.progress import print_line

SWITCH = "FREDHOLM_REPORT"
"""The variable of the environment that says `off` where commands are to leave no pages."""


def leave_page(folder: Path, tasks: Sequence[type[Task]], device: str) -> None:
    """Writes the page of a run into its folder, and prints in one line where it is, or why there is none.

    Whatever goes wrong: the run is whole, and stays so.
    """
    if os.environ.get(SWITCH) == "off":
        return
    if (reason := missing_extra()) is not None:
        print_line(f"no page of the run: {reason}, or pass --no-report")
        return
    try:
        print_line(f"page: {write_page(folder, tasks=tasks, device=device)}")
    except Exception as error:
        print_line(f"no page of the run: {type(error).__name__}: {error}")
