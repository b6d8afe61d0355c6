"""What data say of their splits: the split, the group and the time of each example."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from fredholm.tasks.files.cells import is_date, parse_time
from fredholm.tasks.files.npz_arrays import split_of_rows

from .split_files import SPLIT_WORDS, SPLITS, Split
from .splits import Splits, Whole
from .stratified_split import SplitKeys

MARKS = ("split", "group", "time")
"""The columns of a table, in small or capital letters."""
ARRAYS = ("groups", "example_times")
"""The arrays of an .npz file beside `split`."""


@final
@dataclass(frozen=True, kw_only=True)
class SplitMarks:
    """Of n examples, None where nothing is said.

    Args:
        given: int64 `(n,)`, 0 train, 1 valid, 2 test, -1 none.
        groups: one name an example.
        times: float64 `(n,)`.
    """

    given: Tensor | None = None
    groups: tuple[str, ...] | None = None
    times: Tensor | None = None

    def check(self, n: int) -> None:
        """Raises ValueError unless they are of n examples."""
        for what, marks in (("splits", self.given), ("groups", self.groups), ("times", self.times)):
            if marks is not None and len(marks) != n:
                raise ValueError(f"there are {len(marks)} {what} of {n} examples; expected one each")

    @staticmethod
    def joined(parts: "Mapping[Split, tuple[int, SplitMarks]]") -> "SplitMarks":
        """Those of the examples of all splits, one split after the other.

        Args:
            parts: how many examples each has, and what is said of them; their own splits are not read.

        Raises:
            ValueError: some splits alone have groups, or times.
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
        """What the examples are split by."""
        return SplitKeys(names=names, strata=strata, groups=self.groups, times=self.times)

    def group_numbers(self, device: torch.device | None = None) -> Tensor | None:
        """The group of each example as a number from 0 on, int64 `(n,)`; None where there are not two of them."""
        numbers: dict[str, int] = {}
        found = [numbers.setdefault(name, len(numbers)) for name in self.groups or ()]
        return torch.tensor(found, device=device) if len(numbers) > 1 else None

    def divided(self, whole: Whole) -> Splits[Whole]:
        """Examples by their own split, or all as one set where nothing is said of it.

        Raises:
            ValueError: the split has none to train on.
        """
        found = Splits.of_rows(whole, self.given)
        return found if isinstance(found, Splits) else Splits(found, is_given=False)

    def select(self, indices: Tensor) -> "SplitMarks":
        """Those of some examples."""
        groups = self.groups
        return SplitMarks(
            given=None if self.given is None else self.given[indices],
            groups=None if groups is None else tuple(groups[i] for i in indices.tolist()),
            times=None if self.times is None else self.times[indices],
        )


NO_MARKS = SplitMarks()
"""Of data that say nothing."""


def marks_of_cells(columns: Mapping[str, Sequence[str]], place: Callable[[int, str], str]) -> SplitMarks:
    """The marks in the columns of a table, those of `MARKS` that there are.

    Args:
        columns: the cells of each, by the words of `MARKS`.
        place: where row i of a column stands, for messages.

    Raises:
        ValueError: a split is no word for one, a group is empty, or a time is no number or date, or of the other kind.
    """
    given, groups, times = (columns.get(name) for name in MARKS)
    found: dict[str, list[int | float]] = {"given": [], "times": []}
    for i, cell in enumerate(given or ()):
        word = cell.strip().lower()
        if word and word not in SPLIT_WORDS:
            raise ValueError(f"{place(i, 'split')}: {cell!r} is no split; expected train, valid or test, or nothing")
        found["given"].append(SPLITS.index(SPLIT_WORDS[word]) if word else -1)
    for i, cell in enumerate(groups or ()):
        if not cell.strip():
            raise ValueError(f"{place(i, 'group')}: is empty; expected the name of a group")
    for i, cell in enumerate(times or ()):
        try:
            found["times"].append(parse_time(cell))
        except ValueError as error:
            raise ValueError(f"{place(i, 'time')}: {error}") from error
        assert times is not None
        if is_date(cell) != is_date(times[0]):
            raise ValueError(
                f"{place(i, 'time')}: {cell!r} and {times[0]!r} cannot be compared; write numbers, or dates"
            )
    return SplitMarks(
        given=None if given is None else torch.tensor(found["given"], dtype=torch.int64),
        groups=None if groups is None else tuple(cell.strip() for cell in groups),
        times=None if times is None else torch.tensor(found["times"], dtype=torch.float64),
    )


def marks_of_arrays(arrays: Mapping[str, np.ndarray], n: int, *, end: str = "") -> SplitMarks:
    """The marks in arrays, `split` and those of `ARRAYS` that there are.

    `split` is read by `split_of_rows`; `groups` are integers or texts, `example_times` numbers or dates (`datetime64`).

    Args:
        arrays: of a file.
        n: how many examples there are.
        end: of their names, such as _train, of arrays of one split.

    Raises:
        ValueError: an array is of another type or shape, or has a value out of range.
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
