"""Hostile environments: full disks, missing permissions, little memory, closed streams, a bare environment.

A run meets the fault, in some cases after a kill. It must succeed or end with one line on stderr. Then
the fault is lifted, the run is resumed to its end, and must equal a run without faults.
"""

import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, final

from tests.command_line import TINY
from tests.faults.forking import Ended
from tests.faults.kills import Kill, Whole, content, last_step, toy_case
from tests.faults.outcome import Outcome

OF_TORCH = re.compile(r"[IWE]\d{4} \d\d:\d\d:\d\d\.\d+ \d+ ")
"""The beginning of a log line of torch, which reports parts of it that could not allocate memory."""

NOBODY = 65534


class Fault(ABC):
    """A resource that a process lacks.

    Args:
        drawn: random number generator for its size.
    """

    kind: ClassVar[str]
    detail: str

    @abstractmethod
    def __init__(self, drawn: random.Random) -> None: ...

    @staticmethod
    def is_possible() -> bool:
        """Whether the fault can be produced on this machine."""
        return True

    def prepare(self, place: Path) -> None:
        """Makes the folder that will contain the run."""
        place.mkdir()

    def begin(self, place: Path) -> None:  # noqa: B027 - most need none
        """Produces the fault for all processes."""

    def enter(self) -> None:  # noqa: B027 - most need none
        """Produces the fault for this process."""

    def lift(self, place: Path) -> None:  # noqa: B027 - most need none
        """Ends the fault."""

    def clear(self, place: Path) -> None:
        """Removes the folder."""
        shutil.rmtree(place)


@final
class FileLimit(Fault):
    """A limit on the size of files."""

    kind = "full disks"

    def __init__(self, drawn: random.Random) -> None:
        self._bytes = drawn.choice([drawn.randrange(64), drawn.randrange(3000), drawn.randrange(20_000)])
        self.detail = f"files of {self._bytes} bytes"

    def enter(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (self._bytes, self._bytes))


class _Mounted(Fault):
    """A separate file system."""

    options: str = "size=64m"

    @staticmethod
    def is_possible() -> bool:
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], capture_output=True, check=False)
            return done.returncode == 0 and subprocess.run(["umount", folder], check=False).returncode == 0

    def prepare(self, place: Path) -> None:
        place.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], check=True)

    def begin(self, place: Path) -> None:
        subprocess.run(["mount", "-o", f"remount,{self.options}", place], check=True)

    def lift(self, place: Path) -> None:
        subprocess.run(["mount", "-o", "remount,rw,size=64m", place], check=True)

    def clear(self, place: Path) -> None:
        subprocess.run(["umount", place], check=True)
        place.rmdir()


@final
class FullDisk(_Mounted):
    """A file system of a few pages."""

    kind = "full disks"

    def __init__(self, drawn: random.Random) -> None:
        self.options = f"size={drawn.randint(1, 24) * 4}k"
        self.detail = self.options

    def begin(self, place: Path) -> None:
        # a file system already larger than its limit is not shrunk
        used = sum(4096 * -(-file.stat().st_size // 4096) for file in place.rglob("*") if file.is_file())
        self.options = f"size={used + 4096 * int(self.detail.removeprefix('size=')[:-1]) // 4}"
        super().begin(place)


@final
class ReadOnly(_Mounted):
    """A read-only file system."""

    kind = "missing permissions"
    detail = options = "ro"

    def __init__(self, drawn: random.Random) -> None: ...


@final
class Unwritable(Fault):
    """Folders without write permission."""

    kind = "missing permissions"
    detail = "unwritable"

    def __init__(self, drawn: random.Random) -> None: ...

    def begin(self, place: Path) -> None:
        for path in (place, *place.rglob("*")):
            path.chmod(0o555)

    def enter(self) -> None:
        if os.geteuid() == 0:  # root may write anywhere
            os.setgid(NOBODY)
            os.setuid(NOBODY)

    def lift(self, place: Path) -> None:
        for path in (place, *place.rglob("*")):
            path.chmod(0o755)


@final
class LittleMemory(Fault):
    """A limit on memory beyond that in use at the start."""

    kind = "memory limits"

    def __init__(self, drawn: random.Random) -> None:
        self._bytes = int(2 ** drawn.uniform(12, 27))
        self.detail = f"{self._bytes / 2**20:.2f} MiB"

    def enter(self) -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + self._bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


@final
class FewDescriptors(Fault):
    """A limit on open files."""

    kind = "few open files"

    def __init__(self, drawn: random.Random) -> None:
        self._number = drawn.randint(0, 6)
        self.detail = f"{self._number} more open files"

    def enter(self) -> None:
        limit = max(int(path.name) for path in Path("/proc/self/fd").iterdir()) + self._number
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))


