"""Windows of long series: what is seen, and what comes after it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self, final

import torch
from torch import Tensor

from fredholm.tasks.splits.splits import Divisible
from fredholm.tasks.splits.stratified_split import SplitKeys


@final
class Ranges(NamedTuple):
    """From which sample to which one the answers of a split lie, `[start, end)`."""

    start: int
    end: int


@final
@dataclass(frozen=True, kw_only=True)
class WindowSet(Divisible):
    """n windows of some long series.

    Args:
        values: float64 `(T, C)` a series, without gaps.
        known: float64 `(T, F)` a series, NaN where missing: what is told.
        context: samples that are seen.
        horizon: samples that are told.
        places: int64 `(n, 2)`, the series and the place of the first sample that is told.
    """

    shared: ClassVar[tuple[str, ...]] = ("context", "horizon")

    values: tuple[Tensor, ...]
    known: tuple[Tensor, ...]
    context: int
    horizon: int
    places: Tensor

    def __len__(self) -> int:
        """n."""
        return len(self.places)

    @property
    def keys(self) -> SplitKeys:
        """Their series and places."""
        return SplitKeys(names=[f"{i} {at}" for i, at in self.places.tolist()], strata=[0] * len(self))

    def select(self, indices: Tensor) -> Self:
        """Some of the windows, int64 `(m,)`."""
        return replace(self, places=self.places[indices])

    def seen(self) -> Tensor:
        """What comes before, `(n, context, C)`."""
        return torch.stack([self.values[i][at - self.context : at] for i, at in self.places.tolist()])

    def before(self, indices: Tensor, count: int) -> Tensor:
        """The last `count` samples before what some windows tell, `(m, count, C)`; there must be as many."""
        return torch.stack([self.values[i][at - count : at] for i, at in self.places[indices].tolist()])

    def told(self) -> Tensor:
        """What comes after, `(n, horizon, F)`; NaN where the data end before."""
        return torch.stack(
            [_padded(self.known[i][at : at + self.horizon], self.horizon) for i, at in self.places.tolist()]
        )

    @staticmethod
    def within(
        values: Sequence[Tensor],
        known: Sequence[Tensor],
        ranges: Sequence[Ranges],
        *,
        context: int,
        horizon: int,
        most: int,
    ) -> "WindowSet":
        """All windows whose answers lie within ranges, one a series, and are observed; of more than `most` every k-th.

        Args:
            values, known, context, horizon: see the class.
            ranges: of the places of answers.
            most: windows, at least 1.
        """
        places = [torch.zeros(0, 2, dtype=torch.int64)]
        for i, (start, end) in enumerate(ranges):
            missing = known[i].isnan().any(1).long()
            before = torch.nn.functional.pad(missing.cumsum(0), (1, 0))
            first = max(start, context)
            at = torch.arange(first, max(first, end - horizon + 1))
            at = at[before[at + horizon] == before[at]]
            places.append(torch.stack([torch.full_like(at, i), at], dim=1))
        found = torch.cat(places)
        if len(found) > most:
            found = found[torch.linspace(0, len(found) - 1, most, dtype=torch.float64).round().long()]
        return WindowSet(values=tuple(values), known=tuple(known), context=context, horizon=horizon, places=found)


def _padded(values: Tensor, count: int) -> Tensor:
    return torch.nn.functional.pad(values, (0, 0, 0, count - len(values)), value=torch.nan)
