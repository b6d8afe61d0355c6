"""Series whose samples are brought into another order, the same for all: permuted MNIST."""

from dataclasses import replace

import torch

from .series_set import SeriesSet


def permute_samples(series: SeriesSet, seed: int) -> SeriesSet:
    """Brings the values of every series into one order that is drawn from `seed`; times stay where they are.

    Raises:
        ValueError: the series have different lengths, or times of their own: no order is common to them.
    """
    longest = series.values.shape[1]
    if series.times is not None or bool((series.lengths != longest).any()):
        raise ValueError("permute_seed needs regular series of one length; these differ in their lengths or times")
    order = torch.randperm(longest, generator=torch.Generator().manual_seed(seed))
    return replace(series, values=series.values[:, order])
