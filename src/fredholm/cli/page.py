"""Writing the report page of a run at the end of a command, if possible."""

import os
from collections.abc import Sequence
from pathlib import Path

from fredholm.cli.error_reporting import error_line
from fredholm.report import missing_extra, write_page
from fredholm.tasks.task import Task
from fredholm.training.interruption import InterruptedRunError, signal_number
from fredholm.training.progress import print_line

SWITCH = "FREDHOLM_REPORT"
"""Environment variable; `off` keeps commands from writing pages."""


def leave_page(folder: Path, tasks: Sequence[type[Task]], device: str) -> None:
    """Writes the page of a run into its folder, and prints its path or the reason why there is none.

    Never fails: the run is complete already.

    Raises:
        InterruptedRunError: on a signal; the message says how to write the page later.
    """
    if os.environ.get(SWITCH) == "off":
        return
    if (reason := missing_extra()) is not None:
        print_line(f"no page of the run: {reason}, or pass --no-report")
        return
    try:
        print_line(f"page: {write_page(folder, tasks=tasks, device=device)}")
    except KeyboardInterrupt as error:
        message = f"interrupted while writing the page; all else is done, and fredholm report {folder} writes it"
        raise InterruptedRunError(signal_number(error), message) from None
    except Exception as error:
        what = error_line(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        print_line(f"no page of the run: {what}; fredholm report {folder} tries again")