@final
class LostStreams(Fault):
    """Standard streams that are closed, full, or pipes without a reader."""

    kind = "lost streams"

    def __init__(self, drawn: random.Random) -> None:
        self._streams = [stream for stream in (0, 1, 2) if drawn.random() < 0.6] or [1]
        self._way = drawn.choice(("closed", "full", "unread"))
        self.detail = f"{self._way}: {self._streams}"

    def enter(self) -> None:
        reading, writing = os.pipe()
        os.close(reading)
        full = os.open("/dev/full", os.O_WRONLY)
        for stream in self._streams:
            name = ("stdin", "stdout", "stderr")[stream]
            if self._way == "closed":
                setattr(sys, name, None)
                os.close(stream)
            else:
                os.dup2(full if self._way == "full" else writing, stream)
                setattr(sys, name, os.fdopen(stream, "w", closefd=False))


FAULTS: tuple[type[Fault], ...] = (
    FileLimit,
    FullDisk,
    ReadOnly,
    Unwritable,
    LittleMemory,
    FewDescriptors,
    LostStreams,
)
BARE: tuple[dict[str, str], ...] = (
    {"TERM": "dumb", "LC_ALL": "C"},
    {"HOME": "/nonexistent", "LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"HOME": "/proc", "TMPDIR": "/nonexistent", "COLUMNS": "1", "LINES": "1"},
    {"HOME": "", "TERM": "", "LANG": "tr_TR.UTF-8", "TZ": "nowhere"},
)
"""Complete environments, except for the paths of programs."""


def environment_faults(count: int, seed: int) -> list[Outcome]:
    """Runs with one fault each, and for every 25 of them a command in a bare environment.

    Args:
        count: number of runs.
        seed: of what is drawn.
    """
    drawn = random.Random(seed)
    kinds = [kind for kind in FAULTS if kind.is_possible()]
    results: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        place, log = Path(folder) / "place", Path(folder) / "log"
        place.mkdir()
        log.mkdir()
        whole = Whole.of(toy_case(), place)
        shutil.rmtree(place)
        for number in range(count):
            fault = kinds[number % len(kinds)](drawn)
            killed_at = drawn.randrange(whole.operations) if drawn.random() < 0.7 else None
            wrong = _meet(fault, whole, killed_at, place, log)
            found = f"{fault.detail}, killed before at {killed_at}: {wrong}" if wrong else ""
            results.setdefault(fault.kind, []).append(found)
        if count >= 25:
            results["bare environments"] = [_live_bare(BARE[n % len(BARE)], place) for n in range(count // 25)]
    return [
        Outcome(kind, len(each), each.count(""), tuple(wrong for wrong in each if wrong))
        for kind, each in results.items()
    ]


def _meet(fault: Fault, whole: Whole, killed_at: int | None, place: Path, log: Path) -> str:
    """A description of what is wrong with a run after a fault; empty if nothing is."""
    fault.prepare(place)
    try:
        path = place / "run"
        if killed_at is not None:
            whole.case.train(path, log, Kill(killed_at))
        before = last_step(path)
        fault.begin(place)
        ended = whole.case.train(path, log, enter=fault.enter)
        fault.lift(place)
        if wrong := _is_no_line(ended):
            return wrong
        if before and (last_step(path) or 0) < before:
            return f"the checkpoint of step {before} is gone"
        ended = whole.case.train(path, log)
        if ended.code:
            return f"it did not go on: {ended.err}"
        found = content(path)
        return "" if found == whole.content else "it is another run"
    finally:
        fault.clear(place)


def _is_no_line(ended: Ended) -> str:
    """A description of a wrong ending of a process, which must succeed or end with one line; empty if it is right."""
    lines = [line for line in ended.err.splitlines() if not line.startswith("warning: ") and not OF_TORCH.match(line)]
    if ended.code == 0 and not lines:
        return ""
    is_line = len(lines) == 1 and lines[0].startswith("error: ") and len(lines[0]) < 520
    return "" if ended.code in (1, 2) and (is_line or not ended.err) else f"exit code {ended.code}: {ended.err}"


def _live_bare(environment: dict[str, str], place: Path) -> str:
    """A description of what is wrong with a command in an environment; empty if nothing is."""
    kept: Sequence[str] = ("PATH", "PYTHONPATH", "OMP_NUM_THREADS", "LD_LIBRARY_PATH")
    whole = {name: os.environ[name] for name in kept if name in os.environ} | environment
    place.mkdir()
    try:
        command = [sys.executable, "-m", "fredholm", "train", "digits", "--run-dir", str(place / "run"), *TINY]
        done = subprocess.run(command, cwd=place, env=whole, capture_output=True, text=True, check=False)
        # matplotlib, which torchmetrics imports, reports where it caches fonts without a home folder
        printed = [line for line in done.stderr.splitlines() if line and "matplotlib" not in line]
        is_well = done.returncode == 0 and not printed and last_step(place / "run") == 12
        return "" if is_well else f"{environment}: exit code {done.returncode}: {done.stderr}"
    finally:
        shutil.rmtree(place)
