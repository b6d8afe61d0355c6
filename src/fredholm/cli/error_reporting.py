"""How a command ends: errors and warnings are one line on stderr, and an exit code says whose mistake it was."""

import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch

from fredholm.training.interruption import InterruptedRunError
from fredholm.training.trainer import DivergedError

USER_ERROR, FAILURE, INTERRUPTED = 2, 1, 130


def exit_code(run: Callable[[], int]) -> int:
    """What `run` returns, or the code of its error, which is reported.

    With FREDHOLM_TRACEBACK in the environment errors that have a code are raised.
    """
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            return run()
    except InterruptedRunError as error:
        print(error, file=sys.stderr)
        return 128 + error.signal_number
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone; without this Python complains once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except (DivergedError, torch.OutOfMemoryError) as error:
        return _report(error, FAILURE)
    except OSError as error:
        return _report(error, USER_ERROR if isinstance(error, FileNotFoundError | PermissionError) else FAILURE)
    except (ValueError, TypeError, ImportError) as error:
        return _report(error, USER_ERROR)


def _report(error: BaseException, code: int) -> int:
    if os.environ.get("FREDHOLM_TRACEBACK"):
        raise error
    print(f"error: {error_line(error)}", file=sys.stderr)
    return code


def error_line(error: BaseException) -> str:
    """What is said of an error, in one line."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split()) or type(error).__name__


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: Any = None,
    line: str | None = None,
) -> None:
    print(f"warning: {' '.join(str(message).split())}", file=sys.stderr)
