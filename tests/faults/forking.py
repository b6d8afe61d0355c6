"""Forked processes that start with everything imported, so that a run in a subprocess takes a fraction of a second.

The parent must have one thread, so it never computes with torch itself.
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

import torch._dynamo  # noqa: F401 - otherwise the first optimiser of each process imports it, which takes seconds

from fredholm._progress import set_lock

LIMIT = 120.0
"""Seconds after which a process counts as hanging."""


class Ended(NamedTuple):
    """Exit code and output of a finished process."""

    code: int
    """Its exit code, or the negative number of the signal that ended it."""
    out: str
    err: str


def forked(call: Callable[[], int], log: Path, *, kill_after: float | None = None) -> Ended:
    """Calls a function in a forked process, the leader of a new process group.

    Args:
        call: returns the exit code; an exception becomes a traceback on stderr, as in any program.
        log: folder for the output of the process.
        kill_after: seconds after which the process and all that it started are killed.

    Raises:
        TimeoutError: the process hangs.
    """
    out, err = log / "out", log / "err"
    for path in (out, err):
        path.write_bytes(b"")  # the process may be killed before it opens them
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
        os.killpg(pid, signal.SIGKILL)  # workers that have not yet noticed that it ended
    return Ended(code, out.read_text(errors="replace"), err.read_text(errors="replace"))


def _become(call: Callable[[], int], out: Path, err: Path) -> None:
    """Runs the call in this process as a program would, and exits."""
    code = 70
    try:
        os.setsid()
        set_lock(threading.RLock())  # a process killed while printing would never release a shared lock
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
