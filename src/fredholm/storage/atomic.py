"""Files and folders that appear completely or not at all."""

import contextlib
import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, final

PARTIAL_PREFIX = ".partial-"
"""Prefix of names that no reader opens; a crash may leave such a file behind."""


def write_file(path: Path, content: bytes) -> None:
    """Writes ``path`` atomically: it holds its old or its new content at every moment, even after a power cut.

    Raises:
        OSError: the disk is full or the folder cannot be written; ``path`` is unchanged.
    """
    partial = path.with_name(f"{PARTIAL_PREFIX}{path.name}")
    try:
        _write_through(partial, content)
        partial.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise of_place(error, path) from error
        raise
    _sync_folder(path.parent)


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """Opens a file to write piece by piece; it appears as ``path``, complete, when the block ends.

    Several processes may write one path at a time; the last one to end wins.

    Raises:
        OSError: as for ``write_file``; no file is left behind, nor where the block raises.
    """
    partial = path.with_name(f"{PARTIAL_PREFIX}{os.getpid()}-{path.name}")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename == str(partial):
            raise of_place(error, path) from error
        raise
    _sync_folder(path.parent)


@final
class Draft:
    """A folder under construction: files are added, perhaps by several processes, and appear all at once.

    Args:
        path: path of the folder, which may exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.partial = path.with_name(f"{PARTIAL_PREFIX}{path.name}")
        """Folder of the files until `finish`."""

    def begin(self) -> None:
        """Makes a new, empty draft, in one process, before files are added.

        Raises:
            OSError: the parent folder cannot be written.
        """
        shutil.rmtree(self.partial, ignore_errors=True)
        self.partial.mkdir(parents=True)

    def add(self, name: str, content: bytes) -> None:
        """Adds a file.

        Raises:
            OSError: the disk is full.
        """
        _write_through(self.partial / name, content)

    def finish(self, last: str, stale: Collection[str] = ()) -> None:
        """Moves the draft to its final name, in one process, once all files are there.

        Where the folder exists, the files replace those in it: ``last``, which describes the others, after all others,
        and then stale files are removed. Other files stay.

        Args:
            last: name of the file to move last.
            stale: names of files of the existing folder to remove.

        Raises:
            OSError: a file cannot be moved.
        """
        _sync_folder(self.partial)
        if not self.path.exists():
            self.partial.rename(self.path)
            _sync_folder(self.path.parent)
            return
        for name in sorted((path.name for path in self.partial.iterdir()), key=lambda name: (name == last, name)):
            if name == last:
                _sync_folder(self.path)
            (self.partial / name).replace(self.path / name)
        _sync_folder(self.path)
        for name in stale:
            (self.path / name).unlink(missing_ok=True)
        self.drop()

    def drop(self) -> None:
        """Removes the draft with all its files."""
        shutil.rmtree(self.partial, ignore_errors=True)


def remove_folder(path: Path) -> None:
    """Removes a folder so that no part of it is ever visible under its name."""
    partial = path.with_name(f"{PARTIAL_PREFIX}{path.name}")
    shutil.rmtree(partial, ignore_errors=True)
    path.rename(partial)
    shutil.rmtree(partial, ignore_errors=True)


def clear_partial(folder: Path) -> None:
    """Removes incomplete files of a crash from a folder, which need not exist."""
    for path in folder.glob(f"{PARTIAL_PREFIX}*"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def of_place(error: OSError, path: Path) -> OSError:
    """Returns the same error for the requested path in place of the partial one."""
    return OSError(error.errno, error.strerror, str(path))


def _write_through(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    # A rename is durable only once the folder that holds the name is; not every system lets one sync a folder.
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
