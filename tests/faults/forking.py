"""Processes forked after all imports, so that a run in a separate process starts in a fraction of a second.

The parent must have a single thread, so it never computes with torch itself.
"""

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch._dynamo  # noqa: F401 - otherwise the first optimiser of each process imports it, for seconds

from fredholm._progress import set_lock

LIMIT = 120.0
"""Seconds after which a process counts as hanging."""


class Ended(NamedTuple):
    """How a process ended: its exit code and output."""

    code: int
    """The exit code, or minus the number of the signal that ended the process."""
    out: str
    err: str


def forked(call: Callable[[], int], log: Path, *, kill_after: float | None = None) -> Ended:
    """Makes a call in a forked process, which leads its own process group.

    Args:
        call: returns the exit code; an exception becomes a traceback on stderr, as in any program.
        log: a folder for its output.
        kill_after: seconds after which the process and its children are killed.

    Raises:
        TimeoutError: The process hangs.
    """
    out, err = log / "out", log / "err"
    for path in (out, err):
        path.write_bytes(b"")  # it may be killed before it has opened them
    pid = os.fork()
    if pid == 0:
        _become(call, out, err)
    code, start = None, time.monotonic()
    while code is None:
        if kill_after is not None and time.monotonic() - start >= kill_after:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            kill_after = None
        done, status = os.waitpid(pid, os.WNOHANG)
        code = os.waitstatus_to_exitcode(status) if done else None
        if time.monotonic() - start > LIMIT:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise TimeoutError(f"a process hung for {LIMIT:.0f} s")
        time.sleep(0 if done else 0.002)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # workers that have not noticed its end yet
    return Ended(code, out.read_text(errors="replace"), err.read_text(errors="replace"))


def _become(call: Callable[[], int], out: Path, err: Path) -> None:
    """Turns this process into a program that makes the call and ends."""
    code = 70
    try:
        os.setsid()
        set_lock(threading.RLock())  # a process killed while printing would keep the shared lock
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        for path, stream in ((out, sys.stdout), (err, sys.stderr)):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(descriptor, stream.fileno())
            os.close(descriptor)
        code = call()
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
