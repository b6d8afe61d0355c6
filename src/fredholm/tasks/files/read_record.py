"""A record of what is read, kept where it is read: a run knows its data by that.

Every reader of this package hands the path that it is about to open to `recorded`, and what comes with an installed
package to `record_content`. While nobody asks (`recording_reads`), nothing is kept.
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
    """By which a file is taken for unchanged."""

    size: int
    modified: int
    """Nanoseconds since 1970."""

    @classmethod
    def of(cls, path: Path) -> Self:
        """That of a file as it is now; raises OSError where there is none."""
        found = path.stat()
        return cls(found.st_size, found.st_mtime_ns)


@final
@dataclass(frozen=True)
class ReadRecord:
    """What was read.

    Args:
        files: each with its state when it was first opened, by absolute paths.
        start: likewise files that a new run alone reads, such as another run's weights.
        contents: digests of what is in no file of its own, by name.
    """

    files: dict[Path, FileState] = field(default_factory=dict)
    start: dict[Path, FileState] = field(default_factory=dict)
    contents: dict[str, str] = field(default_factory=dict)


_ASKED: ContextVar[ReadRecord | None] = ContextVar("read_record", default=None)


@contextmanager
def recording_reads() -> Iterator[ReadRecord]:
    """Records what this thread reads until the end of the block."""
    found = ReadRecord()
    token = _ASKED.set(found)
    try:
        yield found
    finally:
        _ASKED.reset(token)


def recorded(path: AnyPath, *, is_start: bool = False) -> AnyPath:
    """The path, which is about to be read, now or later in the run.

    Args:
        path: of a file. One that is not there is not recorded: its reader says so.
        is_start: whether a new run alone reads it, and a resumed one has what came of it.
    """
    found = _ASKED.get()
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
    """Records data that are in no file of the run's own.

    Args:
        name: of the data.
        parts: all that a run learns of them.
    """
    found = _ASKED.get()
    if found is not None:
        digest = hashlib.blake2b(digest_size=16)
        for part in parts:
            digest.update(part)
        found.contents[name] = digest.hexdigest()
