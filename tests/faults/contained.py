"""Reads bad files in separate processes with limits on memory and time."""

import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import tempfile
import traceback
import unicodedata
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

MEMORY = 2 << 30
"""Bytes that a reader may use beyond those in use before, as docs/reliability.md states for small files."""
SECONDS = 20
"""Processor time of a reader in seconds; `_WALL_SECONDS` limits one that waits."""
_WALL_SECONDS = 120
BATCH = 500
_LONGEST = 500
_ORDERS, _JOINERS = {"Cc", "Cf", "Cs", "Zl", "Zp"}, {"\u200c", "\u200d"}
"""Categories of characters that a terminal may interpret, and those of them that occur in the spelling of words."""
_HELD, _BROKEN = b"+", b"-"


@dataclass(frozen=True)
class Case:
    """A bad source and its reader.

    Args:
        name: identifies the case, so that it can be made again.
        make: writes the source into an empty folder.
        read: reads the source from there to its last byte.
        must_fail: whether reading must end in an error.
    """

    name: str
    make: Callable[[Path], object]
    read: Callable[[Path], object]
    must_fail: bool = False


def broken_cases(count: int, case_of: Callable[[int], Case]) -> Iterator[tuple[int, str]]:
    """The numbers of the cases that did not end as promised, and how each of them ended.

    A case has to be read, or to end in a ValueError or OSError of one printable line of less than 500 characters that
    names a file of the source.
    """
    done = 0
    while done < count:
        end = min(done + BATCH, count)
        scratch = Path(tempfile.mkdtemp(prefix="bad-files-", dir=_fast_folder()))
        try:
            read_from, write_to = os.pipe()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # about forking with threads
                child = os.fork()
            if child == 0:
                os.close(read_from)
                _run(range(done, end), case_of, scratch, write_to)
            os.close(write_to)
            with os.fdopen(read_from, "rb") as found:
                while record := found.read(5):
                    verdict, length = record[:1], struct.unpack("<I", record[1:])[0]
                    ending = found.read(length).decode("utf-8", "replace")
                    if verdict == _BROKEN:
                        yield done, ending
                    done += 1
            status = os.waitpid(child, 0)[1]
        finally:
            _remove(scratch)
        if done < end:
            killer = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
            ending = f"exit code {os.waitstatus_to_exitcode(status)}" if killer is None else signal.Signals(killer).name
            yield done, f"over {SECONDS} s" if killer in (signal.SIGALRM, signal.SIGPROF) else ending
            done += 1


def _fast_folder() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _remove(folder: Path) -> None:
    """Removes a folder, even one so deep that shutil.rmtree exceeds the recursion limit."""
    try:
        shutil.rmtree(folder)
    except (OSError, RecursionError):
        subprocess.run(["rm", "-rf", str(folder)], check=False)


def _run(numbers: Sequence[int], case_of: Callable[[int], Case], scratch: Path, write_to: int) -> None:
    """Runs cases in the child process, and exits it."""
    try:
        import faulthandler

        import torch

        faulthandler.disable()

        torch.set_num_threads(1)  # the parent's threads do not exist in this process
        warnings.simplefilter("ignore")
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        limit = _data_bytes() + MEMORY
        resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))
        for number in numbers:
            folder = scratch / str(number)
            folder.mkdir()
            try:
                found = _judged(case_of(number), folder)
            except Exception as error:
                found = f"the driver itself: {error!r} {traceback.extract_tb(error.__traceback__)[-1]}".encode()
            os.write(write_to, (_BROKEN if found else _HELD) + struct.pack("<I", len(found)) + found)
            _remove(folder)
    finally:
        os._exit(0)


def _data_bytes() -> int:
    """Size of the data segment, which the limit on memory concerns."""
    status = Path("/proc/self/status").read_text()
    found = re.search(r"^VmData:\s*(\d+) kB", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) << 10


def _judged(case: Case, folder: Path) -> bytes:
    """A description of a wrong ending of a case; empty if it ended as promised."""
    case.make(folder)
    names = {path.name for pattern in ("*", "*/*") for path in folder.glob(pattern)}
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.alarm(_WALL_SECONDS)
    fragment = ""
    try:
        case.read(folder)
        if case.must_fail:
            fragment = "was read"
    except (ValueError, OSError) as error:
        message = str(error)
        if not any(name in message for name in (*names, folder.name)):
            fragment = f"names no file: {message}"
        elif len(message) >= _LONGEST or _ORDERS & set(map(unicodedata.category, set(message) - _JOINERS)):
            fragment = f"no short printable line: {message!r}"
        elif "does not fit into memory" in message:
            fragment = f"takes more than {MEMORY >> 20} MiB: {message}"
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)
        last = next((f"{Path(f.filename).name}:{f.lineno}" for f in reversed(where) if "fredholm" in f.filename), "")
        fragment = f"{type(error).__name__} at {last}: {error}"
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
    return fragment[:400].encode("utf-8", "replace")
