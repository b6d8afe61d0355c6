"""Darcy flow and Burgers' equation from the small data sets of the neuraloperator library."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch

from fredholm.domains import Grid
from fredholm.tasks.files.npz_arrays import load_arrays, needed_array
from fredholm.tasks.splits.splits import Splits

from .field_set import FieldSet, Samples

Problem = Literal["darcy", "burgers", "burgers-steps"]
RESOLUTIONS = (16, 32)
"""Resolutions of the test set of Darcy flow; all other sets have resolution 16."""


def is_neuralop(path: Path) -> bool:
    """Whether a file has the name of these data sets."""
    return path.name == "neuralop_pde.npz"


def neuralop(path: str | Path, problem: Problem = "darcy", resolution: int = 16) -> Splits[FieldSet]:
    """Reads pairs of functions, an input and the target to predict from it.

    `darcy` is -∇·(a ∇u) = 1 on the unit square: from a coefficient a (0 or 1) to its solution u, on the same grid;
    1,000 and 50 pairs. `burgers` is ∂u/∂t + u ∂u/∂x = 0.01 ∂²u/∂x² on a circle: from u at 16 points and t = 0,
    repeated at all times, to u at 16 points and 17 times from 0 to 1; 800 and 400 pairs. `burgers-steps` has the same
    data as trajectories.

    Args:
        path: path of the file, with `darcy_train_16_x`, `darcy_train_16_y`, `darcy_test_16_x` and so on.
        problem: name of the problem.
        resolution: resolution of the test set.

    Raises:
        ValueError: the problem or resolution does not exist, or the file cannot be read or lacks an array of real
            numbers.
    """
    if problem not in get_args(Problem):
        raise ValueError(f"problem is {problem!r}; expected one of {', '.join(get_args(Problem))}")
    known = RESOLUTIONS if problem == "darcy" else RESOLUTIONS[:1]
    if resolution not in known:
        raise ValueError(f"resolution is {resolution}; {problem} has {', '.join(map(str, known))}")
    arrays = load_arrays(Path(path))
    read = {"darcy": _darcy, "burgers": _burgers, "burgers-steps": _burgers_steps}[problem]
    try:
        return Splits(read(arrays, "train", 16), read(arrays, "test", resolution))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _darcy(arrays: Mapping[str, np.ndarray], split: str, resolution: int) -> FieldSet:
    a = needed_array(arrays, f"darcy_{split}_{resolution}_x", "biuf", None, resolution, resolution)
    n = len(a)
    u = needed_array(arrays, f"darcy_{split}_{resolution}_y", "biuf", n, resolution, resolution)
    # samples are the nodes k / resolution of a lattice; the coarse lattice has every second node
    pos = Grid(resolution, resolution, origin=(0.0, 0.0), spacing=(1 / resolution,) * 2).pos.expand(n, -1, -1)
    given, targets = (Samples(pos, torch.from_numpy(v).float().reshape(n, resolution**2, 1), None) for v in (a, u))
    return FieldSet(
        given=given,
        other_targets=targets,
        coordinates=("y", "x"),
        channels=("coefficient",),
        other_channels=("solution",),
        names=_names("darcy", split, resolution, n),
    )


def _burgers(arrays: Mapping[str, np.ndarray], split: str, resolution: int) -> FieldSet:
    start, whole = _states(arrays, split, resolution)
    n, times, points = whole.shape
    spacing = (1 / (times - 1), 1 / points)
    pos = Grid(times, points, spacing=spacing, origin=(0.0, 0.0)).pos.expand(n, -1, -1)
    given = start[:, None].expand(-1, times, -1)
    return FieldSet(
        given=Samples(pos, given.reshape(n, times * points, 1), None),
        other_targets=Samples(pos, whole.reshape(n, times * points, 1), None),
        coordinates=("t", "x"),
        channels=("velocity",),
        other_channels=("velocity",),
        names=_names("burgers", split, resolution, n),
    )


def _burgers_steps(arrays: Mapping[str, np.ndarray], split: str, resolution: int) -> FieldSet:
    start, whole = _states(arrays, split, resolution)
    n, times, points = whole.shape
    pos = Grid(points, spacing=(1 / points,), origin=(0.0,)).pos.expand(n, -1, -1)
    return FieldSet(
        given=Samples(pos, start[..., None], None),
        other_targets=Samples(pos, whole[:, 1:].mT.contiguous(), None),
        coordinates=("x",),
        channels=("velocity",),
        other_channels=tuple(f"velocity, step {t}" for t in range(1, times)),
        names=_names("burgers", split, resolution, n),
        num_steps=times - 1,
    )


def _states(arrays: Mapping[str, np.ndarray], split: str, resolution: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns u at t = 0, `(n, N)`, and at all times, `(n, T + 1, N)`."""
    start = needed_array(arrays, f"burgers_{split}_{resolution}_x", "biuf", None, resolution)
    whole = needed_array(arrays, f"burgers_{split}_{resolution}_y", "biuf", len(start), None, resolution)
    if whole.shape[1] < 2:
        raise ValueError(f"burgers_{split}_{resolution}_y has {whole.shape[1]} times; expected at least two")
    return torch.from_numpy(start).float(), torch.from_numpy(whole).float()


def _names(problem: str, split: str, resolution: int, count: int) -> tuple[str, ...]:
    return tuple(f"{problem}_{split}_{resolution}[{i}]" for i in range(count))
