"""Samples of functions in an .npz file of numpy arrays."""

import math
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fredholm.domains import Grid
from fredholm.tasks.files.array_names import no_array
from fredholm.tasks.files.cache import LARGE
from fredholm.tasks.files.cells import as_kept
from fredholm.tasks.files.mapped import Rows, arrays_of_each_split, is_mapped
from fredholm.tasks.files.npz_arrays import arrays_of_splits, load_arrays, refuse_unread, split_of_rows
from fredholm.tasks.files.read_errors import message_of
from fredholm.tasks.splits.split_files import Split
from fredholm.tasks.splits.split_marks import ARRAYS, SplitMarks, marks_of_arrays
from fredholm.tasks.splits.splits import Splits

from .field_set import CHUNK, FieldSet, Samples, StoredFunctions, pack

ROWS = ("values", "target_values", "trajectories")
"""Arrays with a row per function, which may be large."""
SHARED = ("pos", "target_pos", "coordinates", "channels", "target_channels")
"""Arrays that are equal in all files of a folder."""
KNOWN = (*ROWS, "offsets", "target_offsets", *SHARED, *ARRAYS)
WHOLE = ("split", "is_test", "names", "is_far")
"""Further arrays of files without splits in their names; the last two are in saved predictions, and not used here."""
MOST_NAMELESS = 4
"""Largest length of an axis that may be one of channels; a grid with such an axis, without names, is warned about."""
_AXES = ("x", "y", "z")


def read_npz(path: Path) -> FieldSet | Splits[FieldSet]:
    """Reads arrays, as one set of functions or, where they have one, with their split.

    `values` are `(n, N)` or `(n, N, m)`, at shared points `pos` `(N, s)` or at `(n, N, s)`; with `offsets` `(n + 1,)`
    both are concatenated over functions, `(samples, ...)`, and function i has samples `offsets[i]` to `offsets[i + 1]`.
    Without `pos` the values are on the cell centres of the unit box, `(n, H, W)` or `(n, D, H, W)`, or with channels
    `(n, H, W, m)` and an array `channels` of names. Where the values of all channels are NaN, a sample is missing.

    `target_values`, `target_pos` and `target_offsets` likewise are the target functions, where these are not the
    inputs. `coordinates`, `channels` and `target_channels` are names.

    `trajectories` in place of `values` have a further axis of T + 1 times after the first: the input is the state at
    the first time, the targets are those at the T others. A point exists at all times or never.

    A split is `split` `(n,)` (see `split_of_rows`), or `is_test` `(n,)`; or prefixes `train_`, `valid_` (or `val_`) and
    `test_` of array names, of which only those of training are required. For `groups` and `example_times` `(n,)` see
    `marks_of_arrays`. An .npy file is `values` alone.

    Raises:
        ValueError: the file is invalid, or arrays are missing, unknown or inconsistent. The message names file and
            array.
    """
    arrays = load_arrays(path, alone="values", map_from=LARGE)
    try:
        if parts := arrays_of_splits(arrays, KNOWN, whole=WHOLE):
            found = {split: functions_of_arrays(own, path.name) for split, own in parts.items()}
            return Splits(found["train"], found.get("test"), found.get("valid"))
        whole = functions_of_arrays(arrays, path.name)
        return Splits.of_rows(whole, split_of_rows(arrays, len(whole), is_test=("is_test",)))
    except ValueError as error:
        raise ValueError(message_of(path, error)) from error


def read_npz_shards(folder: Path) -> FieldSet | Splits[FieldSet]:
    """Reads a folder of .npz files, each with `values` or `trajectories`, as one set of functions.

    A split is a word of a name, as in train-00000.npz, train-00001.npz and test-00000.npz (`find_split_files`). Where
    names have none, `split` is read. Otherwise as `read_npz`; positions and names are equal in all files, and all
    functions share their points.

    Raises:
        ValueError: as of `read_npz`, or files are inconsistent.
    """
    parts: dict[Split, FieldSet] = {}
    splits = arrays_of_each_split(folder, what="file of functions", rows=ROWS, shared=SHARED, may_lack=True)
    for split, rows, arrays in splits:
        try:
            refuse_unread(arrays, (*KNOWN, *WHOLE), form="")
            if "offsets" in arrays:
                raise ValueError("has offsets, which are of one file; give each function a row, on points of all")
            found = functions_of_arrays(arrays, "", rows)
            if split is None:
                return Splits.of_rows(found, split_of_rows(arrays, len(found), is_test=("is_test",)))
        except ValueError as error:
            raise ValueError(f"{folder}, {split or 'train'}: {error}") from error
        parts[split] = found
    return Splits(parts["train"], parts.get("test"), parts.get("valid"))


