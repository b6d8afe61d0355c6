"""Files and folders that appear whole or not at all."""

import contextlib
import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, final

PARTIAL_PREFIX = ".partial-"
"""Names that no reader opens; a crash may leave one behind."""


def write_file(path: Path, content: bytes) -> None:
    """Writes ``path`` so that it holds its old or its new content at every moment, after a power cut too.

    Raises:
        OSError: the disk is full or the folder cannot be written; ``path`` is as before.
    """
    partial = path.with_name(f"{PARTIAL_PREFIX}{path.name}")
    try:
        _write_through(partial, content)
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise of_place(error, path) from error
    _sync_folder(path.parent)


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write piece by piece, which is called ``path`` once the block has ended, and whole then.

    Several processes may write one at a time: the last that ends has written it.

    Raises:
        OSError: as for ``write_file``; nothing is left behind, nor where the block raises.
    """
    partial = path.with_name(f"{PARTIAL_PREFIX}{os.getpid()}-{path.name}")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


@final
class Draft:
    """A folder in the making: files are added to it, by several processes perhaps, and get their place all at once.

    Args:
        path: of the folder, which may be there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.partial = path.with_name(f"{PARTIAL_PREFIX}{path.name}")
        """Where the files are until then."""

    def begin(self) -> None:
        """Makes it anew, in one process, before files are added.

        Raises:
            OSError: the place cannot be written.
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
        """Gives the folder its name, in one process, once all files are there.

        Where a folder of that name is, the files replace those in it: ``last``, which says what the others are, after
        all others, and then files that no longer count go. Others stay.

        Args:
            last: a file.
            stale: names of files of the folder that was there.

        Raises:
            OSError: that is not possible.
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
        """Removes it with all its files."""
        shutil.rmtree(self.partial, ignore_errors=True)


def remove_folder(path: Path) -> None:
    """Removes a folder such that no part of it is ever seen under its name."""
    partial = path.with_name(f"{PARTIAL_PREFIX}{path.name}")
    shutil.rmtree(partial, ignore_errors=True)
    path.rename(partial)
    shutil.rmtree(partial, ignore_errors=True)


def clear_partial(folder: Path) -> None:
    """Removes what a crash may have left half-written in a folder, which need not exist."""
    for path in folder.glob(f"{PARTIAL_PREFIX}*"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def of_place(error: OSError, path: Path) -> OSError:
    """The same error of the path that was asked for: nobody knows of a partial one."""
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
