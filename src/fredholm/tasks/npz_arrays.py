"""The arrays of .npz and .npy files that a user hands over."""

import contextlib
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.lib.npyio import NpzFile

ARRAY_SUFFIXES = (".npz", ".npy")


def load_arrays(path: Path, *, alone: str | None = None) -> dict[str, np.ndarray]:
    """All arrays of an .npz file; objects are refused.

    Args:
        path: the file.
        alone: the name that the array of an .npy file gets; None: such a file is refused.

    Raises:
        ValueError: it cannot be read as one.
    """
    if alone is not None and path.suffix.lower() == ".npy":
        return {alone: _single(path)}
    with _opened(path) as opened:
        return {name: opened[name] for name in opened.files}


def array_names(path: Path) -> tuple[str, ...]:
    """The names of its arrays, which are not read; errors as for `load_arrays`."""
    with _opened(path) as opened:
        return tuple(opened.files)


def arrays_of_split(arrays: Mapping[str, np.ndarray], split: str) -> dict[str, np.ndarray]:
    """Those of "train" or "test" by their names without it, and those that both share."""
    shared = {name: array for name, array in arrays.items() if not name.startswith(("train_", "test_"))}
    own = {name.removeprefix(f"{split}_"): array for name, array in arrays.items() if name.startswith(f"{split}_")}
    return shared | own


def _single(path: Path) -> np.ndarray:
    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ValueError(f"{path}: cannot be read as an .npy file ({reason}); pass one without objects") from error
    if not isinstance(found, np.ndarray):
        found.close()
        raise ValueError(f"{path}: is an .npz file by its content; rename it")
    return found


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[NpzFile]:
    try:
        with np.load(path, allow_pickle=False) as opened:
            if not isinstance(opened, NpzFile):
                raise ValueError("it holds a single array")
            yield opened
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ValueError(f"{path}: cannot be read as an .npz file ({reason}); pass one without objects") from error