def functions_of_arrays(
    arrays: Mapping[str, np.ndarray], where: str, rows: Mapping[str, Rows] | None = None
) -> FieldSet:
    """Builds functions from the arrays of a file of `read_npz` without a split.

    Args:
        arrays: arrays by name.
        where: origin of the arrays, for messages.
        rows: arrays of `ROWS` in their own files; None: the mapped ones among `arrays`.

    Raises:
        ValueError: arrays are missing or inconsistent.
    """
    if rows is None:
        mapped = {name: arrays[name] for name in ROWS if name in arrays and is_mapped(arrays[name])}
        rows = {name: Rows([array], [where]) for name, array in mapped.items()}
    if "trajectories" in arrays or "trajectories" in rows:
        return _trajectories(arrays, where, rows)
    given = _samples(arrays, "", rows)
    n, dim, channels = len(given.pos), given.pos.shape[-1], given.num_channels
    has_others = "target_values" in arrays or "target_values" in rows
    if has_others and "pos" in arrays and "target_pos" not in arrays:
        raise ValueError(
            "has pos and target_values, and no target_pos; expected where the target values are, "
            f"(N, {dim}), be it pos again"
        )
    targets = _samples(arrays, "target_", rows) if has_others else None
    if targets is not None and (len(targets.pos) != n or targets.pos.shape[-1] != dim):
        named = ""
        if targets.pos.shape[-1] != dim:
            named = "; a last axis of channels needs their names, the array channels or target_channels"
        raise ValueError(
            f"target_values hold {len(targets.pos)} functions of {targets.pos.shape[-1]} coordinates, and values {n} "
            f"of {dim}; expected as many of both{named}"
        )
    return FieldSet(
        given=given,
        other_targets=targets,
        coordinates=_coordinates(arrays, dim),
        channels=_names(arrays, "channels", channels, unnamed_channels(channels)),
        other_channels=()
        if targets is None
        else _names(arrays, "target_channels", targets.num_channels, unnamed_channels(targets.num_channels)),
        names=_function_names(where, n, rows.get("values")),
        marks=_marks(arrays, n),
    )


def _function_names(where: str, n: int, rows: Rows | None) -> tuple[str, ...]:
    places = ((where, i) for i in range(n)) if rows is None else (rows.place(i) for i in range(n))
    return tuple(f"{file}, function {i}" for file, i in places)


def _trajectories(arrays: Mapping[str, np.ndarray], where: str, rows: Mapping[str, Rows]) -> FieldSet:
    name, stored = "trajectories", rows.get("trajectories")
    shape = stored.shape if stored is not None else arrays[name].shape
    for other in ("values", "target_values", "offsets"):
        if other in arrays or other in rows:
            raise ValueError(f"has both trajectories and {other}; leave one out")
    if len(shape) < 3 or shape[1] < 2:
        raise ValueError(f"trajectories is {shape}; expected (n, T + 1, ...) with at least two times")
    num_steps = shape[1] - 1
    pair = None if stored is None or stored.shards is None else _stored_states(stored, arrays)
    if pair is None:
        states = arrays[name] if stored is None else stored[np.arange(len(stored))]
        pair = _states_in_memory(states, arrays)
    given, targets = pair
    channels = _names(arrays, "channels", given.num_channels, unnamed_channels(given.num_channels))
    return FieldSet(
        given=given,
        other_targets=targets,
        coordinates=_coordinates(arrays, given.pos.shape[-1]),
        channels=channels,
        other_channels=tuple(f"{each}, step {t + 1}" for t in range(num_steps) for each in channels),
        names=_function_names(where, shape[0], stored),
        num_steps=num_steps,
        marks=_marks(arrays, shape[0]),
    )


