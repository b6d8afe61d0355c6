"""Samples of functions in an .npz file of numpy arrays."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from fredholm.domains import Grid
from fredholm.tasks.files.npz_arrays import arrays_of_splits, load_arrays, split_of_rows
from fredholm.tasks.splits.split_marks import SplitMarks, marks_of_arrays
from fredholm.tasks.splits.splits import Splits

from .field_set import FieldSet, Samples, pack

_AXES = ("x", "y", "z")


def read_npz(path: Path) -> FieldSet | Splits[FieldSet]:
    """Read arrays, as one set of functions or, where they tell one, with their split.

    `values` are `(n, N)` or `(n, N, m)`, at the points `pos` `(N, s)` of all functions or `(n, N, s)`; with `offsets`
    `(n + 1,)` both are of all functions one after the other, `(samples, ...)`, and function i has those from
    `offsets[i]` to `offsets[i + 1]`. Without `pos` the values are on the cell centres of the unit box, `(n, H, W)` or
    `(n, D, H, W)`, or with channels `(n, H, W, m)` and `channels` named. NaN values of all channels: no sample there.

    `wanted_values`, `wanted_pos` and `wanted_offsets` likewise are what is to be told of each function, where that is
    not what is given. `coordinates`, `channels` and `wanted_channels` are names.

    `trajectories` in place of `values` have one axis more, of T + 1 times, after the first: given is the state at the
    first time, wanted are those at the T others. Their points exist at all times or never.

    A split is `split` `(n,)` (see `split_of_rows`), or `is_test` `(n,)`; or `train_`, `valid_` (or `val_`) and `test_`
    before the names of the arrays, of which those of training alone must be there. `groups` and `example_times` `(n,)`:
    see `marks_of_arrays`. An .npy file is `values` alone.

    Raises:
        ValueError: it is no such file, or arrays are missing or do not fit together. The message names file and array.
    """
    arrays = load_arrays(path, alone="values")
    try:
        if parts := arrays_of_splits(arrays):
            found = {split: functions_of_arrays(own, path.name) for split, own in parts.items()}
            return Splits(found["train"], found.get("test"), found.get("valid"))
        whole = functions_of_arrays(arrays, path.name)
        return Splits.of_rows(whole, split_of_rows(arrays, len(whole), is_test=("is_test",)))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def functions_of_arrays(arrays: Mapping[str, np.ndarray], where: str) -> FieldSet:
    """Functions in the arrays of a file of `read_npz` without a split.

    Args:
        arrays: by name.
        where: what they are called, for messages.

    Raises:
        ValueError: arrays are missing or do not fit together.
    """
    if "trajectories" in arrays:
        return _trajectories(arrays, where)
    given = _samples(arrays, "")
    n, dim, channels = len(given.pos), given.pos.shape[-1], given.values.shape[-1]
    wanted = _samples(arrays, "wanted_") if "wanted_values" in arrays else None
    if wanted is not None and (len(wanted.pos) != n or wanted.pos.shape[-1] != dim):
        raise ValueError(
            f"wanted_values are of {len(wanted.pos)} functions of {wanted.pos.shape[-1]} coordinates; values are of "
            f"{n} of {dim}"
        )
    return FieldSet(
        given=given,
        wanted=wanted,
        coordinates=_coordinates(arrays, dim),
        channels=_names(arrays, "channels", channels, _numbered(channels)),
        wanted_channels=()
        if wanted is None
        else _names(arrays, "wanted_channels", wanted.values.shape[-1], _numbered(wanted.values.shape[-1])),
        names=tuple(f"{where}, function {i}" for i in range(n)),
        marks=_marks(arrays, n),
    )


def _trajectories(arrays: Mapping[str, np.ndarray], where: str) -> FieldSet:
    states = arrays["trajectories"]
    for name in ("values", "wanted_values", "offsets"):
        if name in arrays:
            raise ValueError(f"has both trajectories and {name}; leave one out")
    if states.ndim < 3 or states.shape[1] < 2:
        raise ValueError(f"trajectories is {states.shape}; expected (n, T + 1, ...) with at least two times")
    times = [_samples({**arrays, "values": states[:, t]}, "") for t in range(states.shape[1])]
    given, num_steps = times[0], len(times) - 1
    if any(bool((step.exists != given.exists).any()) for step in times):
        raise ValueError("trajectories have NaN at some times of a point and not at others; expected all or none")
    channels = _names(arrays, "channels", given.values.shape[-1], _numbered(given.values.shape[-1]))
    return FieldSet(
        given=given,
        wanted=Samples(given.pos, torch.cat([step.values for step in times[1:]], dim=-1), given.mask),
        coordinates=_coordinates(arrays, given.pos.shape[-1]),
        channels=channels,
        wanted_channels=tuple(f"{name}, step {t + 1}" for t in range(num_steps) for name in channels),
        names=tuple(f"{where}, function {i}" for i in range(len(states))),
        num_steps=num_steps,
        marks=_marks(arrays, len(states)),
    )


def _marks(arrays: Mapping[str, np.ndarray], n: int) -> SplitMarks:
    """Groups and times; the split divides the functions when all are read."""
    return replace(marks_of_arrays({name: array for name, array in arrays.items() if name != "split"}, n), given=None)


def _coordinates(arrays: Mapping[str, np.ndarray], dim: int) -> tuple[str, ...]:
    default = _AXES[:dim] if dim <= len(_AXES) else tuple(f"x{i + 1}" for i in range(dim))
    return _names(arrays, "coordinates", dim, default)


def _numbered(count: int) -> tuple[str, ...]:
    return ("value",) if count == 1 else tuple(f"value {i + 1}" for i in range(count))


def _samples(arrays: Mapping[str, np.ndarray], prefix: str) -> Samples:
    name = f"{prefix}values"
    if name not in arrays:
        raise ValueError(f"has no array {name!r}; the arrays are {', '.join(arrays) or 'none'}")
    values = _numbers(arrays, name)
    if f"{prefix}pos" not in arrays:
        return _on_grid(values, name, has_channels=f"{prefix}channels" in arrays)
    pos = _numbers(arrays, f"{prefix}pos")
    if f"{prefix}offsets" in arrays:
        return _joined(pos, values, arrays[f"{prefix}offsets"], prefix)
    if values.ndim == 2:
        values = values[..., None]
    if values.ndim != 3 or pos.shape[:-1] not in (values.shape[:2], values.shape[1:2]):
        raise ValueError(
            f"{name} is {arrays[name].shape} and {prefix}pos is {pos.shape}; expected (n, N) or (n, N, m), and (N, s) "
            "or (n, N, s)"
        )
    shared = torch.from_numpy(pos).expand(len(values), -1, -1)
    return _existing(shared, torch.from_numpy(values))


def _on_grid(values: np.ndarray, name: str, *, has_channels: bool) -> Samples:
    shape = values.shape[1:-1] if has_channels else values.shape[1:]
    if not 1 <= len(shape) <= 3 or 0 in values.shape:
        raise ValueError(
            f"{name} is {values.shape} without positions; expected a grid, (n, H, W), and (n, H, W, m) with channels "
            "named"
        )
    flat = torch.from_numpy(values).reshape(len(values), -1, values.shape[-1] if has_channels else 1)
    return _existing(Grid(*shape).pos.expand(len(values), -1, -1), flat)


def _joined(pos: np.ndarray, values: np.ndarray, offsets: np.ndarray, prefix: str) -> Samples:
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2 or pos.ndim != 2 or len(pos) != len(values):
        raise ValueError(
            f"{prefix}values is {values.shape} and {prefix}pos is {pos.shape}; with offsets expected (samples, m) and "
            "(samples, s)"
        )
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or len(offsets) < 1:
        raise ValueError(f"{prefix}offsets is {offsets.dtype} {offsets.shape}; expected integers (n + 1,)")
    if offsets[0] != 0 or offsets[-1] != len(values) or (np.diff(offsets.astype(np.int64)) < 0).any():
        raise ValueError(f"{prefix}offsets do not rise from 0 to the {len(values)} samples")
    bounds = list(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True))
    own_pos = [torch.from_numpy(pos[start:end]) for start, end in bounds]
    own_values = [torch.from_numpy(values[start:end]) for start, end in bounds]
    packed = pack(own_pos, own_values, pos.shape[1], values.shape[1])
    return _existing(packed.pos, packed.values, packed.mask)


def _existing(pos: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None = None) -> Samples:
    """Samples without those whose values are all NaN."""
    missing = values.isnan().all(-1)
    if bool(missing.any()):
        mask = ~missing if mask is None else mask & ~missing
        values = torch.where(missing[..., None], 0.0, values)
    return Samples(pos.double(), values.float(), mask)


def _numbers(arrays: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    if arrays[name].dtype.kind not in "biuf":
        raise ValueError(f"{name} is {arrays[name].dtype}; expected numbers")
    return arrays[name].astype(np.float64)


def _names(arrays: Mapping[str, np.ndarray], name: str, count: int, default: tuple[str, ...]) -> tuple[str, ...]:
    if name not in arrays:
        return default
    names = tuple(map(str, arrays[name].ravel()))
    if len(names) != count or len(set(names)) != count:
        raise ValueError(f"{name} are {', '.join(names)}; expected {count} different names")
    return names
