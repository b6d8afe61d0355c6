"""Error reporting in one line on stderr, with exit codes that distinguish invalid input from failures."""

import contextlib
import errno
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch

from fredholm.cli.streams import FAILURE, USER_ERROR, discard, say
from fredholm.distributed.processes import LostProcessError, current, leave, must_report, record
from fredholm.tasks.files.terminal_text import one_line
from fredholm.training.batches import LostWorkerError
from fredholm.training.interruption import STOPPING, InterruptedRunError, signal_number
from fredholm.training.memory import lacking_memory
from fredholm.training.trainer import DivergedError

_WRONG_PATH = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, FileExistsError)
_NO_PATH = (errno.ENAMETOOLONG, errno.ELOOP)

_WANTED = re.compile(r"(?:ried|nable) to allocate ([\d.]+) (\w+)")


def exit_code(run: Callable[[], int], *, ends_process: bool = False) -> int:
    """Returns the result of `run`, or the exit code of its error, which is reported.

    With FREDHOLM_TRACEBACK in the environment, errors that have an exit code are raised instead.

    Args:
        run: carries out the command.
        ends_process: whether the process ends with this code; Ctrl-C then only ends it sooner, without a message.
    """
    with warnings.catch_warnings():
        warnings.showwarning = _shows_once()
        try:
            with _interruptible(ends_process):
                return _flushed(_code_of(run))
        except KeyboardInterrupt as error:
            _say_once("interrupted")
            return 128 + signal_number(error)
        except InterruptedRunError as error:
            _say_once(one_line(str(error)))
            if current().size > 1:  # torchrun signals the other processes again when the first ends
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                leave()
            return 128 + error.signal_number


def _code_of(run: Callable[[], int]) -> int:
    try:
        return run()
    except InterruptedRunError:
        raise
    except BrokenPipeError:
        discard(sys.stdout)
        return FAILURE
    except (DivergedError, LostProcessError, LostWorkerError, MemoryError, torch.OutOfMemoryError) as error:
        return _report(error, FAILURE)
    except OSError as error:
        return _report(error, USER_ERROR if isinstance(error, _WRONG_PATH) or error.errno in _NO_PATH else FAILURE)
    except (ValueError, TypeError, ImportError) as error:
        return _report(error, USER_ERROR)
    except Exception as error:
        # the clean-up after an out-of-memory error may have failed in turn
        lacking = lacking_memory(error)
        if lacking is None:
            return _report(error, FAILURE, is_ours=True)
        return _report(lacking, FAILURE)


def _report(error: BaseException, code: int, *, is_ours: bool = False) -> int:
    """Reports an error, on one of several processes; unexpected errors are raised with their traceback."""
    if not must_report(error):
        return code
    record(error)
    me = current()
    where = "" if me.is_first else f"{me.name}: "
    if is_ours or os.environ.get("FREDHOLM_TRACEBACK"):
        if me.size > 1:
            error.add_note(f"on {me.name}")
        raise error
    say(f"error: {where}{error_line(error)}")
    return code


def error_line(error: BaseException) -> str:
    """Returns the message of an error in one line (`one_line`)."""
    if lacking_memory(error) is error:
        wanted = _WANTED.search(str(error))
        size = f", {float(wanted[1]):,.0f} {wanted[2]} more were asked for" if wanted else ""
        line = f"out of memory{size}; smaller batches, inputs or models need less"
    elif isinstance(error, OSError) and error.strerror:
        line = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    else:
        line = str(error) or type(error).__name__
    return one_line(line)


@contextlib.contextmanager
def _interruptible(ends_process: bool) -> Iterator[None]:
    """Makes the first signal of `STOPPING` an error like others while entered, so that incomplete files are removed.

    A second one ends the process without a message. Several processes leave all signals but Ctrl-C to torchrun.
    """
    in_main = threading.current_thread() is threading.main_thread()  # Python handles signals only there
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise KeyboardInterrupt(number)

    is_alone = "WORLD_SIZE" not in os.environ
    others = [number for number in STOPPING if is_alone and signal.getsignal(number) is signal.SIG_DFL]
    unraisable = sys.unraisablehook

    def end_if_interrupted(error: Any) -> None:
        # Python prints what is raised in a destructor, and goes on.
        if not issubclass(error.exc_type, KeyboardInterrupt) and not _is_late_signal(error):
            unraisable(error)
            return
        say("interrupted")
        os._exit(128 + signal_number(error.exc_value))

    for number in (signal.SIGINT, *others):
        signal.signal(number, interrupt)
    sys.unraisablehook = end_if_interrupted
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if ends_process else signal.default_int_handler)
        for number in others:
            signal.signal(number, signal.SIG_DFL)
        sys.unraisablehook = unraisable


def _is_late_signal(error: Any) -> bool:
    """Whether Python reports a signal that arrived just before its handler was removed, and continues."""
    value = error.exc_value
    return type(value) is OSError and value.errno is None and error.object is None


def _flushed(code: int) -> int:
    """Flushes the output and returns the code, or another code where that fails."""
    try:
        sys.stdout.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            say(f"error: {error_line(error)}")
        discard(sys.stdout)
        return code or FAILURE
    return code


def _say_once(line: str) -> None:
    """Prints a line on stderr that all of several processes would print, once."""
    if current().is_first:
        say(line)


def _shows_once() -> Callable[..., None]:
    """Returns a function that prints each warning once, as a line: Python forgets earlier ones when filters change."""
    shown = set[str]()

    def show(message: Warning | str, *where: object, **more: object) -> None:
        line = f"warning: {one_line(str(message))}"
        if line not in shown:
            shown.add(line)
            _say_once(line)

    return show