def _states_in_memory(states: np.ndarray, arrays: Mapping[str, np.ndarray]) -> tuple[Samples, Samples]:
    times = [_samples({**arrays, "values": states[:, t]}, "", {}) for t in range(states.shape[1])]
    given = times[0]
    if any(bool((step.exists != given.exists).any()) for step in times):
        raise ValueError("trajectories have NaN at some times of a point and not at others; expected all or none")
    return given, Samples(given.pos, torch.cat([step.values for step in times[1:]], dim=-1), given.mask)


def _stored_states(stored: Rows, arrays: Mapping[str, np.ndarray]) -> tuple[Samples, Samples] | None:
    """Returns the first states and all others as stored values; None where they cannot stay in their files."""
    found = _on_shared_places((stored.shape[0], *stored.shape[2:]), arrays, "")
    if found is None:
        return None
    pos, num_samples, num_channels = found
    steps = stored.shape[1] - 1

    def first(rows: np.ndarray) -> np.ndarray:
        return rows[:, 0].reshape(len(rows), num_samples, num_channels)

    def others(rows: np.ndarray) -> np.ndarray:
        states = rows[:, 1:].reshape(len(rows), steps, num_samples, num_channels)
        return np.moveaxis(states, 1, 2).reshape(len(rows), num_samples, steps * num_channels)

    parts = (
        StoredFunctions(stored, num_samples, num_channels, first),
        StoredFunctions(stored, num_samples, steps * num_channels, others),
    )
    if not all(map(_is_finite, parts)):
        return None
    pos = pos.expand(len(stored), -1, -1)
    return Samples(pos, parts[0], None), Samples(pos, parts[1], None)


def _stored_samples(stored: Rows, arrays: Mapping[str, np.ndarray], prefix: str) -> Samples | None:
    """Returns stored values; None where some are missing, or functions have different points."""
    found = _on_shared_places(stored.shape, arrays, prefix)
    if found is None:
        return None
    pos, num_samples, num_channels = found

    def values(rows: np.ndarray) -> np.ndarray:
        return rows.reshape(len(rows), num_samples, num_channels)

    samples = StoredFunctions(stored, num_samples, num_channels, values)
    return Samples(pos.expand(len(stored), -1, -1), samples, None) if _is_finite(samples) else None


def _on_shared_places(
    shape: tuple[int, ...], arrays: Mapping[str, np.ndarray], prefix: str
) -> tuple[Tensor, int, int] | None:
    """Returns the points `(N, s)` that all functions share, N, and the number m of channels."""
    if f"{prefix}offsets" in arrays or 0 in shape:
        return None
    if f"{prefix}pos" in arrays:
        pos = _numbers(arrays, f"{prefix}pos")
        if pos.ndim != 2 or len(shape) not in (2, 3) or len(pos) != shape[1] or not np.isfinite(pos).all():
            return None
        return torch.from_numpy(pos), shape[1], 1 if len(shape) == 2 else shape[2]
    has_channels = f"{prefix}channels" in arrays
    sides = shape[1:-1] if has_channels else shape[1:]
    if not 1 <= len(sides) <= 3:
        return None
    _check_sides(sides, shape, f"{prefix}values")
    return Grid(*sides).pos.double(), math.prod(sides), shape[-1] if has_channels else 1


