"""Series with fewer samples: at a lower rate, averaged, or with some dropped."""

import math
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from fredholm.tasks.targets import UNKNOWN

from .series_set import SeriesSet

_ROUNDING = 1e-6

Dropped = Literal["missing", "absent"]
"""Whether a dropped sample stays without values, or is removed, so that times become irregular."""


def take_every(series: SeriesSet, step: int) -> SeriesSet:
    """Every `step`-th sample from the first on, at its own time: `seq[::step]` (CKConv, E.2).

    Raises:
        ValueError: `step` is below 1.
    """
    if step < 1:
        raise ValueError(f"every is {step}; expected at least 1")
    if step == 1:
        return series
    return replace(
        series,
        values=series.values[:, ::step],
        lengths=(series.lengths - 1) // step + 1,
        times=None if series.times is None else series.times[:, ::step],
        sample_labels=series.with_labels(lambda labels: labels[:, ::step]),
        spacing=series.spacing * step,
    )


def drop_samples(series: SeriesSet, share: float, seed: int, dropped: Dropped = "missing") -> SeriesSet:
    """Drops a share of the samples of each series, in all channels at once (after Kidger et al., 2020).

    Of n samples `int(share n)` are dropped, drawn uniformly and without replacement.

    Args:
        series: the complete series.
        share: share of the samples, from 0 to below 1.
        seed: seed of the draws, which also depend on the lengths and the order of the series.
        dropped: `missing` makes values NaN and leaves times and lengths, as in the paper; `absent` removes the samples.

    Raises:
        ValueError: the share is out of range.
    """
    if not 0 <= share < 1:
        raise ValueError(f"drop is {share}; expected a share from 0 to below 1")
    if share == 0:
        return series
    n, longest = series.exists.shape
    generator = torch.Generator().manual_seed(seed)
    keys = torch.rand(n, longest, generator=generator, dtype=torch.float64).masked_fill(~series.exists, 2.0)
    ranks = keys.argsort(dim=1, stable=True).argsort(dim=1, stable=True)
    gone = ranks < (share * series.lengths.double()).long()[:, None]
    if dropped == "missing":
        return replace(series, values=series.values.masked_fill(gone[..., None], torch.nan))
    kept = series.exists & ~gone
    order = (~kept).int().argsort(dim=1, stable=True)  # kept samples first, in their order
    lengths = kept.sum(1)
    order = order[:, : int(lengths.max())]
    inside = torch.arange(order.shape[1]) < lengths[:, None]
    return replace(
        series,
        values=series.values.take_along_dim(order[..., None], 1).masked_fill(~inside[..., None], torch.nan),
        lengths=lengths,
        times=_times(series).take_along_dim(order, 1).masked_fill(~inside, 0.0),
        sample_labels=series.with_labels(lambda labels: labels.take_along_dim(order, 1).masked_fill(~inside, UNKNOWN)),
        spacing=1.0,
    )


def average_in_bins(series: SeriesSet, width: float) -> SeriesSet:
    """Regular samples, one a bin: the mean of each channel's observed values in it, missing where there are none.

    The class of a bin is the commonest of its samples, unknown where none is known.

    Bins are [k width, (k + 1) width); a series has those from its first to its last sample.

    Args:
        series: regular or irregular series.
        width: duration of a bin, which is the spacing of the result; above 0.

    Raises:
        ValueError: the width is out of range.
    """
    if not 0 < width < math.inf:
        raise ValueError(f"bin is {width}; expected a finite duration above 0")
    bins = bin_of(_times(series), width)
    place = torch.where(series.exists, bins - bins[:, :1], 0)
    lengths = place.amax(1) + 1
    observed = ~series.values.isnan() & series.exists[..., None]
    shape = (len(series), int(lengths.max()), len(series.channels))
    index = place[..., None].expand_as(series.values)
    counts = torch.zeros(shape, dtype=torch.float64).scatter_add_(1, index, observed.double())
    sums = torch.zeros_like(counts).scatter_add_(1, index, series.values.double().where(observed, 0.0))
    return replace(
        series,
        values=(sums / counts).to(series.values.dtype),
        lengths=lengths,
        times=None,
        sample_labels=series.with_labels(lambda labels: _commonest(labels, place, shape[1])),
        spacing=width,
    )


def _commonest(labels: Tensor, place: Tensor, num_bins: int) -> Tensor:
    """The commonest known class `(n, num_bins)` of the samples of each bin, the first of equally common ones."""
    best = torch.zeros(len(labels), num_bins, dtype=torch.int64)
    found = torch.full_like(best, UNKNOWN)
    for k in range(int(labels.max()) + 1):
        counts = torch.zeros_like(best).scatter_add_(1, place, (labels == k).long())
        found, best = torch.where(counts > best, k, found), torch.maximum(best, counts)
    return found


def bin_of(times: Tensor, width: float) -> Tensor:
    """Number k of the bin [k width, (k + 1) width) of each time, int64."""
    return torch.floor(times / width + _ROUNDING).long()


def _times(series: SeriesSet) -> Tensor:
    """Time of each sample, float64 `(n, T)`."""
    n, longest = series.values.shape[:2]
    regular = torch.arange(longest, dtype=torch.float64).expand(n, -1) * series.spacing
    return regular if series.times is None else series.times
