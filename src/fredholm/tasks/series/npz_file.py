"""Series in .npz files of numpy arrays."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from fredholm.tasks.files.array_names import no_array, refuse_twice
from fredholm.tasks.files.cache import LARGE
from fredholm.tasks.files.channel_names import chosen_channels
from fredholm.tasks.files.mapped import Rows, arrays_of_each_split, is_mapped
from fredholm.tasks.files.npz_arrays import arrays_of_splits, load_arrays, refuse_unread, split_of_rows
from fredholm.tasks.files.parts import choose_part, rows_of_part
from fredholm.tasks.files.read_errors import message_of
from fredholm.tasks.splits.split_files import Split
from fredholm.tasks.splits.split_marks import ARRAYS, SplitMarks, marks_of_arrays
from fredholm.tasks.splits.splits import Splits
from fredholm.tasks.targets import Answers, answers_of_array

from .sample_labels import SampleLabels, sample_labels
from .series_set import LabelReading, Series, SeriesSet
from .stored_series import MappedSeries

SHARED = ("classes", "target_names", "channels", "spacing", "sample_rate")
"""Arrays without a row for each series."""
_VALUES, _LABELS, _IS_TEST = ("values", "audio"), ("labels", "label"), ("is_test", "suggested_test")
_KNOWN = (*_VALUES, "offsets", "lengths", "times", *_LABELS, "targets", *ARRAYS, *SHARED)
_UNUSED = ("speaker", "speaker_names", "index", "unlabeled_values", "unlabeled_offsets")
"""Further arrays in the published files of Character Trajectories and of the Free Spoken Digit Dataset."""
_WHOLE = ("split", *_IS_TEST, *_UNUSED)


def read_npz(
    path: Path, *, channels: tuple[str, ...] | None = None, reading: LabelReading | None = None
) -> Series | Splits[Series]:
    """Read arrays as one set of series, or as splits where the arrays give one.

    `values` (or `audio`) is `(steps, C)` or `(steps,)` with `offsets` `(n + 1,)`: series i is
    `values[offsets[i]:offsets[i + 1]]`; or `(n, T, C)` or `(n, T)`, with `lengths` `(n,)` where they differ; NaN is
    missing. `labels` (or `label`) `(n,)` are numbers of `classes`, or names; `(n, L)` of 0 and 1 say which of the L
    labels that `classes` names a series has. `labels` of the shape of `values` without channels are the classes of
    samples: numbers of `classes`, -1 where unknown; other whole numbers, NaN where unknown; or names. `targets` `(n,)`
    or `(n, T)` are numbers to predict, whose names are `target_names`. `groups` `(n,)` name series that are split
    together. `times` has the shape of `values` without channels; or all samples have one `spacing`, or its inverse, a
    `sample_rate`. `channels` are names.

    A split is `split` `(n,)`, the words train, valid and test; `is_test` (or `suggested_test`) `(n,)`; or the prefixes
    `train_` and `test_` of the names of arrays, where arrays of the test set may be absent.

    An .npy file is read as `values` alone. Large `values` `(n, T, C)` or `(n, T)` that are not compressed stay in the
    file, unless there are `times` or labels of samples.

    Args:
        path: the file.
        channels: channels to read, in this order, or the names of all where the file does not name them; None: all.
        reading: kind and names of the labels, see `answers_of_array`; None: labels, targets and groups are ignored.

    Raises:
        ValueError: the file is none of numpy arrays, or arrays are missing, unknown or do not fit together. The message
            names file and array.
    """
    arrays = load_arrays(path, alone="values", map_from=LARGE)
    try:
        if parts := arrays_of_splits(arrays, _KNOWN, whole=_WHOLE):
            train = _read(path, parts.pop("train"), channels, reading)
            known = None if reading is None else reading.after(train)
            others = {split: _read(path, own, channels or train.channels, known) for split, own in parts.items()}
            return Splits[Series](train, others.get("test"), others.get("valid"))
        whole = _read(path, arrays, channels, reading)
        return Splits.of_rows(whole, split_of_rows(arrays, len(whole), is_test=_IS_TEST))
    except ValueError as error:
        raise ValueError(message_of(path, error)) from error


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
    try:
        present = arrays_of_splits(arrays, _KNOWN, whole=_WHOLE)
        if present:
            arrays = present[choose_part(path, present, part)]
        found = _read(path, arrays, channels, None).in_memory()
        split = None if present else split_of_rows(arrays, len(found), is_test=_IS_TEST)
    except ValueError as error:
        raise ValueError(message_of(path, error)) from error
    if present:
        return found
    rows = rows_of_part(path, split, part)
    return found if rows is None else found.select(rows)


def read_npz_alone(path: Path, *, channels: tuple[str, ...] | None = None) -> SeriesSet:
    """Reads a file with one series: `values` `(T,)` or `(T, C)`, with `times` `(T,)`; or the arrays of `read_npz`.

    Args:
        path: the file; an .npy file is read as `values` alone.
        channels: see `read_npz`.

    Raises:
        ValueError: see `read_npz_part`, or there are several series.
    """
    arrays = load_arrays(path, alone="values")
    try:
        named = _find(arrays, _VALUES)
        if named is not None and arrays[named].ndim < 3 and "offsets" not in arrays and "lengths" not in arrays:
            arrays["offsets"] = np.array([0, len(np.atleast_1d(arrays[named]))])
        return _read(path, arrays, channels, None).in_memory()
    except ValueError as error:
        raise ValueError(message_of(path, error)) from error


def read_npz_shards(folder: Path, *, reading: LabelReading) -> Series | Splits[Series]:
    """Read .npz files with `values` `(n, T, C)` or `(n, T)` each, which are one data set.

    A split is a word of a file's name, as in train-00000.npz, train-00001.npz and test-00000.npz (`find_split_files`).
    Otherwise as `read_npz`; names and the spacing are the same in all files.

    Args:
        folder: folder of the files.
        reading: see `read_npz`.

    Raises:
        ValueError: `read_npz` refuses a file, or files do not fit together.
    """
    parts: dict[Split, Series] = {}
    splits = arrays_of_each_split(folder, what="series file", rows=("values",), shared=SHARED)
    for split, large, arrays in splits:
        rows = large["values"]
        train = parts.get("train")
        known = reading if train is None else reading.after(train)
        try:
            refuse_unread(arrays, (*_KNOWN, *_WHOLE), form="")
            if "offsets" in arrays:
                raise ValueError(
                    "has offsets, which are of one file; give each series a row, and its length in lengths"
                )
            found = _read(folder, arrays, None if train is None else train.channels, known, rows)
            if split is None:
                return Splits.of_rows(found, split_of_rows(arrays, len(rows), is_test=_IS_TEST))
        except ValueError as error:
            raise ValueError(f"{folder}, {split or 'train'}: {error}") from error
        parts[split] = found
    return Splits[Series](parts["train"], parts.get("test"), parts.get("valid"))


def _read(
    path: Path,
    arrays: Mapping[str, np.ndarray],
    channels: tuple[str, ...] | None,
    reading: LabelReading | None,
    rows: Rows | None = None,
) -> Series:
    """The series of some arrays; `rows`, if given, are their `values`."""
    if rows is not None:
        if rows.shards is not None and "times" not in arrays and not _of_samples(arrays, rows.shape[:2], reading):
            return _stored(rows, "values", arrays, channels, reading)
        arrays = {"values": rows[np.arange(len(rows))], **arrays}
    refuse_twice(arrays, _VALUES, _LABELS, _IS_TEST)
    named = _find(arrays, _VALUES)
    if named is None:
        raise no_array("values", arrays, _KNOWN)
    values = arrays[named]
    is_joined = "offsets" in arrays
    labels_samples = _of_samples(arrays, values.shape[: 1 if is_joined else 2], reading)
    if is_mapped(values) and not is_joined and "times" not in arrays and not labels_samples:
        return _stored(Rows([values], [path.name]), named, arrays, channels, reading)
    _check_numbers(values, named)
    num_axes = 1 if is_joined else 2
    if values.ndim == num_axes:
        values = values[..., None]
    if values.ndim != num_axes + 1:
        expected = "(steps, C) beside offsets" if is_joined else "(n, T, C) without offsets"
        raise ValueError(f"{named} have shape {arrays[named].shape}; expected {expected}")
    times = _checked("times", arrays, values.shape[:num_axes], "f", "iu") if "times" in arrays else None
    bounds = _bounds(arrays, values)
    names, columns = chosen_channels(values.shape[-1], own=_own_channels(arrays), known=channels)
    if columns is not None:
        values = values[..., columns]
    return SeriesSet.pack(
        [values[bound] for bound in bounds],
        times=None if times is None else [times[bound].astype(np.float64) for bound in bounds],
        spacing=_spacing(arrays),
        answers=None if reading is None or labels_samples else _answers(arrays, len(bounds), reading),
        sample_labels=_labels_of_samples(arrays, bounds, reading) if reading is not None and labels_samples else None,
        channels=names,
        names=tuple(f"{path.name}, series {i}" for i in range(len(bounds))),
        marks=None if reading is None else marks_of_arrays(arrays, len(bounds)),
    )


def _own_channels(arrays: Mapping[str, np.ndarray]) -> tuple[str, ...] | None:
    return tuple(map(str, arrays["channels"].ravel())) if "channels" in arrays else None


def _check_numbers(values: np.ndarray | Rows, named: str) -> None:
    if values.dtype.kind not in "iuf":
        raise ValueError(f"{named} are {values.dtype}; expected numbers")


def _stored(
    rows: Rows,
    named: str,
    arrays: Mapping[str, np.ndarray],
    channels: tuple[str, ...] | None,
    reading: LabelReading | None,
) -> MappedSeries:
    """Series in rows, which are read once to be checked."""
    _check_numbers(rows, named)
    if len(rows.shape) not in (2, 3):
        raise ValueError(f"{named} have shape {rows.shape}; expected (n, T, C) without offsets")
    n, longest, count = (*rows.shape, 1)[:3]
    names, columns = chosen_channels(count, own=_own_channels(arrays), known=channels)
    return MappedSeries(
        rows=rows,
        columns=columns,
        places=torch.arange(n),
        lengths=torch.from_numpy(_lengths(arrays, n, longest).astype(np.int64)),
        spacing=_spacing(arrays),
        answers=None if reading is None else _answers(arrays, n, reading),
        channels=names,
        names=tuple("{}, series {}".format(*rows.place(i)) for i in range(n)),
        marks=SplitMarks() if reading is None else marks_of_arrays(arrays, n),
    ).check()


def _bounds(arrays: Mapping[str, np.ndarray], values: np.ndarray) -> list[slice | tuple[int, slice]]:
    """The place of each series in `values`."""
    if "offsets" in arrays:
        offsets = _checked("offsets", arrays, (len(arrays["offsets"].ravel()),), "iu").astype(np.int64)
        if len(offsets) < 1 or offsets[0] != 0 or offsets[-1] != len(values) or (np.diff(offsets) < 0).any():
            raise ValueError(f"offsets do not rise from 0 to the {len(values)} steps of the values")
        return [slice(start, end) for start, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]
    lengths = _lengths(arrays, *values.shape[:2])
    return [(i, slice(0, length)) for i, length in enumerate(lengths.tolist())]


def _lengths(arrays: Mapping[str, np.ndarray], n: int, longest: int) -> np.ndarray:
    """The length of each of n series, at most `longest`."""
    lengths = _checked("lengths", arrays, (n,), "iu") if "lengths" in arrays else np.full(n, longest)
    for i in np.flatnonzero((lengths < 0) | (lengths > longest))[:1]:
        raise ValueError(f"lengths[{i}] is {lengths[i]}; the values have {longest} steps")
    return lengths


def _answers(arrays: Mapping[str, np.ndarray], n: int, reading: LabelReading) -> Answers | None:
    named = _find(arrays, (*_LABELS, "targets"))
    if named is None:
        return None
    if named != "targets" and "targets" in arrays:
        raise ValueError(f"has {named} and targets; leave one of them out")
    values = arrays[named]
    if values.shape[:1] != (n,):
        raise ValueError(
            f"{named} is {values.dtype} {values.shape}; expected one of each of the {n} series, or labels of the shape "
            "of the values without channels, one of each sample"
        )
    kind = "number" if named == "targets" and reading.kind is None else reading.of_series
    if kind in (None, "class") and values.ndim == 1 and values.dtype.kind in "iu" and "classes" not in arrays:
        values = values.astype(np.str_)  # any integers; those that occur are the classes
    return answers_of_array(
        values,
        named,
        kind,
        classes=arrays.get("classes"),
        labels=arrays.get("classes"),
        numbers=arrays.get("target_names"),
        known=reading.names,
    )


def _of_samples(arrays: Mapping[str, np.ndarray], shape: tuple[int, ...], reading: LabelReading | None) -> bool:
    """Whether labels are of samples, for values of a shape without channels.

    Raises:
        ValueError: they should be, and are not; or they may be labels of series too.
    """
    named = _find(arrays, _LABELS)
    if reading is None or reading.kind not in (None, "samples") or named is None:
        if reading is not None and reading.kind == "samples":
            raise ValueError(f"has no labels; target 'samples' expects one of each sample, {shape}")
        return False
    labels = arrays[named]
    n = len(arrays["offsets"]) - 1 if "offsets" in arrays else shape[0]
    if reading.kind == "samples":
        if labels.shape != shape or labels.dtype.kind not in "biufU":
            raise ValueError(
                f"{named} is {labels.dtype} {labels.shape}; target 'samples' expects one of each sample, {shape}"
            )
        return True
    fits = labels.shape == shape and shape != (n,)
    if fits and labels.ndim == 2 and shape[1] == len(arrays.get("classes", ())) and bool(np.isin(labels, (0, 1)).all()):
        raise ValueError(
            f"{named} {labels.shape} may say which of {shape[1]} labels each series has, or be the classes of samples; "
            "set target to 'labels' or to 'samples'"
        )
    return fits


def _labels_of_samples(
    arrays: Mapping[str, np.ndarray], bounds: Sequence[slice | tuple[int, slice]], reading: LabelReading
) -> SampleLabels:
    """The classes of the samples of each series."""
    named = _find(arrays, _LABELS)
    assert named is not None
    labels, classes = arrays[named], reading.names
    if labels.dtype.kind == "f":
        odd = np.isfinite(labels) & (labels != np.floor(labels)) | np.isinf(labels)
        if odd.any():
            raise ValueError(f"{named} has {labels[odd][0]:g}; expected classes: whole numbers, NaN where unknown")
    if "classes" in arrays:
        classes = tuple(map(str, arrays["classes"].ravel()))
    elif labels.dtype.kind in "if" and bool((labels == -1).any()):
        raise ValueError(
            f"{named} has -1, which may be a class or mark unknown ones; name the classes in an array classes (-1 is "
            "then unknown), or write classes as texts"
        )

    def place(i: int, k: int) -> str:
        return f"{named} of series {i}, sample {k}"

    def texts(own: np.ndarray) -> np.ndarray:
        if own.dtype.kind == "U":
            return own
        known = np.isfinite(own) & ((own != -1) | (own.dtype.kind == "b"))
        numbers = np.where(known, own, 0).astype(np.int64)
        if "classes" not in arrays:
            return np.where(known, numbers.astype(np.str_), "")
        assert classes is not None
        if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(classes):
            wrong = numbers[(numbers < 0) | (numbers >= len(classes))][0]
            raise ValueError(f"{named} has {wrong}; there are {len(classes)} classes, from 0 on, and -1 is unknown")
        return np.where(known, np.array(classes, np.str_)[numbers], "")

    return sample_labels([texts(labels[bound]) for bound in bounds], classes, place)


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