def _is_finite(samples: StoredFunctions) -> bool:
    """Whether all values are finite in float32; they are read in parts."""
    size = max(1, math.prod(samples.shape[1:]))
    parts = torch.arange(samples.shape[0]).split(max(1, CHUNK // size))
    return all(bool(samples.select(part).read().isfinite().all()) for part in parts)


def _marks(arrays: Mapping[str, np.ndarray], n: int) -> SplitMarks:
    """Reads groups and times; splits are read by the caller."""
    return replace(marks_of_arrays({name: array for name, array in arrays.items() if name != "split"}, n), given=None)


def _coordinates(arrays: Mapping[str, np.ndarray], dim: int) -> tuple[str, ...]:
    return _names(arrays, "coordinates", dim, unnamed_coordinates(dim))


def unnamed_coordinates(dim: int) -> tuple[str, ...]:
    """Returns default names of coordinates."""
    return _AXES[:dim] if dim <= len(_AXES) else tuple(f"x{i + 1}" for i in range(dim))


def unnamed_channels(count: int) -> tuple[str, ...]:
    """Returns default names of channels."""
    return ("value",) if count == 1 else tuple(f"value {i + 1}" for i in range(count))


def _samples(arrays: Mapping[str, np.ndarray], prefix: str, rows: Mapping[str, Rows]) -> Samples:
    name = f"{prefix}values"
    if (stored := rows.get(name)) is not None:
        if stored.dtype.kind not in "biuf":
            raise _no_numbers(name, stored.dtype)
        if stored.shards is not None and (found := _stored_samples(stored, arrays, prefix)) is not None:
            return found
        arrays = {**arrays, name: stored[np.arange(len(stored))]}
    if name not in arrays:
        raise no_array(name, arrays, KNOWN, "{word}_{name}")
    values = _numbers(arrays, name)
    if f"{prefix}pos" not in arrays:
        return _on_grid(values, name, has_channels=f"{prefix}channels" in arrays)
    pos = _numbers(arrays, f"{prefix}pos")
    if f"{prefix}offsets" in arrays:
        return _joined(pos, values, arrays[f"{prefix}offsets"], prefix)
    if values.ndim == 2:
        values = values[..., None]
    if values.ndim != 3 or pos.shape[:-1] not in (values.shape[:2], values.shape[1:2]):
        single = f"; a single coordinate is an axis too, {(*pos.shape, 1)}" if pos.ndim == 1 else ""
        raise ValueError(
            f"{name} is {arrays[name].shape} and {prefix}pos is {pos.shape}; expected (n, N) or (n, N, m), and (N, s) "
            f"or (n, N, s){single}"
        )
    shared = torch.from_numpy(pos).expand(len(values), -1, -1)
    return _existing(shared, torch.from_numpy(as_kept(values)))


def _on_grid(values: np.ndarray, name: str, *, has_channels: bool) -> Samples:
    shape = values.shape[1:-1] if has_channels else values.shape[1:]
    if values.ndim and not len(values):
        raise ValueError(f"{name} is {values.shape}, which holds no function; expected at least one")
    if not 1 <= len(shape) <= 3 or 0 in values.shape:
        raise ValueError(
            f"{name} is {values.shape} without positions; expected a grid, (n, N), (n, H, W) or (n, D, H, W), with a "
            "last axis of channels where an array names them"
        )
    _check_sides(shape, values.shape, name)
    flat = values.reshape(len(values), -1, values.shape[-1] if has_channels else 1)
    return _existing(Grid(*shape).pos.expand(len(values), -1, -1), torch.from_numpy(as_kept(flat)))


def _check_sides(sides: tuple[int, ...], shape: tuple[int, ...], name: str) -> None:
    """Raises a ValueError for a grid with an axis of one point, and warns of one whose first or last axis is short."""
    named = f"make it the last and name the channels in the array {name.removesuffix('values')}channels"
    if 1 in sides and max(sides) > 1:
        raise ValueError(
            f"{name} is {shape}, a grid with an axis of one point; drop the axis, or, if it is of channels, {named}"
        )
    for own, others in ((sides[0], sides[1:]), (sides[-1], sides[:-1])):
        if others and own <= MOST_NAMELESS and min(others) >= 4 * own:
            read = " x ".join(map(str, sides))
            warnings.warn(
                f"{name} is {shape}, read as functions on {read} points; if an axis is of channels, {named}",
                stacklevel=2,
            )


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
    """Drops samples whose values are all NaN."""
    missing = values.isnan().all(-1)
    if bool(missing.any()):
        mask = ~missing if mask is None else mask & ~missing
        values = torch.where(missing[..., None], 0.0, values)
    return Samples(pos.double(), values, mask)


def _numbers(arrays: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    if arrays[name].dtype.kind not in "biuf":
        raise _no_numbers(name, arrays[name].dtype)
    return arrays[name].astype(np.float64)


def _no_numbers(name: str, kind: np.dtype) -> ValueError:
    parts = ", such as the real and the imaginary parts as two channels" if kind.kind == "c" else ""
    return ValueError(f"{name} is {kind}; expected real numbers{parts}")


def _names(arrays: Mapping[str, np.ndarray], name: str, count: int, default: tuple[str, ...]) -> tuple[str, ...]:
    if name not in arrays:
        return default
    names = tuple(map(str, arrays[name].ravel()))
    if len(names) != count or len(set(names)) != count:
        raise ValueError(f"{name} are {', '.join(names)}; expected {count} different names")
    return names
