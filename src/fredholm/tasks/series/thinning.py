"""Series with fewer samples: at a lower rate, or with some dropped."""

from dataclasses import replace
from typing import Literal

import torch

from .series_set import SeriesSet

Dropped = Literal["missing", "absent"]
"""Whether a dropped sample stays as one without values, or is not there, so that times become irregular."""


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
        spacing=series.spacing * step,
    )


def drop_samples(series: SeriesSet, share: float, seed: int, dropped: Dropped = "missing") -> SeriesSet:
    """Without a share of the samples of each series, in all channels at once (after Kidger et al., 2020).

    Of n samples `int(share n)` are dropped, which are drawn from `seed` evenly and without replacement.

    Args:
        series: the whole ones.
        share: from 0 to below 1.
        seed: of the draws; they depend on the series' lengths and their order too.
        dropped: `missing` makes values NaN and leaves times and lengths, which is what the paper's networks saw;
            `absent` takes the samples out.

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
    times = series.times if series.times is not None else torch.arange(longest).expand(n, -1) * series.spacing
    inside = torch.arange(order.shape[1]) < lengths[:, None]
    return replace(
        series,
        values=series.values.take_along_dim(order[..., None], 1).masked_fill(~inside[..., None], torch.nan),
        lengths=lengths,
        times=times.double().take_along_dim(order, 1).masked_fill(~inside, 0.0),
        spacing=1.0,
    )
