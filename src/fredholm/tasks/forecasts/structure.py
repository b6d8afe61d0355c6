"""What the level, the slope and the season of a series say of its next samples.

Legend
    y_t = a + b t + s_{t mod m} + g_t + e_t      a sample of a channel; m samples are a season
    a, b, s      unknown, and of any size; a structure may lack b, and s
    e            noise of variance 1, from sample to sample anew
    g            what else changes: its covariance is κ(t, t') = v L(t, t') + w 1[t ≡ t' mod m] min(k, k'), where k is
                 the number of the season of t, and L is min(t, t'), of a level that goes at random, or ρ^|t - t'|, of
                 one that comes back
    A, A'        what multiplies a, b and s at the n samples that are known, and at the next H
    K, K'        κ between the known samples, with 1 added on the diagonal, and from the next ones to them

    ŷ = P y,   P = K' K⁻¹ + (A' - K' K⁻¹ A) (Aᵀ K⁻¹ A)⁻¹ Aᵀ K⁻¹

the best linear forecast without bias. v = w = 0 is least squares of a line and a season, v alone exponential smoothing,
with b that with a drift, and ρ < 1 a return to a mean. P y keeps any constant, and follows y in any unit, so that one
structure suits series of many sizes.

Source: Goldberger, Best linear unbiased prediction in the generalized linear regression model (1962); Harvey,
Forecasting, structural time series models and the Kalman filter (1989), for the parts. Deviation: v, w and ρ are not
estimated by likelihood, but those of a few that tell windows of the training part best.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from .windows import Ranges, WindowSet

LEVELS = (
    *((v, 1.0) for v in (0.0, 0.003, 0.03, 0.3, 3.0, 300.0)),
    *((1.0, 0.8), (10.0, 0.8), (1.0, 0.95), (100.0, 0.95)),
)
"""v and ρ that are tried; 1: the level goes at random."""
SEASONS = (None, 0.0, 0.03, 0.3)
"""w that are tried; None: there is no s."""
MOST_READ, LEAST_READ = 400, 8
"""Samples of a series that are read, at most, and of which a structure is chosen, at least."""
RUNGS = 16
"""Of a shorter series as many of these parts of what is read at most are read as it has, so that weights are few."""
MOST_SEASON = 100
"""Samples of a season, at most, each of which has its own s."""
MOST_TRIED = 2000
"""Windows times channels by which a structure is chosen, at most."""


@final
@dataclass(frozen=True, kw_only=True)
class Structure:
    """The parts of a channel.

    Args:
        level: v, at least 0.
        persistence: ρ, above 0, at most 1; 1: the level goes at random.
        has_slope: whether there is b.
        season: w, at least 0; None: there is no s.
    """

    level: float
    persistence: float
    has_slope: bool
    season: float | None

    def weights(self, known: int, horizon: int, season: int) -> Tensor:
        """P, float64 `(horizon, known)`, where a season has `season` samples: m, of which two at least are known."""
        t = torch.arange(known + horizon, dtype=torch.float64)
        parts, kappa = [torch.ones_like(t)], t.new_zeros(len(t), len(t))
        if self.level:
            walk = torch.minimum(t[:, None], t) + 1
            kappa += self.level * (walk if self.persistence == 1 else self.persistence ** (t[:, None] - t).abs())
        if self.has_slope:
            parts.append((t - known) / known)
        if self.season is not None:
            phase, number = t.long() % season, t.div(season, rounding_mode="floor") + 1
            parts += [(phase == k).double() for k in range(1, season)]
            kappa += self.season * torch.minimum(number[:, None], number) * (phase[:, None] == phase)
        a = torch.stack(parts, 1)
        kappa[:known, :known].diagonal().add_(1.0)
        right = torch.cat([a[:known], kappa[:known, known:]], 1)
        solved = torch.cholesky_solve(right, torch.linalg.cholesky(kappa[:known, :known]))
        of_parts, of_next = solved.split([a.shape[1], horizon], 1)
        estimate = torch.linalg.solve(a[:known].T @ of_parts, of_parts.T)
        return of_next.T + (a[known:] - of_next.T @ a[:known]) @ estimate


@final
@dataclass(frozen=True, kw_only=True)
class Base:
    """What answers are counted from: partly what structures say, and partly the last value.

    Args:
        structures: of each channel that is told.
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

    def told(self, windows: WindowSet, columns: Sequence[int]) -> Tensor:
        """What is said of the next samples of some windows, `(n, horizon, F)`, of as many as `most` samples before."""
        count = (windows.places[:, 1] * RUNGS // self.most).clamp_max(RUNGS) * self.most // RUNGS
        count = count.clamp_min(self.least)
        found = torch.empty(len(windows), windows.horizon, len(columns), dtype=torch.float64)
        for known in count.unique().tolist():
            some = (count == known).nonzero()[:, 0]
            before = windows.before(some, known)[..., list(columns)]
            found[some] = read(self.weights(known, windows.horizon), before)
        return found


def read(weights: Tensor, before: Tensor) -> Tensor:
    """Weights `(F, H, n)` on samples `(B, n, F)`, counted from the last one, so that none of their digits is lost."""
    last = before[:, -1:]
    moved = (before - last).transpose(1, 2)
    return last + torch.stack([moved[:, f] @ each.T for f, each in enumerate(weights.unbind(0))], 2)


def base_of(
    values: Sequence[Tensor],
    known: Sequence[Tensor],
    ends: Sequence[int],
    columns: Sequence[int],
    *,
    horizon: int,
    season: int,
) -> Base | None:
    """The base whose structures tell windows of some series best, in the mean square; None: they are too short.

    A window has half of the shortest series, or two seasons where that is more and can be told from.

    Args:
        values, known: of each series; see `WindowSet`.
        ends: where what may be looked at ends.
        columns: the channels that are told.
        horizon: H.
        season: m; 1: there is none.
    """
    shortest = min(ends)
    half = shortest // 2
    if half < 2 * season <= shortest - horizon:
        half = 2 * season
    half = min(half, MOST_READ, shortest - horizon)
    if half < LEAST_READ:
        return None
    windows = WindowSet.within(
        values,
        known,
        [Ranges(0, end) for end in ends],
        context=half,
        horizon=horizon,
        most=max(1, MOST_TRIED // len(columns)),
    )
    if not len(windows):
        return None
    before, unit = windows.seen()[..., list(columns)], torch.ones(len(windows), 1, len(columns), dtype=torch.float64)
    for i, (each, end) in enumerate(zip(values, ends, strict=True)):
        change = each[:end, list(columns)].diff(dim=0).abs().mean(0)
        unit[windows.places[:, 0] == i] = torch.where(change > 0, change, 1.0)
    wanted, best = windows.told(), list[tuple[float, Structure]]()
    has_season = 1 < season <= min(MOST_SEASON, half // 2)
    for structure in (
        Structure(level=v, persistence=rho, has_slope=has_slope, season=w)
        for w in (SEASONS if has_season else (None,))
        for has_slope in (False, True)
        for v, rho in LEVELS
    ):
        weights = structure.weights(half, horizon, season).expand(len(columns), -1, -1)
        errors = ((read(weights, before) - wanted) / unit).square().mean((0, 1)).tolist()
        found = [(error, structure) for error in errors]
        best = [min(pair, key=lambda each: each[0]) for pair in zip(best, found, strict=True)] if best else found
    structures = tuple(structure for _, structure in best)
    least = 2 * season if any(each.season is not None for each in structures) else min(half, LEAST_READ)
    return Base(structures=structures, season=season, most=min(shortest, MOST_READ), least=least, share=1.0)
