"""Files and folders that appear whole or not at all."""

import contextlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

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
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def write_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Creates the folder ``path``, which must not exist, with all its files at once.

    Raises:
        OSError: as for ``write_file``; nothing is left behind.
    """
    partial = path.with_name(f"{PARTIAL_PREFIX}{path.name}")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        for name, content in files.items():
            _write_through(partial / name, content)
        _sync_folder(partial)
        partial.rename(path)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    _sync_folder(path.parent)


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
