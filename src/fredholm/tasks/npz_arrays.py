"""The arrays of an .npz file that a user hands over."""

import contextlib
import zipfile
from collections.abc import Iterator
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
