"""Series whose samples are brought into another order, the same for all: permuted MNIST."""

from dataclasses import replace

import torch

from .series_set import SeriesSet


def permute_samples(series: SeriesSet, seed: int, length: int) -> SeriesSet:
    """Brings the values of every series into one order of `length` samples, drawn from `seed`; times stay.

    Raises:
        ValueError: a series has another length or irregular times: the order of the others is none of it.
    """
    if series.times is not None:
        raise ValueError("permute_seed needs regular series; these have irregular times")
    for i in (series.lengths != length).nonzero()[:1, 0].tolist():
        raise ValueError(
            f"{series.names[i]}: has {int(series.lengths[i])} samples; permute_seed needs {length}, as in training"
        )
    order = torch.randperm(length, generator=torch.Generator().manual_seed(seed))
    return replace(series, values=series.values[:, order])
