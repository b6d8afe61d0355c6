"""One writer a run folder: the others are told who it is, and readers are not hindered."""

import contextlib
import errno
import fcntl
import os
import socket
import warnings
from collections.abc import Iterator
from pathlib import Path

LOCK = ".lock"
"""The file that a writer holds; one that was killed leaves it behind, and it means nothing then."""

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
    """While entered no other process, and no other thread, is the writer of a folder, which is made if it is not there.

    The lock is the system's own (``flock``) on a file, so it ends with its process whatever ends that, and no process
    id is ever compared; the one in the file is for the message alone. On NFS it holds between machines where the server
    locks, which is usual. A file system without locks is told in a warning, and then nothing is refused.

    Raises:
        ValueError: another process is writing.
        OSError: the folder or the file cannot be made, for another reason than missing permission.
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
    """A descriptor that holds the lock of a file; None where there cannot be one."""
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
    """A descriptor of the file, made if need be; None where it may not be: then nothing else can be written either."""
    try:
        # no link: it may lead to a file that is not ours to write
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        if not path.is_file():
            return None
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # another user's
    _held.add(descriptor)
    return descriptor


def _is_there(path: Path, descriptor: int) -> bool:
    """Whether a descriptor is of the file of that name; a writer that ended meanwhile has removed it."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _close(descriptor: int) -> None:
    _held.discard(descriptor)
    os.close(descriptor)
