"""Files and folders that a user hands over: how they are named, found, opened and unpacked.

Nothing here waits for a pipe, opens a device, follows a folder that holds itself, or recurses.
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

from .limits import FREE_TEXT_BYTES, TEXT_EXPANSION, check_expansion, most_bytes
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
    """The path that a user wrote, with the home folder for ~.

    Raises:
        ValueError: it cannot be one.
    """
    if "\0" in str(data):
        raise ValueError(f"{str(data)!r} is no path: it has a NUL character; write another")
    try:
        return Path(data).expanduser()
    except RuntimeError as error:
        raise ValueError(f"{data}: there is no home folder of that user; write the path in full") from error


ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst", ".7z", ".rar")
"""What names of files end in that hold files, which nothing here unpacks."""


def data_path(data: str | Path) -> Path:
    """The path of data that a user wrote; see `user_path`.

    Raises:
        ValueError: it cannot be one, or is an archive.
    """
    path = user_path(data)
    refuse_archive(path)
    return path


def refuse_archive(path: Path) -> None:
    """Raises ValueError for a file whose name is that of an archive."""
    if path.name.lower().endswith(ARCHIVES) and is_there(path) and path.is_file():
        raise ValueError(f"{path} is an archive; unpack it, and pass the file or folder that was in it")


def is_there(data: str | Path) -> bool:
    """Whether something is at a path that a user wrote; at a built-in name there is nothing."""
    try:
        return user_path(data).exists()
    except (OSError, ValueError):
        return False


def is_one_place(first: str | Path, second: str | Path) -> bool:
    """Whether two paths that a user wrote lead to one place; where nothing is at one of them, their names tell."""
    try:
        one, other = user_path(first), user_path(second)
        if not (one.exists() and other.exists()):
            return one.name == other.name
        return os.path.realpath(one) == os.path.realpath(other) or one.samefile(other)
    except (OSError, ValueError):
        return False


def open_file(path: str | Path) -> IO[bytes]:
    """The file, opened to be read as bytes, and recorded (`fredholm.tasks.files.read_record`).

    Raises:
        OSError: it is not there or may not be read, or is a folder, a pipe, a socket or a device, none of which is
            waited for.
    """
    _refuse_other_kinds(path, os.stat(recorded(Path(path))).st_mode)  # noqa: PTH116
    # without waiting, should it have become a pipe since
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
    """A file of which no more is asked for than there is: Python takes the memory for all that is asked for."""

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
    """Its bytes, as they are there."""
    return os.fstat(file.fileno()).st_size


def chunks_of(path: Path) -> Iterator[bytes]:
    """What a file of text holds, unpacked if its name ends in .gz, piece by piece.

    Raises:
        ValueError: it cannot be opened or read, is no whole gzip, or unpacks to too much.
    """
    try:
        with open_file(path) as file:
            given = size_of_file(file)
            if path.suffix.lower() != ".gz":
                while chunk := file.read(_CHUNK):
                    yield chunk
                return
            most, found = most_bytes(given, *_TEXT), 0
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
    """What a file of text holds; see `chunks_of`."""
    return b"".join(chunks_of(path))


def files_below(folder: Path) -> Iterator[Path]:
    """All that is no folder at any depth of a folder, but for what is hidden, in no order; pipes and the like too.

    Links to folders are not followed.

    Raises:
        OSError: a folder cannot be listed, or lies too deep to be named.
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
