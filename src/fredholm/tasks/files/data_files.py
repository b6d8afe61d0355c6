"""Files and folders given by the user: their paths, and finding, opening and unpacking them.

No function here blocks on a pipe, opens a device, follows a folder that contains itself, or recurses.
"""

import errno
import gzip
import io
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, final

from .limits import FREE_TEXT_BYTES, TEXT_EXPANSION, check_expansion, max_expanded_bytes
from .read_record import recorded

_CHUNK = 1 << 20
_TEXT = FREE_TEXT_BYTES, TEXT_EXPANSION
_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def user_path(data: str | Path) -> Path:
    """Returns the path that a user wrote, with ~ expanded.

    Raises:
        ValueError: it is no valid path.
    """
    if "\0" in str(data):
        raise ValueError(f"{str(data)!r} is no path: it has a NUL character; write another")
    try:
        return Path(data).expanduser()
    except RuntimeError as error:
        raise ValueError(f"{data}: there is no home folder of that user; write the path in full") from error


ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst", ".7z", ".rar")
"""Suffixes of archives, which are not unpacked here."""


def data_path(data: str | Path) -> Path:
    """Returns the path of data that a user wrote; see `user_path`.

    Raises:
        ValueError: it is no valid path, or an archive.
    """
    path = user_path(data)
    refuse_archive(path)
    return path


def refuse_archive(path: Path) -> None:
    """Raises a ValueError for a file with the suffix of an archive."""
    if path.name.lower().endswith(ARCHIVES) and is_there(path) and path.is_file():
        raise ValueError(f"{path} is an archive; unpack it, and pass the file or folder that was in it")


def is_there(data: str | Path) -> bool:
    """Whether the path that a user wrote exists; False for a built-in name."""
    try:
        return user_path(data).exists()
    except (OSError, ValueError):
        return False


def is_one_place(first: str | Path, second: str | Path) -> bool:
    """Whether two paths of a user lead to the same place; names are compared where one of them does not exist."""
    try:
        one, other = user_path(first), user_path(second)
        if not (one.exists() and other.exists()):
            return one.name == other.name
        return os.path.realpath(one) == os.path.realpath(other) or one.samefile(other)
    except (OSError, ValueError):
        return False


def open_file(path: str | Path) -> IO[bytes]:
    """Opens a file to be read as bytes, and records it (`fredholm.tasks.files.read_record`).

    Raises:
        OSError: it does not exist or cannot be read, or is a folder, a pipe, a socket or a device; none of these
            blocks.
    """
    _refuse_other_kinds(path, os.stat(recorded(Path(path))).st_mode)  # noqa: PTH116
    # O_NONBLOCK, in case it has become a pipe since
    raw = io.FileIO(str(path), "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0)))
    file = _Whole(raw)
    try:
        _refuse_other_kinds(path, os.fstat(file.fileno()).st_mode)
    except OSError:
        file.close()
        raise
    return file


@final
class _Whole(io.BufferedReader):
    """A file that never reads more than there is: Python allocates memory for all that is requested."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and 0 <= size <= _CHUNK:
            return super().read(size)
        left = max(0, os.fstat(self.fileno()).st_size - self.tell())
        return super().read(-1 if size is None or size < 0 else min(size, left))


def _refuse_other_kinds(path: str | Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        kind = next((name for is_one, name in _KINDS if is_one(mode)), "of an unknown kind")
        raise OSError(errno.EINVAL, f"it is {kind}, and no file", str(path))


def size_of_file(file: IO[bytes]) -> int:
    """Returns the current size of a file in bytes."""
    return os.fstat(file.fileno()).st_size


def chunks_of(path: Path) -> Iterator[bytes]:
    """Yields the content of a text file in chunks, decompressed if its name ends in .gz.

    Raises:
        ValueError: it cannot be opened or read, is no complete gzip file, or decompresses to too much.
    """
    try:
        with open_file(path) as file:
            given = size_of_file(file)
            if path.suffix.lower() != ".gz":
                while chunk := file.read(_CHUNK):
                    yield chunk
                return
            most, found = max_expanded_bytes(given, *_TEXT), 0
            with gzip.GzipFile(fileobj=file) as unpacked:
                while found <= most and (chunk := unpacked.read(_CHUNK)):
                    found += len(chunk)
                    yield chunk
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: is no whole gzip file ({error}); unpack it or drop the .gz") from error
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror}); pass a text file") from error
    check_expansion(f"{path}: unpacked it", found, given, "unpack it yourself", *_TEXT)


def read_bytes(path: Path) -> bytes:
    """Returns the content of a text file; see `chunks_of`."""
    return b"".join(chunks_of(path))


def files_below(folder: Path) -> Iterator[Path]:
    """Yields every file at any depth of a folder, except for hidden ones, in no order; pipes and the like too.

    Symbolic links to folders are not followed.

    Raises:
        OSError: a folder cannot be listed, or its path is too long.
    """
    waiting = [folder]
    while waiting:
        within = waiting.pop()
        with os.scandir(within) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(within / entry.name)
                elif not (within / entry.name).is_dir():
                    yield within / entry.name
