"""The arrays of an .npz file that a user hands over."""

import contextlib
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.lib.npyio import NpzFile


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """All arrays of an .npz file; objects are refused.

    Raises:
        ValueError: it cannot be read as one.
    """
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
