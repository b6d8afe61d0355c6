"""The PhysioNet / Computing in Cardiology Challenge 2012: in-hospital deaths of intensive-care patients."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from fredholm.tasks.files.npz_arrays import load_arrays, needed_array
from fredholm.tasks.splits.splits import Splits
from fredholm.tasks.targets import ClassAnswers

from .series_set import SeriesSet

_FILES = ("set-a.npz", "set-b.npz")
_NUM_UNITS = 4  # kinds of intensive care
_OUTCOME, _UNIT = "In-hospital_death", "ICUType"


def is_physionet_2012(folder: Path) -> bool:
    """Whether the folder holds the challenge's sets a and b."""
    return folder.is_dir() and all((folder / name).is_file() for name in _FILES)


def physionet_2012(folder: str | Path) -> Splits[SeriesSet]:
    """Sets a (training) and b (test), 4,000 stays each; Silva et al., Computing in Cardiology 39, 2012.

    A stay is one series of its first 48 hours, with a sample at every time of any of its measurements; times are hours.
    Channels are the 37 variables, missing where they were not measured then (of two values at one time the later
    counts), and the facts known at admission, the same at all samples: age, gender, height, weight, and one channel for
    each of the 4 kinds of intensive care. A stay without measurements has one sample, at time 0.

    Args:
        folder: folder with `set-a.npz` and `set-b.npz`. Each has events `time_min`, `var` (an index into `var_names`)
            and `value`, with those of stay i from `offsets[i]` to `offsets[i + 1]`; `static`, -1 where unknown; and
            `outcomes`.

    Raises:
        ValueError: a file cannot be read, or lacks an array.
    """
    return Splits(*(_read(Path(folder) / name) for name in _FILES))


def _read(path: Path) -> SeriesSet:
    names = ("offsets", "time_min", "var", "value", "var_names", "static", "static_names", "outcomes", "outcome_names")
    arrays = load_arrays(path)
    if absent := [name for name in names if name not in arrays]:
        raise ValueError(f"{path}: has no array {', '.join(absent)}; expected those of the challenge")
    try:
        return _stays(path, arrays)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _stays(path: Path, arrays: Mapping[str, np.ndarray]) -> SeriesSet:
    variables = tuple(map(str, needed_array(arrays, "var_names", "U", None)))
    offsets = needed_array(arrays, "offsets", "iu", None).astype(np.int64)
    minutes_of_all = needed_array(arrays, "time_min", "biuf", None)
    events = len(minutes_of_all)
    var, value = needed_array(arrays, "var", "iu", events), needed_array(arrays, "value", "biuf", events)
    if not len(offsets) or offsets[0] != 0 or offsets[-1] != events or (np.diff(offsets) < 0).any():
        raise ValueError(f"offsets do not rise from 0 to the {events} events")
    for i in np.flatnonzero((var < 0) | (var >= len(variables)))[:1].tolist():
        raise ValueError(f"var[{i}] is {var[i]}, but there are {len(variables)} variables")
    stays, names = len(offsets) - 1, list(map(str, needed_array(arrays, "outcome_names", "U", None)))
    outcomes = needed_array(arrays, "outcomes", "iu", stays, len(names))
    of_stays = list(map(str, needed_array(arrays, "static_names", "U", None)))
    for name, those in ((_OUTCOME, names), (_UNIT, of_stays)):
        if name not in those:
            raise ValueError(f"has no {name}; it has {', '.join(those) or 'none'}")
    known, static = _static(needed_array(arrays, "static", "biuf", stays, len(of_stays)).astype(np.float64), of_stays)
    values, times = [], []
    for i, (start, stop) in enumerate(pairwise(offsets.tolist())):
        minutes, places = np.unique(minutes_of_all[start:stop], return_inverse=True)
        if not len(minutes):
            minutes = np.zeros(1)
        sampled = np.full((len(minutes), len(variables) + len(static)), np.nan)
        sampled[places, var[start:stop]] = value[start:stop]
        sampled[:, len(variables) :] = known[i]
        values.append(sampled)
        times.append(minutes / 60)
    return SeriesSet.pack(
        values,
        times=times,
        answers=ClassAnswers(
            names=("survived", "died"),
            values=torch.tensor(outcomes[:, names.index(_OUTCOME)].tolist(), dtype=torch.int64),
        ),
        channels=variables + static,
        names=tuple(f"{path.name}, stay {i}" for i in range(len(values))),
    )


def _static(given: np.ndarray, names: list[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Values known at admission, NaN where unknown, and the names of their channels."""
    known = np.where(given < 0, np.nan, given)
    units = known[:, names.index(_UNIT)]
    numbers = [c for c, name in enumerate(names) if name != _UNIT]
    kinds = [np.where(np.isnan(units), np.nan, units == kind) for kind in range(1, _NUM_UNITS + 1)]
    columns = np.stack([*(known[:, c] for c in numbers), *kinds], axis=1)
    return columns, (
        *(f"{names[c]} at admission" for c in numbers),
        *(f"unit {kind}" for kind in range(1, _NUM_UNITS + 1)),
    )
