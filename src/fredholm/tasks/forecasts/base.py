"""What answers are counted from.

Legend
    E      of a structure: the mean square of its errors over the horizon of windows of the training part
    ℓ      the log likelihood of the last n samples of all series together (`structure.py`)
    r      how many horizons these windows are

The structure of a channel is that with the largest min(1, COUNTED / n) ℓ - r log E, less SURE in logarithms. Of few
samples E is of hardly more than one horizon, and ℓ chooses; of many no structure is quite true, and E chooses.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from .effect import Effect, left
from .structure import (
    LEAST_ERROR,
    LEAST_READ,
    MOST_READ,
    MOST_TRIED,
    Structure,
    candidate_structures,
    mean_changes,
    read_before,
)
from .windows import Ranges, WindowSet

RUNGS = 16
"""Of a shorter series as many of these parts of what is read at most are read as it has, so that weights are few."""
COUNTED = 150
"""Samples that ℓ counts as, at most."""
SURE = 2.0
"""By which logarithms must be better."""


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

    @property
    def in_logarithms(self) -> tuple[bool, ...]:
        """Of each channel that is predicted."""
        return tuple(each.in_logarithms for each in self.structures)

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
            found[some] = read(self.weights(known, windows.horizon), before, self.in_logarithms)
        return found


def read(weights: Tensor, before: Tensor, in_logarithms: Sequence[bool]) -> Tensor:
    """Weights `(F, H, n)` on samples `(B, n, F)`, counted from the last one, so that none of their digits is lost.

    Of a channel in logarithms on these, where all n samples of a window are above 0; else as on any other.
    """
    found = list[Tensor]()
    for f, each in enumerate(weights.unbind(0)):
        y = before[..., f]
        last = y[:, -1:]
        read = last + (y - last) @ each.T
        if in_logarithms[f]:
            is_above = (y > 0).all(1, keepdim=True)
            y, last = torch.where(is_above, y, 1.0), torch.where(is_above, last, 1.0)
            read = torch.where(is_above, last * ((y / last).log() @ each.T).exp(), read)
        found.append(read)
    return torch.stack(found, 2)


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
    """The base whose structures suit some series best; None: they are too short.

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
    size, changes = min(shortest, max(COUNTED, min(half, 2 * season))), mean_changes(windows, ends, columns)
    last = replace(windows, horizon=0, places=torch.tensor([[i, end] for i, end in enumerate(ends)]))
    samples = left(effect, last, columns, size).transpose(0, 1) / mean_changes(last, ends, columns)[:, 0]
    before, wanted = left(effect, windows, columns, half), windows.wanted()
    if effect is not None:
        wanted = wanted - effect.of_windows(windows, columns)
    scores, structures = list[Tensor](), list[Structure]()
    num_horizons, share = max(1.0, len(windows) / horizon), min(1.0, COUNTED / (size * len(ends)))
    is_above = (samples > 0).all(0).all(0)
    readings = [samples]
    if bool(is_above.any()):
        readings.append(_logarithms(torch.where(is_above, samples, 1.0)))
    every = torch.stack(readings, 1).flatten(1)
    for structure in candidate_structures(half, season):
        weights = structure.weights(half, horizon, season).expand(len(columns), -1, -1)
        likely = structure.log_likelihood(every, season).reshape(len(readings), len(ends), len(columns)).sum(1)
        for in_logarithms in (False, True)[: len(readings)]:
            structures.append(replace(structure, in_logarithms=in_logarithms))
            errors = (read(weights, before, [in_logarithms] * len(columns)) - wanted) / changes
            horizons = num_horizons * (errors.square().mean((0, 1)) + LEAST_ERROR).log()
            score = share * likely[int(in_logarithms)] - horizons
            scores.append(torch.where(is_above, score - SURE, -torch.inf) if in_logarithms else score)
    structures = tuple(structures[k] for k in torch.stack(scores).argmax(0).tolist())
    least = 2 * season if any(each.season is not None for each in structures) else min(half, LEAST_READ)
    return Base(structures=structures, season=season, most=min(shortest, MOST_READ), least=least, share=1.0)


def _logarithms(samples: Tensor) -> Tensor:
    """Logarithms of samples `(n, S, F)` above 0 times their geometric means, so that small changes are as before.

    Their likelihood is then that of the samples (Box and Cox, An analysis of transformations, 1964).
    """
    found = samples.log()
    return found * found.mean(0).exp()
