"""The base forecast, relative to which a model predicts.

Legend
    E      the mean squared error of a structure over the horizon of windows of the training part
    ℓ      the log likelihood of the last n samples, summed over all series (`structure.py`)
    r      the number of horizons that these windows amount to

The structure of a channel is the one with the largest min(1, COUNTED / n) ℓ - r log E, less SURE for logarithms. With
few samples E rests on hardly more than one horizon, so ℓ decides. With many no structure is quite true, so E decides.
"""

import functools
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
    factored,
    mean_changes,
    read_before,
)
from .windows import Ranges, WindowSet

RUNGS = 16
"""Number of steps in which the samples read grow with those before a window, so that few weights are computed."""
COUNTED = 150
"""Largest number of samples by which ℓ is weighted."""
SURE = 2.0
"""The margin by which logarithms must score better."""


@final
@dataclass(frozen=True, kw_only=True)
class Base:
    """The base forecast: a weighted mean of the forecast of a structure and the last value.

    Args:
        structures: structure of each predicted channel.
        season: m.
        most, least: the largest number of samples of a series that are read, and the smallest that is needed.
        share: the weight of the structure, from 0 to 1.
    """

    structures: tuple[Structure, ...]
    season: int
    most: int
    least: int
    share: float

    @property
    def in_logarithms(self) -> tuple[bool, ...]:
        """Whether the structure of each predicted channel is that of its logarithms."""
        return tuple(each.in_logarithms for each in self.structures)

    def weights(self, known: int, horizon: int) -> Tensor:
        """Weights on the last `known` samples, relative to the last one, for each step: `(F, horizon, known)`."""
        return self.share * torch.stack([_weights(each, known, horizon, self.season) for each in self.structures])

    def predictions(self, windows: WindowSet, columns: Sequence[int], effect: Effect | None = None) -> Tensor:
        """The base forecast of windows from up to `most` samples before them, `(n, horizon, F)`.

        With an effect, the forecast of the series without it.
        """
        count = (windows.places[:, 1] * RUNGS // self.most).clamp_max(RUNGS) * self.most // RUNGS
        count = count.clamp_min(self.least)
        found = torch.empty(len(windows), windows.horizon, len(columns), dtype=torch.float64)
        for known in count.unique().tolist():
            some = (count == known).nonzero()[:, 0]
            before = left(effect, windows.select(some), columns, known)
            found[some] = read(self.weights(known, windows.horizon), before, self.in_logarithms)
        return found


@functools.lru_cache(maxsize=128)
def _weights(structure: Structure, known: int, horizon: int, season: int) -> Tensor:
    """See `Structure.weights`; many windows and fits share the result, so it must not be changed in place."""
    return structure.weights(known, horizon, season)


def read(weights: Tensor, before: Tensor, in_logarithms: Sequence[bool]) -> Tensor:
    """Forecasts `(B, H, F)` by weights `(F, H, n)` on samples `(B, n, F)`.

    Samples are taken relative to the last one, so that no digits are lost. In a channel in logarithms the weights apply
    to logarithms, if all n samples of the window are above 0; otherwise to the samples.
    """
    samples = _Relative(before)
    found = samples.continued(weights)
    if any(in_logarithms):
        chosen = torch.tensor(in_logarithms, device=before.device)[:, None, None]
        found = torch.where(chosen, samples.grown(weights, found), found)
    return found.permute(1, 2, 0)


@final
class _Relative:
    """Samples `(B, n, F)` of windows, relative to the last one of each."""

    def __init__(self, before: Tensor) -> None:
        self._samples = before.permute(2, 0, 1).contiguous()
        self._last = self._samples[..., -1:]
        self._changes = self._samples - self._last

    def continued(self, weights: Tensor) -> Tensor:
        """Forecasts `(F, B, H)` by weights `(F, H, n)` or `(H, n)` on the samples."""
        return self._last + self._changes @ weights.mT

    def grown(self, weights: Tensor, continued: Tensor) -> Tensor:
        """Forecasts by weights on logarithms; `continued` where a sample of a window is not above 0."""
        is_above, ratios = self._ratios
        return torch.where(is_above, self._last * (ratios @ weights.mT).exp(), continued)

    @functools.cached_property
    def _ratios(self) -> tuple[Tensor, Tensor]:
        """Whether all samples are above 0 `(F, B, 1)`, and the logarithms of y / the last one where they are."""
        is_above = (self._samples > 0).all(2, keepdim=True)
        return is_above, torch.where(is_above, self._samples / self._last, 1.0).log()


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
    """The base whose structures suit some series best, with a share of 1; None: the series are too short.

    A window has half of the shortest series, or two seasons if that is longer and leaves a horizon.

    Args:
        values, truth: values and truth of each series; see `WindowSet`.
        ends: the number of samples of each series that may be used.
        columns: the predicted channels.
        horizon: H.
        season: m; 1: no season.
        effect: removed from the series first; None: nothing is removed.
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
    end_windows = replace(windows, horizon=0, places=torch.tensor([[i, end] for i, end in enumerate(ends)]))
    samples = left(effect, end_windows, columns, size).transpose(0, 1)
    samples = samples / mean_changes(end_windows, ends, columns)[:, 0]
    before, wanted = _Relative(left(effect, windows, columns, half)), windows.wanted()
    if effect is not None:
        term, factor = effect.of_windows(windows, columns)
        wanted = (wanted - term) / factor
    wanted, changes = wanted.permute(2, 0, 1), changes.permute(2, 0, 1)
    num_horizons, share = max(1.0, len(windows) / horizon), min(1.0, COUNTED / (size * len(ends)))
    is_above = (samples > 0).all(0).all(0)
    forms = [samples]
    if bool(is_above.any()):
        forms.append(_logarithms(torch.where(is_above, samples, 1.0)))
    every = torch.stack(forms, 1).flatten(1)
    scores, structures = list[Tensor](), list[Structure]()
    for factor, group in factored(candidate_structures(half, season), max(half + horizon, size), season):
        white = factor.whiten(every)
        for structure in group:
            weights = factor.weights(half, horizon, has_slope=structure.has_slope)
            likelihoods = factor.log_likelihood(white, has_slope=structure.has_slope)
            likelihoods = share * likelihoods.reshape(len(forms), len(ends), len(columns)).sum(1)
            predicted = before.continued(weights)
            for in_logarithms in (False, True)[: len(forms)]:
                if in_logarithms:
                    predicted = before.grown(weights, predicted)
                error = ((predicted - wanted) / changes).square().mean((1, 2)) + LEAST_ERROR
                score = likelihoods[int(in_logarithms)] - num_horizons * error.log()
                scores.append(torch.where(is_above, score - SURE, -torch.inf) if in_logarithms else score)
                structures.append(replace(structure, in_logarithms=in_logarithms))
    structures = tuple(structures[k] for k in torch.stack(scores).argmax(0).tolist())
    least = 2 * season if any(each.season is not None for each in structures) else min(half, LEAST_READ)
    return Base(structures=structures, season=season, most=min(shortest, MOST_READ), least=least, share=1.0)


def _logarithms(samples: Tensor) -> Tensor:
    """Logarithms of samples `(n, S, F)` above 0, times their geometric means, so that small changes keep their size.

    Their likelihood is then that of the samples (Box and Cox, An analysis of transformations, 1964).
    """
    logarithms = samples.log()
    return logarithms * logarithms.mean(0).exp()
