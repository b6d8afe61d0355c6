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
estimated by likelihood, but those of a few that predict windows of the training part best.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from .windows import WindowSet

LEVELS = (
    *((v, 1.0) for v in (0.0, 0.003, 0.03, 0.3, 3.0, 300.0)),
    *((1.0, 0.8), (10.0, 0.8), (1.0, 0.95), (100.0, 0.95)),
)
"""v and ρ that are tried; 1: the level goes at random."""
SEASONS = (None, 0.0, 0.03, 0.3)
"""w that are tried; None: there is no s."""
MOST_READ, LEAST_READ = 400, 8
"""Samples of a series that are read, at most, and of which a structure is chosen, at least."""
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


def read_before(shortest: int, horizon: int, season: int) -> int | None:
    """Samples by which structures of series are chosen: half of the shortest, or two seasons, where that is more.

    None: they are too short.
    """
    half = shortest // 2
    if half < 2 * season <= shortest - horizon:
        half = 2 * season
    half = min(half, MOST_READ, shortest - horizon)
    return half if half >= LEAST_READ else None


def candidate_structures(known: int, season: int) -> list[Structure]:
    """Those that are tried where so many samples are read."""
    has_season = 1 < season <= min(MOST_SEASON, known // 2)
    return [
        Structure(level=v, persistence=rho, has_slope=has_slope, season=w)
        for w in (SEASONS if has_season else (None,))
        for has_slope in (False, True)
        for v, rho in LEVELS
    ]


def mean_changes(windows: WindowSet, ends: Sequence[int], columns: Sequence[int]) -> Tensor:
    """The mean change from sample to sample of the predicted channels, of the series of each window, `(n, 1, F)`.

    Of a series that never changes it is 1.
    """
    found = torch.ones(len(windows), 1, len(columns), dtype=torch.float64)
    for i, (each, end) in enumerate(zip(windows.values, ends, strict=True)):
        change = each[:end, list(columns)].diff(dim=0).abs().mean(0)
        found[windows.places[:, 0] == i] = torch.where(change > 0, change, 1.0)
    return found
