"""What answers are counted from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from .effect import Effect, left
from .structure import LEAST_READ, MOST_READ, MOST_TRIED, Structure, candidate_structures, mean_changes, read_before
from .windows import Ranges, WindowSet

RUNGS = 16
"""Of a shorter series as many of these parts of what is read at most are read as it has, so that weights are few."""


@final
@dataclass(frozen=True, kw_only=True)
class Base:
    """What answers are counted from: partly what structures say, and partly the last value.

    Args:
        structures: of each channel that is predicted.
        season: m.
        most, least: samples of a series that are read, at most, and that there must be.
        share: of what structures say; the rest is the last value.
    """

    structures: tuple[Structure, ...]
    season: int
    most: int
    least: int
    share: float

    def weights(self, known: int, horizon: int) -> Tensor:
        """What is said of the next samples by the last `known`, counted from the last value, `(F, horizon, known)`."""
        of = {each: each.weights(known, horizon, self.season) for each in set(self.structures)}
        return self.share * torch.stack([of[each] for each in self.structures])

    def predictions(self, windows: WindowSet, columns: Sequence[int], effect: Effect | None = None) -> Tensor:
        """What is said of the next samples of some windows, `(n, horizon, F)`, of as many as `most` samples before.

        With an effect, of what it leaves of them.
        """
        count = (windows.places[:, 1] * RUNGS // self.most).clamp_max(RUNGS) * self.most // RUNGS
        count = count.clamp_min(self.least)
        found = torch.empty(len(windows), windows.horizon, len(columns), dtype=torch.float64)
        for known in count.unique().tolist():
            some = (count == known).nonzero()[:, 0]
            before = left(effect, windows.select(some), columns, known)
            found[some] = read(self.weights(known, windows.horizon), before)
        return found


def read(weights: Tensor, before: Tensor) -> Tensor:
    """Weights `(F, H, n)` on samples `(B, n, F)`, counted from the last one, so that none of their digits is lost."""
    last = before[:, -1:]
    moved = (before - last).transpose(1, 2)
    return last + torch.stack([moved[:, f] @ each.T for f, each in enumerate(weights.unbind(0))], 2)


def learn_base(
    values: Sequence[Tensor],
    truth: Sequence[Tensor],
    ends: Sequence[int],
    columns: Sequence[int],
    *,
    horizon: int,
    season: int,
    effect: Effect | None = None,
    ahead: tuple[int, ...] = (),
) -> Base | None:
    """The base whose structures predict windows of some series best, in the mean square; None: they are too short.

    A window has half of the shortest series, or two seasons where that is more and can be predicted from.

    Args:
        values, truth: of each series; see `WindowSet`.
        ends: where what may be looked at ends.
        columns: the channels that are predicted.
        horizon: H.
        season: m; 1: there is none.
        effect: of which it is the base of what is left; None: of all.
        ahead: see `WindowSet`.
    """
    shortest = min(ends)
    half = read_before(shortest, horizon, season)
    if half is None:
        return None
    windows = WindowSet.within(
        values,
        truth,
        [Ranges(0, end) for end in ends],
        context=half,
        horizon=horizon,
        most=max(1, MOST_TRIED // len(columns)),
        ahead=ahead,
    )
    if not len(windows):
        return None
    before, unit = left(effect, windows, columns, half), mean_changes(windows, ends, columns)
    wanted, best = windows.wanted(), list[tuple[float, Structure]]()
    if effect is not None:
        wanted = wanted - effect.of_windows(windows, columns)
    for structure in candidate_structures(half, season):
        weights = structure.weights(half, horizon, season).expand(len(columns), -1, -1)
        errors = ((read(weights, before) - wanted) / unit).square().mean((0, 1)).tolist()
        found = [(error, structure) for error in errors]
        best = [min(pair, key=lambda each: each[0]) for pair in zip(best, found, strict=True)] if best else found
    structures = tuple(structure for _, structure in best)
    least = 2 * season if any(each.season is not None for each in structures) else min(half, LEAST_READ)
    return Base(structures=structures, season=season, most=min(shortest, MOST_READ), least=least, share=1.0)
