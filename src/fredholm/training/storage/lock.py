"""One writer per run folder: others get an error that names it, readers are not blocked."""

import contextlib
import errno
import fcntl
import os
import socket
import warnings
from collections.abc import Iterator
from pathlib import Path

LOCK = ".lock"
"""Name of the lock file. A killed writer leaves it behind without a lock on it."""

_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)

_held: set[int] = set()


def _forget_held() -> None:
    # A child that outlives a killed run, such as a worker, would keep the lock.
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_forget_held)


@contextlib.contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Makes a folder and locks it while entered, against writers in other processes and threads.

    The lock is the operating system's (``flock``) on a file, so it ends with its process, whatever the cause. Process
    ids are never compared; the one in the file is only for the message. On NFS it holds between machines where the
    server locks, which is usual. A file system without locks gives a warning, and nothing is refused.

    Raises:
        ValueError: another process is writing.
        OSError: the folder or the file cannot be made, for a reason other than missing permission.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK
    descriptor = _locked(path)
    if descriptor is None:
        yield
        return
    try:
        with contextlib.suppress(OSError):  # a full disk, or the file of another user
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield
    finally:
        if descriptor in _held:  # else this is a child of the writer
            with contextlib.suppress(OSError):
                path.unlink()
            _close(descriptor)


def _locked(path: Path) -> int | None:
    """Returns a descriptor that holds the lock of a file; None where the file cannot be locked."""
    while True:
        descriptor = _opened(path)
        if descriptor is None:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_there(path, descriptor):
                return descriptor
        except BlockingIOError:
            holder = os.pread(descriptor, 200, 0).decode("ascii", "replace").strip() or "another process"
            _close(descriptor)
            raise ValueError(
                f"{path.parent} is being trained by {holder}; wait for its end, or choose another folder"
            ) from None
        except OSError as error:
            _close(descriptor)
            if error.errno not in _UNSUPPORTED:
                raise
            warnings.warn(f"{path.parent}: this file system has no locks; let no second run write there", stacklevel=4)
            return None
        _close(descriptor)


def _opened(path: Path) -> int | None:
    """Opens the file, or makes it; None where permission is missing, as it then is for all other writes."""
    try:
        # no symbolic link: it may lead to a file of someone else
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        if not path.is_file():
            return None
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # another user's file
    _held.add(descriptor)
    return descriptor


def _is_there(path: Path, descriptor: int) -> bool:
    """Whether a descriptor still refers to the file at the path, which a writer may have removed when it ended."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _close(descriptor: int) -> None:
    _held.discard(descriptor)
    os.close(descriptor)
