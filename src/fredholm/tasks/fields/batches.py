"""Batches of sampled functions: which samples are drawn, and what stands for their values."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm.tasks.task import Batch

from .field_set import Samples


def standardise(samples: Samples, mean: Tensor, deviation: Tensor) -> Batch:
    """`pos`, `values` of mean 0 and deviation 1, and `mask`."""
    exists = samples.exists
    values = torch.where(exists[..., None], (samples.values - mean) / deviation, 0.0)
    return {"pos": samples.pos, "values": values, "mask": exists}


@final
class Moments(NamedTuple):
    """Of each channel's values; a constant channel has deviation 1, so that it becomes 0."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]


def moments(parts: Callable[[], Iterable[Samples]]) -> Moments:
    """Over all samples that exist.

    Args:
        parts: the samples in parts, from the first one anew at each call.
    """
    count, total = 0.0, torch.zeros((), dtype=torch.float64)
    for samples in parts():
        exists = samples.exists[..., None].double()
        count += float(exists.sum())
        total = total + (samples.values * exists).sum((0, 1))
    mean, squares = total / count, torch.zeros_like(total)
    for samples in parts():
        exists = samples.exists[..., None].double()
        squares += ((samples.values - mean) * exists).square().sum((0, 1))
    deviation = (squares / count).sqrt()
    return Moments(tuple(mean.tolist()), tuple(torch.where(deviation > 1e-12, deviation, 1.0).tolist()))


def draw_samples(samples: Samples, count: int | None, generator: torch.Generator) -> Samples:
    """So many existing samples of each function, or all where it has no more."""
    if count is None or count >= samples.pos.shape[1]:
        return samples
    lots = torch.rand(samples.pos.shape[:2], generator=generator)
    chosen = torch.where(samples.exists, lots, -1.0).topk(count, dim=1).indices
    pos, values = (part.take_along_dim(chosen[..., None], 1) for part in (samples.pos, samples.values))
    return Samples(pos, values, None if samples.mask is None else samples.mask.take_along_dim(chosen, 1))


def joined(parts: Sequence[Samples]) -> Samples:
    """Several sets of samples as one, all with as many places."""
    masks = None if all(part.mask is None for part in parts) else torch.cat([part.exists for part in parts])
    return Samples(torch.cat([part.pos for part in parts]), torch.cat([part.values for part in parts]), masks)
