"""Progress bars on stderr and lines between them."""

import contextlib
import sys
from collections.abc import Iterator
from contextvars import ContextVar

from fredholm._progress import ProgressBar
from fredholm.tasks.files.terminal_text import visible

_is_muted: ContextVar[bool] = ContextVar("is_muted", default=False)


@contextlib.contextmanager
def muted() -> Iterator[None]:
    """While entered, neither bars nor lines are shown."""
    token = _is_muted.set(True)
    try:
        yield
    finally:
        _is_muted.reset(token)


def progress_bar(description: str, total: int | None, *, unit: str, initial: int = 0) -> "ProgressBar":
    """A bar to ``update()``; it draws nothing when stderr is not a terminal, or while `muted`."""
    quiet = _is_muted.get() or sys.stderr is None or not sys.stderr.isatty()
    return ProgressBar(
        desc=description, total=total, initial=initial, unit=unit, disable=quiet, leave=False, dynamic_ncols=True
    )


def counted(count: int, what: str) -> str:
    """So many of something: 1 epoch, 1,440 steps."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def print_line(line: str) -> None:
    """A line on stdout that leaves the bars below it whole; nothing while `muted`.

    A run outlives whoever reads its lines: where stdout is closed, a pipe that nobody reads or a full disk, the line is
    lost and nothing else. What a terminal would act on is escaped (`visible`).
    """
    if _is_muted.get() or sys.stdout is None:
        return
    with contextlib.suppress(OSError, ValueError):  # the latter of a closed file
        ProgressBar.write(visible(line), file=sys.stdout)
        sys.stdout.flush()


def print_row(line: str) -> None:
    """A row of data on stdout: escaped on a terminal but for tabs, and unaltered for other programs.

    Raises:
        OSError: it cannot be written; rows are not lost in silence.
    """
    ProgressBar.write(visible(line, keep="\t") if sys.stdout.isatty() else line, file=sys.stdout)
    sys.stdout.flush()
