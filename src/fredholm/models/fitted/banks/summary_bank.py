"""Ranks of summaries of the observed samples of each channel, and a linear head in closed form.

Legend
    S       observed samples of a channel; n their number, t_j and u_j their times and values
    T       time of the series' last sample
    F       distribution of a summary over the training series, F(a) = (P[A < a] + P[A <= a]) / 2, from its quantiles
    P_k     the Legendre polynomial of degree k, with P_k(1) = 1

    mean, deviation     m = Σ_S u_j / n and √(Σ_S (u_j - m)² / n)        least, largest    min_S u_j, max_S u_j
    first, last         of u_j in the order of time                      count             n
    slope               Σ_S (t_j - t̄)(u_j - m) / Σ_S (t_j - t̄)²          since             T - max_S t_j
    features of a summary a:   P_k(2 F(a) - 1) for k = 1 ... degree, and 1[a is not defined];   logits from `RidgeHead`

Scores are a sum of smooth functions of the summaries' ranks (Hastie and Tibshirani, Generalized additive models, 1986).
They do not depend on a channel's scale or skewness, are robust to gross errors, and both high and low values may
indicate a class.
"""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, final

import torch
from torch import Tensor

from fredholm._settings import check_count
from fredholm.encoders.series import Series, SeriesBatch
from fredholm.models.fitted.fitted_model import FittedModel
from fredholm.models.fitted.ridge_head import Regressand, RidgeHead
from fredholm.models.series.series_model import SeriesModelConfig, SeriesSampling

NUM_SUMMARIES = 9
NUM_QUANTILES = 127
"""Number of quantiles of a summary's distribution, evenly spaced in (0, 1)."""


