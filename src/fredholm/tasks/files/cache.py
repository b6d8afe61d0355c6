"""A cache of results computed from large data, in files that are memory-mapped.

The folder is `$FREDHOLM_CACHE`, else `fredholm` in `$XDG_CACHE_HOME` or `~/.cache`. Its content can be recomputed, so
it may be removed at any time, even while a run reads from it. Small results are never cached.
"""

import contextlib
import fcntl
import functools
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, final

import numpy as np

from fredholm.storage.atomic import new_file, write_file
from fredholm.storage.integrity import seal, unseal

from .data_files import user_path
from .read_record import FileState

FOLDER = "FREDHOLM_CACHE"
"""Environment variable of the cache folder."""
LARGE = 64 << 20
"""Size in bytes from which data are mapped, and results cached."""
_VERSION = 1
"""Version of the cached content; a new one invalidates all entries."""
_CHUNK = 1 << 20


def cache_folder() -> Path:
    """Returns the cache folder, which need not exist.

    Raises:
        ValueError: the variable is no valid path, or there is no home folder.
    """
    if named := os.environ.get(FOLDER):
        return user_path(named)
    return user_path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "fredholm"


@final
class CacheEntry:
    """An entry of the cache, present or not.

    Args:
        key: inputs of the result: plain values and tuples of them. Equal keys mean equal results.
    """

    def __init__(self, *key: object) -> None:
        digest = hashlib.blake2b(repr((_VERSION, key)).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
        self._name = f"{digest}.json"

    def array(self, make: Callable[[], Iterable[np.ndarray]], dtype: type[np.integer[Any]]) -> np.ndarray:
        """Returns an integer array `(n,)`, the joined parts of `make`; from `LARGE` bytes on it is mapped and cached.

        Args:
            make: yields arrays `(k,)`, the same ones on each call.
            dtype: integer type that holds all values.

        Raises:
            ValueError: the cache cannot be written.
        """
        if (found := self._mapped(dtype)) is not None:
            return found
        waiting, size, parts = list[np.ndarray](), 0, iter(make())
        for part in parts:
            waiting.append(part.astype(dtype))
            size += waiting[-1].nbytes
            if size >= LARGE:
                break
        else:
            return np.concatenate([np.empty(0, dtype), *waiting])
        with self._alone():
            if (found := self._mapped(dtype)) is None:  # another process may have made it meanwhile
                self._write([*waiting], (part.astype(dtype) for part in parts))
                found = self._mapped(dtype)
        assert found is not None
        return found

    def value(self, make: Callable[[], dict[str, Any]], *, size: int) -> dict[str, Any]:
        """Returns a JSON object, which is cached where its source has at least `LARGE` bytes.

        Raises:
            ValueError: the cache cannot be written.
        """
        if size < LARGE:
            return make()
        with contextlib.suppress(ValueError, OSError):
            return unseal(self._listing)["value"]
        with self._alone():
            with contextlib.suppress(ValueError, OSError):
                return unseal(self._listing)["value"]
            found = make()
            with _disk_errors():
                write_file(self._listing, seal({"value": found}))
        return found

    @property
    def _listing(self) -> Path:
        return cache_folder() / self._name

    @property
    def _file(self) -> Path:
        return self._listing.with_suffix(".bin")

    def _mapped(self, dtype: type[np.integer[Any]]) -> np.ndarray | None:
        """Returns the cached array; None where it is missing or damaged."""
        try:
            content, state = unseal(self._listing), FileState.of(self._file)
            if state.size == content["bytes"] and _digest(self._file, state) == content["blake2b"]:
                # not writable: memory would be promised for all of it
                return np.memmap(self._file, dtype, "r").view(np.ndarray)
        except (ValueError, OSError, KeyError):
            pass
        return None

    def _write(self, first: Iterable[np.ndarray], others: Iterable[np.ndarray]) -> None:
        size, digest = 0, hashlib.blake2b(digest_size=16)
        with _disk_errors(), new_file(self._file) as file:
            for parts in (first, others):
                for part in parts:
                    data = part.tobytes()
                    digest.update(data)
                    file.write(data)
                    size += len(data)
        with _disk_errors():
            write_file(self._listing, seal({"bytes": size, "blake2b": digest.hexdigest()}))

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Locks the entry against other processes while entered; without file locks each computes its own."""
        with _disk_errors():
            self._listing.parent.mkdir(parents=True, exist_ok=True)
            lock = self._listing.with_suffix(".lock").open("wb")
        with lock:
            with contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield


@functools.lru_cache(maxsize=64)
def _digest(path: Path, state: FileState) -> str:
    """Returns the digest of a file in this state; each process reads it once."""
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb", buffering=0) as file:
        while part := file.read(_CHUNK):
            digest.update(part)
    return digest.hexdigest()


@contextlib.contextmanager
def _disk_errors() -> Iterator[None]:
    """Turns errors of writing the cache into messages with advice."""
    try:
        yield
    except OSError as error:
        raise ValueError(
            f"{cache_folder()}: what is made of large data cannot be kept there ({error.strerror or error}); name "
            f"another folder in the environment: {FOLDER}=PATH"
        ) from error
