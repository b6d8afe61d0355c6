"""Stopping between two steps when the user or the system asks for it."""

import contextlib
import os
import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import final


@final
class InterruptedRunError(Exception):
    """A run stopped on a signal after saving its state.

    Args:
        signal_number: SIGINT or SIGTERM.
        message: one line that says where the state is.
    """

    def __init__(self, signal_number: int, message: str) -> None:
        super().__init__(message)
        self.signal_number = signal_number


@final
class Interruption:
    """While entered, the first SIGINT or SIGTERM only sets ``signal_number``, and says so; a second one acts as usual.

    So a step is never cut in half. A signal that the process was started to ignore stays ignored. Outside the main
    thread, where Python takes no signals, it does nothing.
    """

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._previous: dict[int, object] = {}

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) != signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal_number = number
        self._restore()
        again = " (Ctrl-C again stops at once, without saving)" if number == signal.SIGINT else ""
        with contextlib.suppress(OSError, ValueError):
            below = "\n" if sys.stderr.isatty() else ""  # a progress bar
            # not by print: the signal may have come in the midst of one
            os.write(sys.stderr.fileno(), f"{below}stopping after this step ...{again}\n".encode())

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]
        self._previous.clear()
