"""Structures of a series: best linear forecasts from a level, a slope and a season, and their likelihoods.

Legend
    y_t = a + b t + s_{t mod m} + g_t + e_t      a sample of a channel, with seasons of m samples
    a, b, s      unknown constants of any size; a structure may lack b, and may lack s
    e            independent noise of variance 1
    g            the stochastic part, with covariance κ(t, t') = v L(t, t') + z D(t, t') + w 1[t ≡ t' mod m] min(k, k'),
                 where k is the number of the season of t; L is min(t, t') for a random walk of the level, or ρ^|t - t'|
                 for a level that reverts to its mean; D is the covariance of Σ_{s ≤ t} d_s, for a slope that changes
                 from sample to sample, d_s = φ d_{s-1} + noise of variance 1
    A, A'        the design matrix of a, b and s at the n known samples, and at the next H
    K, K'        κ between the known samples, with 1 added on the diagonal, and from the next samples to them
    R, C         the Cholesky factor of K, and C = K' R⁻ᵀ: together the first columns of the factor of all n + H samples
    B            R⁻¹ A

    ŷ = P y,   P = K' K⁻¹ + (A' - K' K⁻¹ A) (Aᵀ K⁻¹ A)⁻¹ Aᵀ K⁻¹ = (C + (A' - C B) (Bᵀ B)⁻¹ Bᵀ) R⁻¹

the best linear unbiased forecast. v = w = 0 is least squares of a line and a season, v alone exponential smoothing, v
with b a drift, z > 0 a local trend, which φ < 1 damps, and ρ < 1 a return to a mean. P y keeps any constant and scales
with the unit of y, so one structure suits series of many sizes. Where seasons and slopes grow with the level, all this
holds for log y_t.

The score of a structure on n samples whose scale σ is unknown is the restricted log likelihood

    ℓ = -(n - p)/2 log σ̂² - 1/2 log det K - 1/2 log det Aᵀ K⁻¹ A,   σ̂² = |R⁻¹ (y - A β̂)|² / (n - p)

with p columns of A, the column of b divided by √n, and y in units of its mean change. In that unit b and s have a flat
prior, so structures with and without them can be compared.

Source: Goldberger, Best linear unbiased prediction in the generalized linear regression model (1962); Harvey,
Forecasting, structural time series models and the Kalman filter (1989), for the parts; Patterson and Thompson, Recovery
of inter-block information when block sizes are unequal (1971), for ℓ. Deviation: v, z, w, ρ and φ come from a small
grid, and are chosen by ℓ and by errors over whole horizons (`base.py`).
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from .windows import WindowSet

LEVELS = (
    *((v, 1.0) for v in (0.0, 0.003, 0.03, 0.3, 3.0, 300.0)),
    *((1.0, 0.8), (10.0, 0.8), (1.0, 0.95), (100.0, 0.95)),
)
"""Candidates of (v, ρ); ρ = 1: a random walk."""
TRENDS = ((1e-3, 1.0), (1e-2, 1.0), (0.1, 0.9), (1.0, 0.9))
"""Candidates of (z, φ), with v = 0."""
SEASONS = (None, 0.0, 0.03, 0.3)
"""Candidates of w; None: no season."""
MOST_READ, LEAST_READ = 400, 8
"""Largest number of samples of a series that a forecast reads, and smallest from which a structure is chosen."""
MOST_SEASON = 100
"""The longest season with an s for each of its samples."""
LEAST_ERROR = 1e-12
"""Squared error, in units of mean changes, below which all is rounding."""
MOST_TRIED = 2000
"""Largest number of windows times channels from which a structure is chosen."""


@final
@dataclass(frozen=True, kw_only=True)
class Structure:
    """The components of a channel.

    Args:
        level: v, at least 0.
        persistence: ρ, above 0, at most 1; 1: a random walk.
        has_slope: whether there is b.
        trend: z, at least 0.
        damping: φ, above 0, at most 1.
        season: w, at least 0; None: there is no s.
        in_logarithms: whether the components are those of log y_t.
    """

    level: float
    persistence: float
    has_slope: bool
    trend: float
    damping: float
    season: float | None
    in_logarithms: bool

    def weights(self, known: int, horizon: int, season: int) -> Tensor:
        """P, float64 `(horizon, known)`, for a season of m = `season` samples; `known` is at least 2 m."""
        return Factor(self, known + horizon, season).weights(known, horizon, has_slope=self.has_slope)

    def log_likelihood(self, samples: Tensor, season: int) -> Tensor:
        """ℓ of series in units of their mean changes, `(n, k)`, each with its own σ: `(k,)`.

        n is more than p. `in_logarithms` changes nothing here: the samples are then logarithms already.
        """
        factor = Factor(self, len(samples), season)
        return factor.log_likelihood(factor.whiten(samples), has_slope=self.has_slope)


@final
class Factor:
    """The Cholesky factor of I + κ at consecutive samples; structures with and without b share it.

    The factor of fewer samples is its upper left block, so forecasts and likelihoods share it too.

    Args:
        structure: v, ρ, z, φ and w.
        count: samples.
        season: m.
    """

    def __init__(self, structure: Structure, count: int, season: int) -> None:
        t = torch.arange(count, dtype=torch.float64)
        columns, covariance = [torch.ones_like(t)], torch.eye(count, dtype=torch.float64)
        if structure.level:
            walk = torch.minimum(t[:, None], t) + 1 if structure.persistence == 1 else None
            covariance.add_(_toeplitz(structure.persistence**t) if walk is None else walk, alpha=structure.level)
        if structure.trend:
            steps = t + 1
            sums = steps if structure.damping == 1 else (1 - structure.damping**steps) / (1 - structure.damping)
            reached = _toeplitz(sums).tril()
            covariance.addmm_(reached, reached.T, alpha=structure.trend)
        if structure.season is not None:
            phase, number = t.long() % season, t.div(season, rounding_mode="floor") + 1
            columns += [(phase == k).double() for k in range(1, season)]
            if structure.season:
                same = phase[:, None] == phase
                covariance.add_(torch.minimum(number[:, None], number) * same, alpha=structure.season)
        self._root = torch.linalg.cholesky(covariance)
        self._design = torch.stack([*columns, t - count], 1)
        self._white = self.whiten(self._design)

    def whiten(self, samples: Tensor) -> Tensor:
        """R⁻¹ y of the first n samples, `(n, k)`."""
        n = len(samples)
        return torch.linalg.solve_triangular(self._root[:n, :n], samples, upper=False)

    def weights(self, known: int, horizon: int, *, has_slope: bool) -> Tensor:
        """P of the first `known` samples, float64 `(horizon, known)`."""
        p, end = self._design.shape[1] - (not has_slope), known + horizon
        design, cross = self._white[:known, :p], self._root[known:end, :known]
        ahead = self._design[known:end, :p] - cross @ design
        rows = cross + ahead @ torch.linalg.solve(design.T @ design, design.T)
        return torch.linalg.solve_triangular(self._root[:known, :known], rows, upper=False, left=False)

    def log_likelihood(self, white: Tensor, *, has_slope: bool) -> Tensor:
        """ℓ of series, `(k,)`, from their whitened samples, `(n, k)`."""
        n, p = len(white), self._design.shape[1] - (not has_slope)
        design = self._white[:n, :p]
        root = torch.linalg.cholesky(design.T @ design)
        residual = white - design @ torch.cholesky_solve(design.T @ white, root)
        variance = residual.square().sum(0) / (n - p)
        volume = self._root.diagonal()[:n].log().sum() + root.diagonal().log().sum()
        if has_slope:
            volume = volume - 0.5 * math.log(n)  # the column of b is divided by √n
        return -0.5 * (n - p) * (variance + LEAST_ERROR).log() - volume


def _toeplitz(values: Tensor) -> Tensor:
    """The symmetric matrix of values `(n,)` of |i - j|, `(n, n)`."""
    n = len(values)
    around = torch.cat([values.flip(0), values[1:]])
    return around.unfold(0, n, 1).flip(0)


def read_before(shortest: int, horizon: int, season: int) -> int | None:
    """Samples before a window by which structures are chosen: half of the shortest series, or two seasons if longer.

    None: the series are too short.
    """
    half = shortest // 2
    if half < 2 * season <= shortest - horizon:
        half = 2 * season
    half = min(half, MOST_READ, shortest - horizon)
    return half if half >= LEAST_READ else None


def candidate_structures(known: int, season: int) -> list[Structure]:
    """The candidates for windows of `known` samples, none in logarithms; those that share a `Factor` are neighbours."""
    has_season = 1 < season <= min(MOST_SEASON, known // 2)
    parts = [
        *((v, rho, has_slope, 0.0, 1.0) for v, rho in LEVELS for has_slope in (False, True)),
        *((0.0, 1.0, phi == 1, z, phi) for z, phi in TRENDS),
    ]
    return [
        Structure(level=v, persistence=rho, has_slope=has_slope, trend=z, damping=phi, season=w, in_logarithms=False)
        for w in (SEASONS if has_season else (None,))
        for v, rho, has_slope, z, phi in parts
    ]


def factored(structures: Sequence[Structure], count: int, season: int) -> Iterator[tuple[Factor, list[Structure]]]:
    """Structures in order, neighbours that differ in b alone together, with their factor of `count` samples."""
    for plain, group in itertools.groupby(structures, lambda each: replace(each, has_slope=False)):
        yield Factor(plain, count, season), list(group)


def mean_changes(windows: WindowSet, ends: Sequence[int], columns: Sequence[int]) -> Tensor:
    """The mean absolute change from sample to sample of the predicted channels, for the series of each window.

    `(n, 1, F)`; 1 for a series that never changes.
    """
    found = torch.ones(len(windows), 1, len(columns), dtype=torch.float64)
    for i, (each, end) in enumerate(zip(windows.values, ends, strict=True)):
        change = each[:end, list(columns)].diff(dim=0).abs().mean(0)
        found[windows.places[:, 0] == i] = torch.where(change > 0, change, 1.0)
    return found
