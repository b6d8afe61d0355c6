"""Windows of long series: the samples seen, and the answer after them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self, final

import torch
from torch import Tensor

from fredholm.tasks.splits.splits import Divisible
from fredholm.tasks.splits.stratified_split import SplitKeys

BLOCKS = 8
"""Consecutive stretches of a series, the folds of cross-validation."""


@final
class Ranges(NamedTuple):
    """The samples `[start, end)` within which the answers of a split lie."""

    start: int
    end: int


@final
@dataclass(frozen=True, kw_only=True)
class WindowSet(Divisible):
    """n windows of some long series.

    Args:
        values: values of each series, float64 `(T, C)`, without gaps.
        truth: the predicted channels of each series, float64 `(T, F)`, NaN where missing.
        context: the number of samples seen.
        horizon: the number of predicted samples.
        places: int64 `(n, 2)`, the series and the index of the first predicted sample.
        ahead: the channels that are known over the horizon too.
    """

    shared: ClassVar[tuple[str, ...]] = ("context", "horizon", "ahead")

    values: tuple[Tensor, ...]
    truth: tuple[Tensor, ...]
    context: int
    horizon: int
    places: Tensor
    ahead: tuple[int, ...] = ()

    def __len__(self) -> int:
        """n."""
        return len(self.places)

    @property
    def keys(self) -> SplitKeys:
        """Split keys: the series and the place of each window."""
        return SplitKeys(names=[f"{i} {at}" for i, at in self.places.tolist()], strata=[0] * len(self))

    def select(self, indices: Tensor) -> Self:
        """The windows at `indices`, int64 `(m,)`."""
        return replace(self, places=self.places[indices])

    def seen(self) -> Tensor:
        """The samples of the context, `(n, context, C)`."""
        return self.before(self.context)

    def before(self, count: int) -> Tensor:
        """The last `count` samples before the predicted ones, `(n, count, C)`; there must be as many."""
        return self._gathered(-count, 0)

    def around(self, count: int | None = None) -> Tensor:
        """The channels that are known ahead, over the last `count` samples and the horizon, `(n, count + horizon, K)`.

        `count` is by default the context.
        """
        start, known = self.context if count is None else count, list(self.ahead)
        if not known:  # the horizon may then lie beyond the end of a series
            return torch.empty(len(self), start + self.horizon, 0, dtype=torch.float64)
        return self._gathered(-start, self.horizon, known)

    def stretches(self, ends: Sequence[int], start: int = 0) -> Tensor:
        """The stretch of each window, from 0 to BLOCKS - 1, in series from `start` to `ends`, int64 `(n,)`."""
        of = torch.tensor(ends)[self.places[:, 0]] - start
        return ((self.places[:, 1] - start) * BLOCKS).div(of, rounding_mode="floor")

    def wanted(self) -> Tensor:
        """The answers, `(n, horizon, F)`; NaN after the end of a series."""
        found = torch.full((len(self), self.horizon, self.truth[0].shape[1]), torch.nan, dtype=torch.float64)
        for i in self.places[:, 0].unique().tolist():
            own = (self.places[:, 0] == i).nonzero()[:, 0]
            at = self.places[own, 1, None] + torch.arange(self.horizon)
            rows, is_there = self.truth[i], at < len(self.truth[i])
            found[own] = torch.where(is_there[..., None], rows[at.clamp_max(len(rows) - 1)], torch.nan)
        return found

    def _gathered(self, start: int, stop: int, columns: Sequence[int] | None = None) -> Tensor:
        """Values from `start` to `stop` samples after the first predicted one, `(n, stop - start, C)`.

        Raises:
            IndexError: a series has no such samples.
        """
        channels = self.values[0].shape[1] if columns is None else len(columns)
        found = torch.empty(len(self), stop - start, channels, dtype=torch.float64)
        for i in self.places[:, 0].unique().tolist():
            own = (self.places[:, 0] == i).nonzero()[:, 0]
            at = self.places[own, 1, None] + torch.arange(start, stop)
            rows = self.values[i] if columns is None else self.values[i][:, columns]
            found[own] = rows.index_select(0, at.flatten()).unflatten(0, at.shape)
        return found

    @staticmethod
    def within(
        values: Sequence[Tensor],
        truth: Sequence[Tensor],
        ranges: Sequence[Ranges],
        *,
        context: int,
        horizon: int,
        most: int,
        ahead: tuple[int, ...] = (),
    ) -> "WindowSet":
        """All windows with observed answers within the range of their series; at most `most`, evenly chosen.

        Args:
            values, truth, context, horizon, ahead: see the class.
            ranges: the range of the answers in each series.
            most: the largest number of windows, at least 1.
        """
        places = [torch.zeros(0, 2, dtype=torch.int64)]
        for i, (start, end) in enumerate(ranges):
            missing = truth[i].isnan().any(1).long()
            before = torch.nn.functional.pad(missing.cumsum(0), (1, 0))
            first = max(start, context)
            at = torch.arange(first, max(first, end - horizon + 1))
            at = at[before[at + horizon] == before[at]]
            places.append(torch.stack([torch.full_like(at, i), at], dim=1))
        found = torch.cat(places)
        if len(found) > most:
            found = found[torch.linspace(0, len(found) - 1, most, dtype=torch.float64).round().long()]
        return WindowSet(
            values=tuple(values),
            truth=tuple(truth),
            context=context,
            horizon=horizon,
            places=found,
            ahead=ahead,
        )
