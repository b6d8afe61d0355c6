"""Darcy flow from the small sets of the neuraloperator library: from what a medium lets through to its pressure."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from fredholm.domains import Grid
from fredholm.tasks.npz_arrays import load_arrays
from fredholm.tasks.splits import Splits

from .field_set import FieldSet, Samples

RESOLUTIONS = (16, 32)
"""Of the test set; training is at 16."""


def is_neuralop(path: Path) -> bool:
    """Whether the file is called as these sets are."""
    return path.name == "neuralop_pde.npz"


def darcy(path: str | Path, resolution: int = 16) -> Splits[FieldSet]:
    """-∇·(a ∇u) = 1 on the unit square: 1,000 and 50 pairs of a coefficient a (0 or 1) and its solution u.

    The solution is told from the coefficient: `given` is a, `wanted` is u, on the same grid.

    Args:
        path: the file, with `darcy_train_16_x`, `darcy_train_16_y`, `darcy_test_16_x` and so on.
        resolution: of the test set.

    Raises:
        ValueError: a resolution that is none of `RESOLUTIONS`, or the file cannot be read or lacks an array.
    """
    if resolution not in RESOLUTIONS:
        raise ValueError(f"resolution is {resolution}; expected one of {RESOLUTIONS}")
    arrays = load_arrays(Path(path))
    try:
        return Splits(_fields(arrays, "train", 16), _fields(arrays, "test", resolution))
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error


def _fields(arrays: Mapping[str, np.ndarray], split: str, resolution: int) -> FieldSet:
    a, u = (arrays[f"darcy_{split}_{resolution}_{name}"] for name in ("x", "y"))
    n = len(a)
    # the samples are nodes of the lattice k / resolution, of which the coarse one has every second
    pos = Grid(resolution, resolution, origin=(0.0, 0.0), spacing=(1 / resolution,) * 2).pos.expand(n, -1, -1)
    given, wanted = (Samples(pos, torch.from_numpy(v).float().reshape(n, -1, 1), None) for v in (a, u))
    return FieldSet(
        given=given,
        wanted=wanted,
        coordinates=("y", "x"),
        channels=("coefficient",),
        wanted_channels=("solution",),
        names=tuple(f"darcy_{split}_{resolution}[{i}]" for i in range(n)),
    )
