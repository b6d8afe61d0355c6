"""Series in an .npz file of numpy arrays."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fredholm.tasks.npz_arrays import arrays_of_split, load_arrays
from fredholm.tasks.parts import choose_part, rows_of_part
from fredholm.tasks.split_files import SPLITS, Split
from fredholm.tasks.splits import Splits

from .naming import ClassNames, unnamed_channels
from .series_set import SeriesSet

_VALUES, _LABELS, _IS_TEST = ("values", "audio"), ("labels", "label"), ("is_test", "suggested_test")


def read_npz(
    path: Path, *, channels: tuple[str, ...] | None = None, classes: tuple[str, ...] | None = None
) -> SeriesSet | Splits[SeriesSet]:
    """Read arrays, as one set of series or, where they tell one, with their split.

    `values` (or `audio`) is `(steps, C)` or `(steps,)` with `offsets` `(n + 1,)`: series i is
    `values[offsets[i]:offsets[i + 1]]`; or `(n, T, C)` or `(n, T)`, with `lengths` `(n,)` where they differ; NaN is
    missing. `labels` (or `label`) `(n,)` are numbers of `classes`, or names. `times` has the shape of `values` without
    channels; or all samples have one `spacing`, or a `sample_rate`, whose inverse it is. `channels` are names.

    A split is `is_test` (or `suggested_test`) `(n,)`, or `train_` and `test_` before the names of the arrays, of which
    those of a test set may be absent.

    An .npy file is read as `values` alone.

    Args:
        path: the file.
        channels: the known ones, as many as the file has; None: the file's.
        classes: the known ones; None: the file's.

    Raises:
        ValueError: it is no such file, or arrays are missing or do not fit together. The message names file and array.
    """
    arrays = load_arrays(path, alone="values")
    try:
        if any(name.startswith("train_") for name in arrays):
            train = _read(path, arrays_of_split(arrays, "train"), channels, classes)
            if not any(name.startswith("test_") for name in arrays):
                return Splits(train)
            test = _read(path, arrays_of_split(arrays, "test"), channels or train.channels, train.classes)
            return Splits(train, test)
        whole = _read(path, arrays, channels, classes)
        named = _find(arrays, _IS_TEST)
        if named is None:
            return whole
        is_test = _checked(named, arrays, (len(whole),), "bool")
        return Splits(*(whole.select(_indices(is_test == of_test)) for of_test in (False, True)))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def read_npz_part(path: Path, *, channels: tuple[str, ...] | None = None, part: Split | None = None) -> SeriesSet:
    """The series of one part of a file of `read_npz`, or all where it has none; labels may be absent.

    Args:
        path: the file.
        channels: see `read_npz`.
        part: see `choose_part`.

    Raises:
        ValueError: see `read_npz`, or there is no such part.
    """
    arrays = load_arrays(path, alone="values")
    present: dict[Split, str] = {split: split for split in SPLITS if any(n.startswith(f"{split}_") for n in arrays)}
    if "train" in present:
        arrays = arrays_of_split(arrays, choose_part(path, present, part))
    try:
        found = _read(path, arrays, channels, None)
        named = None if "train" in present else _find(arrays, _IS_TEST)
        is_test = None if named is None else _checked(named, arrays, (len(found),), "bool")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if "train" in present:
        return found
    split = None if is_test is None else SPLITS.index("test") * torch.from_numpy(is_test).long()
    rows = rows_of_part(path, split, part)
    return found if rows is None else found.select(rows)


def _read(
    path: Path, arrays: Mapping[str, np.ndarray], channels: tuple[str, ...] | None, classes: tuple[str, ...] | None
) -> SeriesSet:
    named = _find(arrays, _VALUES)
    if named is None:
        raise ValueError(f"has no array 'values'; the arrays are {', '.join(arrays) or 'none'}")
    values = arrays[named]
    if values.dtype.kind not in "iuf":
        raise ValueError(f"{named} are {values.dtype}; expected numbers")
    is_joined = "offsets" in arrays
    num_axes = 1 if is_joined else 2
    if values.ndim == num_axes:
        values = values[..., None]
    if values.ndim != num_axes + 1:
        expected = "(steps, C) beside offsets" if is_joined else "(n, T, C) without offsets"
        raise ValueError(f"{named} have shape {arrays[named].shape}; expected {expected}")
    times = _checked("times", arrays, values.shape[:num_axes], "f", "iu") if "times" in arrays else None
    bounds = _bounds(arrays, values)
    numbers, names_of_classes = _labels(arrays, len(bounds), classes)
    if channels is None and "channels" in arrays:
        channels = tuple(map(str, arrays["channels"].ravel()))
    return SeriesSet.pack(
        [values[bound] for bound in bounds],
        times=None if times is None else [times[bound].astype(np.float64) for bound in bounds],
        spacing=_spacing(arrays),
        labels=numbers,
        classes=names_of_classes,
        channels=unnamed_channels(values.shape[-1], channels),
        names=tuple(f"{path.name}, series {i}" for i in range(len(bounds))),
    )


def _bounds(arrays: Mapping[str, np.ndarray], values: np.ndarray) -> list[slice | tuple[int, slice]]:
    """Where each series lies in `values`."""
    if "offsets" in arrays:
        offsets = _checked("offsets", arrays, (len(arrays["offsets"].ravel()),), "iu").astype(np.int64)
        if len(offsets) < 1 or offsets[0] != 0 or offsets[-1] != len(values) or (np.diff(offsets) < 0).any():
            raise ValueError(f"offsets do not rise from 0 to the {len(values)} steps of the values")
        return [slice(start, end) for start, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]
    n, longest = values.shape[:2]
    lengths = _checked("lengths", arrays, (n,), "iu") if "lengths" in arrays else np.full(n, longest)
    for i in np.flatnonzero((lengths < 0) | (lengths > longest))[:1]:
        raise ValueError(f"lengths[{i}] is {lengths[i]}; the values have {longest} steps")
    return [(i, slice(0, length)) for i, length in enumerate(lengths.tolist())]


def _labels(
    arrays: Mapping[str, np.ndarray], n: int, known: tuple[str, ...] | None
) -> tuple[list[int] | None, tuple[str, ...]]:
    named = _find(arrays, _LABELS)
    if named is None:
        return None, known or ()
    labels = _checked(named, arrays, (n,), "iu", "U")
    if "classes" not in arrays or labels.dtype.kind == "U":
        words = list(map(str, labels.tolist()))
    else:
        given = tuple(map(str, arrays["classes"].ravel()))
        for i in np.flatnonzero((labels < 0) | (labels >= len(given)))[:1]:
            raise ValueError(f"{named}[{i}] is {labels[i]}, but there are {len(given)} classes")
        words = [given[label] for label in labels.tolist()]
        known = known or given
    names = ClassNames(known)
    for i, word in enumerate(words):
        try:
            names.check(word)
        except ValueError as error:
            raise ValueError(f"{named}[{i}]: {error}") from error
    return names.number(words)


def _spacing(arrays: Mapping[str, np.ndarray]) -> float:
    for name in ("spacing", "sample_rate"):
        if name in arrays:
            value = float(_checked(name, arrays, (), "f", "iu"))
            if not 0 < value < np.inf:
                raise ValueError(f"{name} is {value}; expected a finite number above 0")
            return value if name == "spacing" else 1 / value
    return 1.0


def _checked(name: str, arrays: Mapping[str, np.ndarray], shape: tuple[int, ...], *kinds: str) -> np.ndarray:
    array, wanted = arrays[name], "".join(kinds).replace("bool", "b")
    if array.shape != shape or array.dtype.kind not in wanted:
        expected = {"b": "bool", "i": "integers", "u": "integers", "f": "numbers", "U": "names"}
        words = " or ".join(dict.fromkeys(expected[kind] for kind in wanted))
        raise ValueError(f"{name} is {array.dtype} {array.shape}; expected {words} {shape}")
    return array


def _find(arrays: Mapping[str, np.ndarray], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if name in arrays), None)


def _indices(chosen: np.ndarray) -> Tensor:
    return torch.from_numpy(np.flatnonzero(chosen))
