"""Split, group, time and weight of each example, as given in the data."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from fredholm.tasks.files.dates import DateOrderError, Moment, learn_order_of_times, parse_moment
from fredholm.tasks.files.npz_arrays import split_of_rows

from .split_files import SPLIT_WORDS, SPLITS, Split
from .splits import Splits, Whole
from .stratified_split import SplitKeys

MARKS = ("split", "group", "time")
"""Column names of a table, in any case."""
ARRAYS = ("groups", "example_times")
"""Names of arrays in an .npz file, beside `split`."""


@final
@dataclass(frozen=True, kw_only=True)
class SplitMarks:
    """Split, group, time and weight of n examples; None where the data have none.

    Args:
        given: int64 `(n,)`, 0 train, 1 valid, 2 test, -1 none.
        groups: group name of each example.
        times: time of each example, float64 `(n,)`.
        weights: weight of each example, float64 `(n,)`, above 0.
    """

    given: Tensor | None = None
    groups: tuple[str, ...] | None = None
    times: Tensor | None = None
    weights: Tensor | None = None

    def check(self, n: int) -> None:
        """Raises a ValueError unless they are for n examples."""
        found = ("splits", self.given), ("groups", self.groups), ("times", self.times), ("weights", self.weights)
        for what, marks in found:
            if marks is not None and len(marks) != n:
                raise ValueError(f"there are {len(marks)} {what} of {n} examples; expected one each")

    @staticmethod
    def joined(parts: "Mapping[Split, tuple[int, SplitMarks]]") -> "SplitMarks":
        """Concatenates the marks of all splits.

        Args:
            parts: number of examples of each split and their marks, whose own `given` is ignored.

        Raises:
            ValueError: some splits have groups or times, and others do not.
        """
        found: dict[str, list[SplitMarks]] = {}
        for what in ("groups", "times"):
            found[what] = [marks for _, marks in parts.values() if getattr(marks, what) is not None]
            if found[what] and len(found[what]) < len(parts):
                bare = next(split for split, (_, marks) in parts.items() if getattr(marks, what) is None)
                raise ValueError(f"the {bare} split has no {what}, but another has; give them to all, or to none")
        return SplitMarks(
            given=torch.cat([torch.full((count,), SPLITS.index(split)) for split, (count, _) in parts.items()]),
            groups=tuple(group for marks in found["groups"] for group in marks.groups or ()) or None,
            times=torch.cat([marks.times for marks in found["times"] if marks.times is not None])
            if found["times"]
            else None,
        )

    def keys(self, names: Sequence[str], strata: Sequence[int]) -> SplitKeys:
        """Returns the keys that the examples are split by."""
        return SplitKeys(names=names, strata=strata, groups=self.groups, times=self.times)

    def group_numbers(self, device: torch.device | None = None) -> Tensor | None:
        """Returns the group number of each example, from 0 on, int64 `(n,)`; None with fewer than two groups."""
        numbers: dict[str, int] = {}
        found = [numbers.setdefault(name, len(numbers)) for name in self.groups or ()]
        return torch.tensor(found, device=device) if len(numbers) > 1 else None

    @property
    def relative_weights(self) -> Tensor | None:
        """Weights divided by their mean; None where the data have none, or all are equal."""
        weights = self.weights
        return None if weights is None or bool((weights == weights[0]).all()) else weights / weights.mean()

    def divided(self, whole: Whole) -> Splits[Whole]:
        """Divides examples by their given split; without one they stay a single set.

        Raises:
            ValueError: the given split has no training examples.
        """
        found = Splits.of_rows(whole, self.given)
        return found if isinstance(found, Splits) else Splits(found, is_given=False)

    def select(self, indices: Tensor) -> "SplitMarks":
        """Returns the marks of some examples."""
        groups = self.groups
        return SplitMarks(
            given=None if self.given is None else self.given[indices],
            groups=None if groups is None else tuple(groups[i] for i in indices.tolist()),
            times=None if self.times is None else self.times[indices],
            weights=None if self.weights is None else self.weights[indices],
        )


NO_MARKS = SplitMarks()
"""Marks of data without splits, groups and times."""


def marks_of_cells(columns: Mapping[str, Sequence[str]], place: Callable[[int, str], str]) -> SplitMarks:
    """Parses the marks in the columns of a table, those of `MARKS` that exist.

    Args:
        columns: cells of each column, by the words of `MARKS`.
        place: location of row i of a column, for messages.

    Raises:
        ValueError: a split is unknown, a group is empty, or a time is no number or date, or they are mixed.
    """
    given, groups, times = (columns.get(name) for name in MARKS)
    numbers = list[int]()
    for i, cell in enumerate(given or ()):
        word = cell.strip().lower()
        if word and word not in SPLIT_WORDS:
            raise ValueError(f"{place(i, 'split')}: {cell!r} is no split; expected train, valid or test, or nothing")
        numbers.append(SPLITS.index(SPLIT_WORDS[word]) if word else -1)
    for i, cell in enumerate(groups or ()):
        if not cell.strip():
            raise ValueError(f"{place(i, 'group')}: is empty; expected the name of a group")
    moments = [] if times is None else _moments(times, lambda i: place(i, "time"))
    return SplitMarks(
        given=None if given is None else torch.tensor(numbers, dtype=torch.int64),
        groups=None if groups is None else tuple(cell.strip() for cell in groups),
        times=None if times is None else torch.tensor([moment.time for moment in moments], dtype=torch.float64),
    )


def _moments(cells: Sequence[str], place: Callable[[int], str]) -> list[Moment]:
    """Parses a column of times, all numbers or all dates."""
    found, i = list[Moment](), 0
    try:
        day_first = learn_order_of_times([cell.strip() for cell in cells])
        for i, cell in enumerate(cells):
            found.append(parse_moment(cell, day_first))
            if found[i].is_date != found[0].is_date:
                raise ValueError(f"{cell!r} and {cells[0]!r} cannot be compared; write numbers, or dates")
    except ValueError as error:
        raise ValueError(f"{place(error.index if isinstance(error, DateOrderError) else i)}: {error}") from error
    return found


def marks_of_arrays(arrays: Mapping[str, np.ndarray], n: int, *, end: str = "") -> SplitMarks:
    """Reads the marks in arrays, `split` and those of `ARRAYS` that exist.

    `split` is read by `split_of_rows`; `groups` are integers or texts, `example_times` numbers or dates (`datetime64`).

    Args:
        arrays: arrays of a file.
        n: number of examples.
        end: suffix of the names, such as _train, for the arrays of one split.

    Raises:
        ValueError: an array has another type or shape, or a value out of range.
    """
    groups, times = (arrays.get(f"{name}{end}") for name in ARRAYS)
    for name, array, kinds, expected in zip(
        ARRAYS, (groups, times), ("iuU", "iufM"), ("integers or texts", "numbers or dates"), strict=True
    ):
        if array is not None and (array.shape != (n,) or array.dtype.kind not in kinds):
            raise ValueError(f"{name}{end} is {array.dtype} {array.shape}; expected {expected} ({n},)")
    return SplitMarks(
        given=None if end else split_of_rows(arrays, n),
        groups=None if groups is None else tuple(str(group) for group in groups.tolist()),
        times=None if times is None else _times(times),
    )


def _times(times: np.ndarray) -> Tensor:
    if times.dtype.kind != "M":
        return torch.from_numpy(times.astype(np.float64))
    since = (times - np.datetime64(0, "s")) / np.timedelta64(1, "s")  # NaN where there is no date
    return torch.from_numpy(since.astype(np.float64))
