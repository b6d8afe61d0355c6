"""Clouds in an .npz file of numpy arrays."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from fredholm.tasks.files.array_names import no_array, refuse_twice
from fredholm.tasks.files.cells import FINITE, LARGEST
from fredholm.tasks.files.channel_names import chosen_channels
from fredholm.tasks.files.npz_arrays import load_arrays, refuse_unread, split_words
from fredholm.tasks.files.read_errors import message_of
from fredholm.tasks.splits.split_files import Split
from fredholm.tasks.splits.split_marks import ARRAYS, SplitMarks, marks_of_arrays
from fredholm.tasks.targets import NumberAnswers

from .point_set import Cloud, PointSet

_POINTS = ("x", "points")
_OF_CLOUDS = (*_POINTS, "mask", "lengths", "offsets", "weights", "labels")
_OF_ANSWERS = ("y", "targets", *ARRAYS)
_SHARED = ("channels", "point_classes", "target_names")


def read_npz(
    path: Path,
    *,
    channels: tuple[str, ...] | None = None,
    classes: tuple[str, ...] | None = None,
    point_classes: tuple[str, ...] | None = None,
) -> PointSet:
    """Read arrays, with their split where they have one.

    `x` (or `points`) is `(n, N, 3 + F)`, with `mask` `(n, N)`, True = this point exists, or `lengths` `(n,)` where they
    differ; `(total, 3 + F)` with `offsets` `(n + 1,)` or `lengths` `(n,)`, cloud after cloud; or `(N, 3 + F)`, one
    cloud. Coordinates come first, then features. `y` `(n,)` are numbers of `classes`, or names; or `targets` `(n,)` or
    `(n, T)` are numbers to predict of clouds, with names `target_names`. `labels`, the classes of points, and `weights`
    have the shape of `x` without its last axis; labels are numbers of `point_classes`, or names. `channels` are the
    names of the features.

    `split`, `groups` and `example_times`, one per cloud: see `marks_of_arrays`. Or a split is `_train`, `_valid` (or
    `_val`) and `_test` after the names of the arrays, of which only those of training are required; `classes`,
    `point_classes`, `channels` and `target_names` are shared.

    An .npy file is read as `x` alone.

    Args:
        path: the file.
        channels: the features to read, in this order, or, where the file does not name them, their names; None: all.
        classes: the known classes of clouds; None: the file's.
        point_classes: likewise of points.

    Raises:
        ValueError: it is no such file, or arrays are missing, unknown or do not fit together. The message names file
            and array.
    """
    arrays = load_arrays(path, alone="x")
    try:
        return _read(path, arrays, channels, classes, point_classes)
    except ValueError as error:
        raise ValueError(message_of(path, error)) from error


def clouds_of_npz(path: Path, channels: tuple[str, ...] | None = None) -> list[Cloud]:
    """The clouds of a file without a split; classes are ignored. Otherwise as `read_npz`."""
    arrays = load_arrays(path)
    try:
        refuse_unread(arrays, (*_OF_CLOUDS, *_OF_ANSWERS, "split", *_SHARED, "classes"))
        return _clouds(path, arrays, "", channels)
    except ValueError as error:
        raise ValueError(message_of(path, error)) from error


def _read(
    path: Path,
    arrays: Mapping[str, np.ndarray],
    channels: tuple[str, ...] | None,
    classes: tuple[str, ...] | None,
    point_classes: tuple[str, ...] | None,
) -> PointSet:
    clouds: list[Cloud] = []
    labels: list[str] = []
    numbers: list[np.ndarray | None] = []
    marks: dict[Split, tuple[int, SplitMarks]] = {}
    endings = _endings(arrays)
    _points(arrays, endings["train"])  # missing arrays are reported before unread ones
    of_clouds, shared = ("x", *_OF_ANSWERS, *_OF_CLOUDS[1:]), (*_SHARED, "classes")
    if endings["train"]:
        refuse_unread(arrays, shared, of_splits=of_clouds, besides=("split",))
    else:
        refuse_unread(arrays, (*of_clouds, "split", *shared))
    for part, ending in endings.items():
        found = _clouds(path, arrays, ending, channels)
        clouds += found
        marks[part] = len(found), marks_of_arrays(arrays, len(found), end=ending)
        labels += _classes(arrays, ending, len(found))
        numbers.append(_numbers(arrays, ending, len(found)))
    known = [each for each in numbers if each is not None]
    if known and len(known) < len(numbers):
        expected = ", ".join(f"targets{ending}" for ending in endings.values())
        raise ValueError(f"has some of {expected}, but not all; give every split its numbers, or none")
    if known and labels:
        raise ValueError("has y and targets; a run predicts one of them: leave the other out")
    if labels and len(labels) < len(clouds):
        expected = ", ".join(f"y{ending}" for ending in endings.values())
        raise ValueError(f"has some of {expected}, but not all; give every split its classes, or none")
    if classes is None and "classes" in arrays:
        classes = tuple(map(str, arrays["classes"].ravel()))
    if point_classes is None and "point_classes" in arrays:
        point_classes = tuple(map(str, arrays["point_classes"].ravel()))
    return PointSet.pack(
        clouds,
        labels=labels or None,
        classes=classes,
        numbers=_answers(arrays, known),
        point_classes=point_classes,
        marks=SplitMarks.joined(marks) if endings["train"] else marks["train"][1],
    )


def _endings(arrays: Mapping[str, np.ndarray]) -> dict[Split, str]:
    """The ending of the array names of each split; "" where there is no split."""
    if not any(f"{name}_train" in arrays for name in _POINTS):
        return {"train": ""}
    words = split_words(lambda word: any(f"{name}_{word}" in arrays for name in _POINTS))
    return {split: f"_{word}" for split, word in words.items()}


def _classes(arrays: Mapping[str, np.ndarray], ending: str, count: int) -> list[str]:
    """The class of each cloud of a split; empty where there are none."""
    y = arrays.get(f"y{ending}")
    if y is None:
        return []
    if y.shape != (count,) or y.dtype.kind not in "iuU":
        hint = "; numbers to predict are called targets" if y.dtype.kind == "f" else ""
        raise ValueError(f"y{ending} is {y.dtype} {y.shape}; expected integers or names ({count},), one a cloud{hint}")
    names = _named(y, f"y{ending}", arrays, "classes").tolist()
    if "" in names:
        raise ValueError(f"y{ending}[{names.index('')}] is empty; name the class of each cloud, or leave the cloud out")
    return names


def _numbers(arrays: Mapping[str, np.ndarray], ending: str, count: int) -> np.ndarray | None:
    """The targets of the clouds of a split, float64 `(n, T)`; None: there are none."""
    name = f"targets{ending}"
    given = arrays.get(name)
    if given is None:
        return None
    if given.dtype.kind not in "iuf" or given.ndim not in (1, 2) or len(given) != count or given.size < count:
        raise ValueError(f"{name} is {given.dtype} {given.shape}; expected numbers ({count},) or ({count}, T)")
    values = given.reshape(count, -1).astype(np.float64)
    for i, t in np.argwhere(~(np.abs(values) <= LARGEST))[:1].tolist():
        raise ValueError(f"{name}[{i}, {t}] is {values[i, t]:g}; expected {FINITE}")
    return values


def _answers(arrays: Mapping[str, np.ndarray], known: Sequence[np.ndarray]) -> NumberAnswers | None:
    """The targets of all splits, concatenated, with their names."""
    if not known:
        if "target_names" in arrays:
            raise ValueError("has target_names, but no targets; leave them out, or give targets")
        return None
    widths = list(dict.fromkeys(each.shape[1] for each in known))
    if len(widths) > 1:
        raise ValueError(f"targets have {' and '.join(map(str, widths))} columns in different splits; make them equal")
    names = ("target",) if widths == [1] else tuple(f"target_{t}" for t in range(widths[0]))
    if "target_names" in arrays:
        names = tuple(map(str, arrays["target_names"].ravel()))
        if len(names) != widths[0]:
            raise ValueError(f"has {len(names)} target_names for {widths[0]} columns of targets; give each one")
    return NumberAnswers(names=names, values=torch.from_numpy(np.concatenate(known)))


def _points(arrays: Mapping[str, np.ndarray], split: str) -> str:
    """The name of the array of points."""
    names = [f"{name}{split}" for name in _POINTS]
    refuse_twice(arrays, names)
    named = next((name for name in names if name in arrays), None)
    if named is None:
        raise no_array(f"x{split}", arrays, ("x", *_OF_ANSWERS, *_OF_CLOUDS), "{name}_{word}")
    return named


def _clouds(path: Path, arrays: Mapping[str, np.ndarray], split: str, channels: tuple[str, ...] | None) -> list[Cloud]:
    named = _points(arrays, split)
    x = arrays[named]
    if x.dtype.kind not in "iuf" or x.ndim not in (2, 3) or x.shape[-1] < 3:
        expected = "numbers (n, N, 3 + features) or (total, 3 + features)"
        raise ValueError(f"{named} is {x.dtype} {x.shape}; expected {expected}")
    own = tuple(map(str, arrays["channels"].ravel())) if "channels" in arrays else None
    try:
        names, places = chosen_channels(x.shape[-1] - 3, own=own, known=channels, what="feature")
    except ValueError as error:
        raise ValueError(f"{named} {error}") from error
    features = x[..., 3:] if places is None else x[..., [3 + place for place in places]]
    weights = _of_points("weights", arrays, split, x, "f", "iu")
    labels = _of_points("labels", arrays, split, x, "iu", "U")
    clouds = [
        Cloud(
            pos=x[at][:, :3],
            features=features[at],
            channels=names,
            weights=None if weights is None else weights[at],
            point_labels=None if labels is None else _named(labels[at], f"labels{split}", arrays, "point_classes"),
            name=f"{path}:{named}[{i}]",
        )
        for i, at in enumerate(_where(arrays, split, x))
    ]
    if not clouds:
        raise ValueError(f"{named} has no clouds; expected at least one")
    return clouds


def _where(arrays: Mapping[str, np.ndarray], split: str, x: np.ndarray) -> list[tuple[np.ndarray | slice | int, ...]]:
    """The rows of `x` with the points of each cloud."""
    mask, lengths, offsets = (arrays.get(f"{name}{split}") for name in ("mask", "lengths", "offsets"))
    given = [name for name, array in (("mask", mask), ("lengths", lengths), ("offsets", offsets)) if array is not None]
    if len(given) > 1 or (mask is not None and x.ndim == 2) or (offsets is not None and x.ndim == 3):
        arrays_given = f"{' and '.join(given)} of x {x.shape}"
        raise ValueError(
            f"{arrays_given}; give mask or lengths of padded clouds, and offsets or lengths of joined ones"
        )
    if mask is not None:
        if mask.shape != x.shape[:2] or mask.dtype.kind != "b":
            raise ValueError(f"mask{split} is {mask.dtype} {mask.shape}; expected bool {x.shape[:2]}")
        return [(i, np.flatnonzero(there)) for i, there in enumerate(mask)]
    for name, array in (("lengths", lengths), ("offsets", offsets)):
        if array is not None and (array.dtype.kind not in "iu" or array.ndim != 1 or bool((array < 0).any())):
            raise ValueError(f"{name}{split} is {array.dtype} {array.shape}; expected integers from 0 on")
    if x.ndim == 3:
        sizes = np.full(len(x), x.shape[1]) if lengths is None else lengths
        if sizes.shape != (len(x),) or bool((sizes > x.shape[1]).any()):
            raise ValueError(f"lengths{split} do not fit {len(x)} clouds of up to {x.shape[1]} points")
        return [(i, slice(0, int(size))) for i, size in enumerate(sizes)]
    if offsets is None:
        offsets = np.array([0, len(x)]) if lengths is None else np.concatenate([[0], np.cumsum(lengths)])
    if len(offsets) < 1 or offsets[0] != 0 or offsets[-1] != len(x) or (np.diff(offsets.astype(np.int64)) < 0).any():
        source = f"lengths{split} do not add up" if lengths is not None else f"offsets{split} do not rise from 0"
        raise ValueError(f"{source} to the {len(x)} points")
    return [(slice(int(start), int(end)),) for start, end in itertools.pairwise(offsets)]


def _of_points(
    name: str, arrays: Mapping[str, np.ndarray], split: str, x: np.ndarray, *kinds: str
) -> np.ndarray | None:
    array = arrays.get(f"{name}{split}")
    if array is not None and (array.shape != x.shape[:-1] or array.dtype.kind not in "".join(kinds)):
        raise ValueError(f"{name}{split} is {array.dtype} {array.shape}; expected one a point, {x.shape[:-1]}")
    return array


def _named(labels: np.ndarray, name: str, arrays: Mapping[str, np.ndarray], classes: str) -> np.ndarray:
    """Labels as class names: numbers are looked up in the array `classes`, if there is one; names stay."""
    if labels.dtype.kind == "U" or classes not in arrays:
        return labels.astype(str)
    known = arrays[classes].ravel().astype(str)
    if labels.size and not 0 <= int(labels.min()) <= int(labels.max()) < len(known):
        wrong = labels[(labels < 0) | (labels >= len(known))].ravel()[0]
        raise ValueError(f"{name} has {wrong}, but there are {len(known)} {classes.replace('_', ' ')}")
    return known[labels]
