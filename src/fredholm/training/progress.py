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
    """Hides bars and lines while entered."""
    token = _is_muted.set(True)
    try:
        yield
    finally:
        _is_muted.reset(token)


def progress_bar(description: str, total: int | None, *, unit: str, initial: int = 0) -> "ProgressBar":
    """Returns a bar to ``update()``; it draws nothing when stderr is not a terminal, or while `muted`."""
    quiet = _is_muted.get() or sys.stderr is None or not sys.stderr.isatty()
    return ProgressBar(
        desc=description, total=total, initial=initial, unit=unit, disable=quiet, leave=False, dynamic_ncols=True
    )


def print_line(line: str) -> None:
    """Prints a line on stdout without breaking the bars below it; nothing while `muted`.

    A run outlives the reader of its lines: on a closed stdout, a broken pipe or a full disk only the line is lost.
    Control characters are escaped (`visible`).
    """
    if _is_muted.get() or sys.stdout is None:
        return
    with contextlib.suppress(OSError, ValueError):  # ValueError from a closed file
        ProgressBar.write(visible(line), file=sys.stdout)
        sys.stdout.flush()


def print_row(line: str) -> None:
    """Prints a row of data on stdout: unaltered for other programs, escaped except for tabs on a terminal.

    Raises:
        OSError: the row cannot be written; rows are not lost silently.
    """
    ProgressBar.write(visible(line, keep="\t") if sys.stdout.isatty() else line, file=sys.stdout)
    sys.stdout.flush()
