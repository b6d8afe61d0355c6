"""ModelNet10 as occupancy grids of 30 x 30 x 30 voxels, one bit each."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from fredholm.tasks.files.npz_arrays import array_names, load_arrays, needed_array
from fredholm.tasks.splits.split_files import SPLITS
from fredholm.tasks.splits.split_marks import SplitMarks

from .point_set import Cloud, PointSet

SIDE = 30
"""Voxels along an axis; shapes fill the middle 24."""
_FILE = "modelnet10_voxel30.npz"
_NAMES = ("X_train", "X_test", "y_train", "y_test", "classes")


def is_modelnet10_voxels(path: Path) -> bool:
    """Whether a path is the file `modelnet10_voxel30.npz`, or its folder."""
    file = path / _FILE if path.is_dir() else path
    return file.name == _FILE and file.is_file() and set(_NAMES) <= set(array_names(file))


def modelnet10_voxels(path: Path) -> PointSet:
    """The surface of every shape: the centres of its voxels that have a free neighbour along an axis.

    Coordinates are in [-1, 1], a box that the shape fills. Shapes without any voxel are left out. There is a
    training and a test split.

    Args:
        path: the file `modelnet10_voxel30.npz`, or its folder: bits `X_train` and `X_test` `(n, 3375)`, `y_train` and
            `y_test` `(n,)`, and `classes`.

    Raises:
        ValueError: the file cannot be read.
    """
    file = path / _FILE if path.is_dir() else path
    arrays = load_arrays(file)
    try:
        return _read(path, arrays)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def _read(path: Path, arrays: Mapping[str, np.ndarray]) -> PointSet:
    classes = tuple(map(str, needed_array(arrays, "classes", "U", None)))
    clouds, words, split = [], [], []
    for part in ("train", "test"):
        bits = needed_array(arrays, f"X_{part}", "iu", None, SIDE**3 // 8)
        if bits.dtype != np.uint8:
            raise ValueError(f"X_{part} is {bits.dtype}; expected uint8, bits")
        labels = needed_array(arrays, f"y_{part}", "iu", len(bits))
        for i in np.flatnonzero((labels < 0) | (labels >= len(classes)))[:1].tolist():
            raise ValueError(f"y_{part}[{i}] is {labels[i]}, but there are {len(classes)} classes")
        for i, row in enumerate(bits):
            filled = np.unpackbits(row)[: SIDE**3].reshape(SIDE, SIDE, SIDE).astype(bool)
            pos = surface(filled)
            if len(pos):
                clouds.append(Cloud(pos=pos, features=np.empty((len(pos), 0)), name=f"{path}:X_{part}[{i}]"))
                words.append(classes[labels[i]])
                split.append(SPLITS.index(part))
    if not clouds:
        raise ValueError("all shapes are empty; expected voxels")
    return PointSet.pack(clouds, labels=words, classes=classes, marks=SplitMarks(given=torch.tensor(split)))


def surface(filled: np.ndarray) -> np.ndarray:
    """Centres `(N, 3)` of the surface voxels of `filled`, bool `(n, n, n)`; the unit of length is 12 voxels."""
    padded = np.pad(filled, 1)
    inner = np.ones_like(filled)
    for axis in range(3):
        for shift in (-1, 1):
            inner &= np.roll(padded, shift, axis)[1:-1, 1:-1, 1:-1]
    return (np.argwhere(filled & ~inner) - (len(filled) - 1) / 2) / 12
