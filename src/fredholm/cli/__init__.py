"""The command line: one command a file, and the table of them in `dispatch`."""

import os
import signal
import threading
from collections.abc import Sequence
from types import FrameType

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Calls `dispatch.main`. Ctrl-C gives a short message even while torch is imported, which takes seconds."""
    before = signal.getsignal(signal.SIGINT)
    is_answered = before is signal.default_int_handler and threading.current_thread() is threading.main_thread()
    if is_answered:
        signal.signal(signal.SIGINT, _end)
    try:
        from fredholm.cli import dispatch
    finally:
        if is_answered:
            signal.signal(signal.SIGINT, before)
    return dispatch.main(argv)


def _end(number: int, frame: FrameType | None) -> None:
    # an error raised during an import may be taken for an import error
    os.write(2, b"interrupted\n")
    os._exit(128 + number)