@final
class SummaryBank(FittedModel[SeriesBatch]):
    """A ridge regression on the ranks of nine summaries of the observed samples of each channel.

    For series in which each channel is measured at its own times, so that most values are missing. Imputed values are
    never read. A single observation channel applies to all channels.

    Args:
        sampling: sampling of the training series.
        num_outputs: number of outputs, such as classes.
        config: degree of the polynomials of ranks.
    """

    quantiles: Tensor

    @final
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(SeriesModelConfig):
        """Degree of the polynomials of ranks."""

        learns_by_steps: ClassVar[bool] = False

        degree: int = 2
        """Degree of the polynomials of a rank, at least 1."""

        def __post_init__(self) -> None:
            check_count("models.SummaryBank", "degree", self.degree)

        def check(self) -> None:
            """See `SeriesModelConfig.check`: there is nothing to check, as there is one output per series."""

        def build(self, sampling: SeriesSampling, num_outputs: int) -> "SummaryBank":
            """See `SeriesModelConfig.build`."""
            return SummaryBank(sampling, num_outputs, self)

    def __init__(self, sampling: SeriesSampling, num_outputs: int, config: Config) -> None:
        super().__init__()
        self.config, self.sampling = config, sampling
        self.encoder = Series(sampling.channels, spacing=sampling.spacing)
        count = NUM_SUMMARIES * (sampling.channels - len(sampling.observation))
        self.register_buffer("quantiles", torch.zeros(count, NUM_QUANTILES))
        self.head = RidgeHead(count * (config.degree + 1), num_outputs)

    def forward(self, inputs: Tensor | SeriesBatch) -> Tensor:
        """Maps a batch to outputs `(B, num_outputs)`, which are all equal before a fit."""
        return self.head(self._features(self.summaries(inputs)))

    @torch.no_grad()
    def fit(
        self,
        batches: Sequence[tuple[SeriesBatch, Tensor]],
        regressand: Regressand,
        *,
        groups: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Computes quantiles of the training series and fits the head; see `FittedModel.fit`."""
        if not sum(len(targets) for _, targets in batches):
            raise ValueError("models.SummaryBank: there is no series to fit to")
        found = torch.cat([self.summaries(batch) for batch, _ in batches])
        orders = torch.arange(1, NUM_QUANTILES + 1).to(found) / (NUM_QUANTILES + 1)
        self.quantiles.zero_()
        for row, values in zip(self.quantiles, found.T, strict=True):
            values = values[~values.isnan()]
            if len(values):
                row.copy_(values.quantile(orders, interpolation="nearest"))
        targets = torch.cat([targets for _, targets in batches])
        return self.head.fit(self._features(found), targets, regressand, groups=groups, weights=weights)

    def _features(self, summaries: Tensor) -> Tensor:
        """Features `(B, S (degree + 1))` of summaries `(B, S)`, which are NaN where one is not defined."""
        # rounded like the quantiles, so that a value equal to a quantile stays equal
        each = summaries.nan_to_num(0.0).float().to(self.quantiles.dtype)[..., None]
        defined = ~summaries.isnan()
        # by counting, since ONNX has no searchsorted
        rank = ((self.quantiles < each).sum(-1) + (self.quantiles <= each).sum(-1)) / NUM_QUANTILES - 1
        rank = rank.to(self.quantiles.dtype)
        before, now, found = torch.ones_like(rank), rank, [(~defined).to(rank.dtype)]
        for k in range(1, self.config.degree + 1):
            found.append(torch.where(defined, now, 0.0))
            before, now = now, ((2 * k + 1) * rank * now - k * before) / (k + 1)  # Bonnet's recursion
        return torch.cat(found, dim=1).to(self.quantiles.dtype)

    @torch.no_grad()
    def summaries(self, inputs: Tensor | SeriesBatch) -> Tensor:
        """Returns the nine summaries of each channel, in the order of the legend, channel by channel, `(B, S)`.

        All but the count are NaN where a channel was never observed, and the slope where it was observed once.
        """
        given = inputs if isinstance(inputs, SeriesBatch) else SeriesBatch(inputs)
        return summarise(*observations(self.encoder, self.sampling, given))


def observations(
    encoder: Series, sampling: SeriesSampling, given: SeriesBatch
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The arguments of `summarise` from a batch: values, masks of observed values, times, and existing samples.

    Args:
        encoder: encoder of the series.
        sampling: sampling of the series, whose last channels mark observed values.
        given: the batch.
    """
    channels, domain = encoder(given)
    exists = torch.ones_like(channels[..., 0], dtype=torch.bool) if given.mask is None else given.mask
    values, observed = separated(channels, sampling, exists)
    return values, observed, domain.pos[..., 0].expand(exists.shape), exists


def separated(channels: Tensor, sampling: SeriesSampling, exists: Tensor) -> tuple[Tensor, Tensor]:
    """Separates values from the channels that mark observed ones.

    Args:
        channels: `(B, N, channels)`.
        sampling: sampling of the series, whose last channels mark observed values.
        exists: `(B, N)` bool, existing samples.

    Returns:
        Values `(B, N, C)`, and the mask of observed ones, at existing samples.
    """
    watched = sampling.observation
    split = sampling.channels - len(watched)
    values, observation = channels[..., :split], channels[..., split:] > 0.5
    observed = exists[..., None].expand_as(values).clone()
    if len(watched) == 1:
        observed &= observation
    else:
        observed[..., list(watched)] &= observation
    return values, observed


def summarise(values: Tensor, observed: Tensor, times: Tensor, exists: Tensor) -> Tensor:
    """Computes the summaries of each channel.

    Args:
        values: `(B, N, C)`, N at least 1.
        observed: `(B, N, C)` bool, mask of observed values, at existing samples.
        times: `(B, N)`, increasing along existing samples.
        exists: `(B, N)` bool.

    Returns:
        `(B, 9 C)`, float32: the nine summaries, channel by channel. All but the count are NaN where a channel was never
        observed, and the slope where it was observed at one time alone.
    """
    u, t = torch.where(observed, values, 0.0).double(), times.double()[..., None]
    count = observed.sum(1)
    n = torch.where(count > 0, count, torch.nan).double()

    def mean(of: Tensor) -> Tensor:
        return torch.where(observed, of, 0.0).sum(1) / n

    def at(place: Tensor, of: Tensor) -> Tensor:
        return torch.where(count > 0, of.expand_as(u).gather(1, place[:, None])[:, 0], torch.nan)

    order = torch.arange(1, values.shape[1] + 1, device=values.device)[:, None] * observed
    last = order.argmax(1)
    first = torch.where(observed, order, values.shape[1] + 1).argmin(1)
    level, moment = mean(u), mean(t.expand_as(u))
    spread = mean((t - moment[:, None]).square())
    slope = mean((t - moment[:, None]) * (u - level[:, None])) / torch.where(spread > 0, spread, torch.nan)
    end = torch.where(exists, times.double(), -torch.inf).amax(1, keepdim=True)
    least, largest = (torch.where(observed, u, sign * torch.inf) for sign in (1, -1))
    found = [
        level,
        mean((u - level[:, None]).square()).sqrt(),
        torch.where(count > 0, least.amin(1), torch.nan),
        torch.where(count > 0, largest.amax(1), torch.nan),
        at(first, u),
        at(last, u),
        count.double(),
        slope,
        end - at(last, t),
    ]
    return torch.stack(found, -1).flatten(1).float()
