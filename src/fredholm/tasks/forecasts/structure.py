"""What the level, the slope and the season of a series say of its next samples.

Legend
    y_t = a + b t + s_{t mod m} + g_t + e_t      a sample of a channel; m samples are a season
    a, b, s      unknown, and of any size; a structure may lack b, and s
    e            noise of variance 1, from sample to sample anew
    g            what else changes: its covariance is κ(t, t') = v L(t, t') + z D(t, t') + w 1[t ≡ t' mod m] min(k, k'),
                 where k is the number of the season of t, and L is min(t, t'), of a level that goes at random, or
                 ρ^|t - t'|, of one that comes back, and D that of Σ_{s ≤ t} d_s, of a slope that changes from sample
                 to sample, d_s = φ d_{s-1} + noise of variance 1
    A, A'        what multiplies a, b and s at the n samples that are known, and at the next H
    K, K'        κ between the known samples, with 1 added on the diagonal, and from the next ones to them

    ŷ = P y,   P = K' K⁻¹ + (A' - K' K⁻¹ A) (Aᵀ K⁻¹ A)⁻¹ Aᵀ K⁻¹

the best linear forecast without bias. v = w = 0 is least squares of a line and a season, v alone exponential smoothing,
with b that with a drift, z > 0 that with a trend, which φ < 1 damps, and ρ < 1 a return to a mean. P y keeps any
constant, and follows y in any unit, so that one structure suits series of many sizes. Where seasons and slopes grow
with the level, all this holds of log y_t.

How likely a structure makes n samples, of a scale σ of their own, is the restricted likelihood

    ℓ = -(n - p)/2 log σ̂² - 1/2 log det K - 1/2 log det Aᵀ K⁻¹ A,   σ̂² = |K^(-1/2) (y - A β̂)|² / (n - p)

with p columns of A, that of b divided by √n, and y in units of its mean change: in that unit b and s have a flat prior,
so that structures with and without them can be compared.

Source: Goldberger, Best linear unbiased prediction in the generalized linear regression model (1962); Harvey,
Forecasting, structural time series models and the Kalman filter (1989), for the parts; Patterson and Thompson, Recovery
of inter-block information when block sizes are unequal (1971), for ℓ. Deviation: v, z, w, ρ and φ are those of a few,
chosen by ℓ and by errors over whole horizons (`base.py`).
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
TRENDS = ((1e-3, 1.0), (1e-2, 1.0), (0.1, 0.9), (1.0, 0.9))
"""z and φ that are tried, with v = 0."""
SEASONS = (None, 0.0, 0.03, 0.3)
"""w that are tried; None: there is no s."""
MOST_READ, LEAST_READ = 400, 8
"""Samples of a series that are read, at most, and of which a structure is chosen, at least."""
MOST_SEASON = 100
"""Samples of a season, at most, each of which has its own s."""
LEAST_ERROR = 1e-12
"""Squared, in units of mean changes: smaller ones are rounding."""
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
        trend: z, at least 0.
        damping: φ, above 0, at most 1.
        season: w, at least 0; None: there is no s.
        in_logarithms: whether the parts are those of log y_t.
    """

    level: float
    persistence: float
    has_slope: bool
    trend: float
    damping: float
    season: float | None
    in_logarithms: bool

    def weights(self, known: int, horizon: int, season: int) -> Tensor:
        """P, float64 `(horizon, known)`, where a season has `season` samples: m, of which two at least are known."""
        a, kappa = self._parts(known + horizon, season)
        right = torch.cat([a[:known], kappa[:known, known:]], 1)
        solved = torch.cholesky_solve(right, torch.linalg.cholesky(_with_noise(kappa[:known, :known])))
        of_parts, of_next = solved.split([a.shape[1], horizon], 1)
        estimate = torch.linalg.solve(a[:known].T @ of_parts, of_parts.T)
        return of_next.T + (a[known:] - of_next.T @ a[:known]) @ estimate

    def log_likelihood(self, samples: Tensor, season: int) -> Tensor:
        """ℓ of series in units of their mean changes, `(n, k)`, each with its own σ: `(k,)`.

        Of one in logarithms the samples are these. n is more than the parts.
        """
        a, kappa = self._parts(len(samples), season)
        root = torch.linalg.cholesky(_with_noise(kappa))
        white = torch.linalg.solve_triangular(root, torch.cat([a, samples], 1), upper=False)
        parts, y = white[:, : a.shape[1]], white[:, a.shape[1] :]
        of_parts = torch.linalg.cholesky(parts.T @ parts)
        left, freedom = y - parts @ torch.cholesky_solve(parts.T @ y, of_parts), len(y) - a.shape[1]
        variance = left.square().sum(0) / freedom
        volume = root.diagonal().log().sum() + of_parts.diagonal().log().sum()
        return -0.5 * freedom * (variance + LEAST_ERROR).log() - volume

    def _parts(self, count: int, season: int) -> tuple[Tensor, Tensor]:
        """A `(count, p)` and κ `(count, count)` of samples in a row."""
        t = torch.arange(count, dtype=torch.float64)
        parts, kappa = [torch.ones_like(t)], t.new_zeros(count, count)
        if self.level:
            walk = torch.minimum(t[:, None], t) + 1
            kappa += self.level * (walk if self.persistence == 1 else self.persistence ** (t[:, None] - t).abs())
        if self.trend:
            steps = (t[:, None] - t + 1).clamp_min(0)
            reached = steps if self.damping == 1 else (1 - self.damping**steps) / (1 - self.damping)
            kappa += self.trend * reached @ reached.T
        if self.has_slope:
            parts.append((t - count) / count**0.5)
        if self.season is not None:
            phase, number = t.long() % season, t.div(season, rounding_mode="floor") + 1
            parts += [(phase == k).double() for k in range(1, season)]
            kappa += self.season * torch.minimum(number[:, None], number) * (phase[:, None] == phase)
        return torch.stack(parts, 1), kappa


def _with_noise(kappa: Tensor) -> Tensor:
    found = kappa.clone()
    found.diagonal().add_(1.0)
    return found


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
    """Those that are tried where so many samples are read, none in logarithms."""
    has_season = 1 < season <= min(MOST_SEASON, known // 2)
    parts = [
        *((v, rho, has_slope, 0.0, 1.0) for has_slope in (False, True) for v, rho in LEVELS),
        *((0.0, 1.0, phi == 1, z, phi) for z, phi in TRENDS),
    ]
    return [
        Structure(level=v, persistence=rho, has_slope=has_slope, trend=z, damping=phi, season=w, in_logarithms=False)
        for w in (SEASONS if has_season else (None,))
        for v, rho, has_slope, z, phi in parts
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
