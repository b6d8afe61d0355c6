"""A record of the files that a run reads, by which it identifies its data.

Every reader of this package passes each path to `recorded` before opening it, and data within installed packages to
`record_content`. Outside `recording_reads` nothing is recorded.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self, TypeVar, final

AnyPath = TypeVar("AnyPath", str, Path)


@final
class FileState(NamedTuple):
    """Size and modification time of a file, which identify an unchanged one."""

    size: int
    modified: int
    """Modification time, in nanoseconds since 1970."""

    @classmethod
    def of(cls, path: Path) -> Self:
        """Returns the current state of a file; raises an OSError where it does not exist."""
        found = path.stat()
        return cls(found.st_size, found.st_mtime_ns)


@final
@dataclass(frozen=True)
class ReadRecord:
    """Files and other data that have been read.

    Args:
        files: state of each file when it was first opened, by absolute path.
        start: likewise for files that only a new run reads, such as another run's weights.
        contents: digests by name of data that are not files of their own.
    """

    files: dict[Path, FileState] = field(default_factory=dict)
    start: dict[Path, FileState] = field(default_factory=dict)
    contents: dict[str, str] = field(default_factory=dict)


_CURRENT: ContextVar[ReadRecord | None] = ContextVar("read_record", default=None)


@contextmanager
def recording_reads() -> Iterator[ReadRecord]:
    """Records the reads of this thread until the end of the block."""
    found = ReadRecord()
    token = _CURRENT.set(found)
    try:
        yield found
    finally:
        _CURRENT.reset(token)


def recorded(path: AnyPath, *, is_start: bool = False) -> AnyPath:
    """Records a path that is about to be read, now or later in the run, and returns it.

    Args:
        path: path of a file. A missing file is not recorded: its reader reports it.
        is_start: whether only a new run reads it; a resumed run has the result already.
    """
    found = _CURRENT.get()
    if found is not None:
        file = Path(path).absolute()
        try:
            state = FileState.of(file)
        except OSError:
            return path
        if file not in found.start and file not in found.files:
            (found.start if is_start else found.files)[file] = state
    return path


def record_content(name: str, *parts: bytes) -> None:
    """Records data that are not in a file of the run.

    Args:
        name: name of the data.
        parts: all bytes that a run learns from.
    """
    found = _CURRENT.get()
    if found is not None:
        digest = hashlib.blake2b(digest_size=16)
        for part in parts:
            digest.update(part)
        found.contents[name] = digest.hexdigest()
