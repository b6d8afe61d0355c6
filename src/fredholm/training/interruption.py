"""Stopping between two steps on a signal from the user or the system."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, final


@final
class InterruptedRunError(Exception):
    """A run stopped on a signal after saving its state.

    Args:
        signal_number: SIGINT, SIGTERM or SIGHUP.
        message: one line that says where the state is.
    """

    def __init__(self, signal_number: int, message: str) -> None:
        super().__init__(message)
        self.signal_number = signal_number


STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that stop a run: Ctrl-C, a request of the system, a closed terminal."""


def signal_number(error: BaseException | None) -> int:
    """Returns the signal that a KeyboardInterrupt was raised for; SIGINT if it has none."""
    given = error.args[0] if isinstance(error, KeyboardInterrupt) and error.args else None
    return given if isinstance(given, int) else signal.SIGINT


@final
class Interruption:
    """A context in which the first of the signals `STOPPING` only sets ``signal_number`` and prints that the run stops.

    So a step is never cut in half. A second SIGINT acts as usual. A second SIGTERM or SIGHUP does nothing more, since
    systems send them twice, to a process and to its group. A signal that was ignored at the start stays ignored.
    Outside the main thread, which alone receives signals in Python, it does nothing.

    Args:
        is_alone: whether this is the run's only process. torchrun forwards its signals to all of several processes,
            which then print nothing and ignore a second SIGINT.
    """

    def __init__(self, *, is_alone: bool = True) -> None:
        self._is_alone = is_alone
        self.signal_number: int | None = None
        self._is_answering = self._is_asked_again = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():
            for number in STOPPING:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in list(self._previous):
            self._restore(number)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self._is_alone:
            self.signal_number = self.signal_number or number
        elif self.signal_number is None:
            self.signal_number, self._is_answering = number, True
            again = " (Ctrl-C again stops at once, without saving)" if number == signal.SIGINT else ""
            # not by print, which the signal may have interrupted
            with contextlib.suppress(OSError, ValueError, AttributeError):  # a closed stream, a notebook's, or None
                below = "\n" if sys.stderr.isatty() else ""  # below a progress bar
                os.write(sys.stderr.fileno(), f"{below}stopping after this step ...{again}\n".encode())
            self._restore(signal.SIGINT)
            self._is_answering = False
            if self._is_asked_again:
                signal.raise_signal(signal.SIGINT)
        elif number == signal.SIGINT and self._is_answering:
            self._is_asked_again = True  # after the message is printed, so that no run ends without it
        elif number == signal.SIGINT:
            signal.raise_signal(number)  # it arrived before the first signal, whose handler ran within this one

    def _restore(self, number: int) -> None:
        if number in self._previous:
            signal.signal(number, self._previous.pop(number))


@contextlib.contextmanager
def without_signals() -> Iterator[None]:
    """Blocks the signals `STOPPING` in this thread while entered; processes that it starts never receive them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
