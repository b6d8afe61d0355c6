"""Batches of sampled functions: drawing samples, standardising values, and moving functions by symmetries."""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor

from fredholm.tasks.files.cells import rounding_of
from fredholm.tasks.task import Batch

from .field_set import Samples

Symmetry = Literal["mirror", "exchange"]
"""Symmetries of the unit box: reflection along any axis, or exchange of axes."""


@final
class Scale:
    """Mean and deviation of each of m channels, for standardising values.

    Values may be those of several steps, concatenated, each of m channels.

    Args:
        mean, deviation: one number per channel.
    """

    def __init__(self, mean: Sequence[float], deviation: Sequence[float]) -> None:
        self.mean, self.deviation = (torch.tensor(each, dtype=torch.float64) for each in (mean, deviation))

    def standardised(self, values: Tensor) -> Tensor:
        """Standardises values `(..., T·m)` to mean 0 and deviation 1, in float32."""
        mean, deviation = self._like(values)
        return ((values - mean) / deviation).float()

    def in_unit(self, values: Tensor) -> Tensor:
        """Converts standardised values `(..., T·m)` to the unit of the data, in float64."""
        mean, deviation = self._like(values)
        return values * deviation + mean

    def in_deviations(self, values: Tensor) -> Tensor:
        """Converts standardised values to data divided by deviations, in the same dtype; 0 remains exactly 0."""
        # rounded as `standardised` rounds; `in_unit` would leave the rounding error of the mean
        offset = (self.mean / self.deviation).to(values)
        return values + offset.repeat(values.shape[-1] // len(offset))

    def batch(self, samples: Samples) -> Batch:
        """Returns `pos`, standardised `values`, 0 where a sample is missing, and `mask`."""
        exists = samples.exists
        values = torch.where(exists[..., None], self.standardised(samples.values), 0.0)
        return {"pos": samples.pos, "values": values, "mask": exists}

    def _like(self, values: Tensor) -> tuple[Tensor, Tensor]:
        steps = values.shape[-1] // len(self.mean)
        return self.mean.to(values.device).repeat(steps), self.deviation.to(values.device).repeat(steps)


@final
class Moments(NamedTuple):
    """Mean and deviation of each channel; a constant channel has deviation 1, so that it becomes 0."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]


def moments(parts: Callable[[], Iterable[Samples]]) -> Moments:
    """Computes the moments over all existing samples.

    Args:
        parts: returns the samples in parts, from the first one on each call.
    """
    count, total, rounding = 0.0, torch.zeros((), dtype=torch.float64), 0.0
    for samples in parts():
        rounding = rounding_of(samples.values.dtype)
        exists = samples.exists[..., None].double()
        count += float(exists.sum())
        total = total + (samples.values * exists).sum((0, 1))
    mean, squares = total / count, torch.zeros_like(total)
    for samples in parts():
        exists = samples.exists[..., None].double()
        squares += ((samples.values - mean) * exists).square().sum((0, 1))
    deviation = (squares / count).sqrt()
    return Moments(tuple(mean.tolist()), tuple(torch.where(deviation > rounding * mean.abs(), deviation, 1.0).tolist()))


def draw_samples(samples: Samples, count: int | None, generator: torch.Generator) -> Samples:
    """Draws ``count`` existing samples of each function, or all where it has no more."""
    if count is None or count >= samples.pos.shape[1]:
        return samples
    lots = torch.rand(samples.pos.shape[:2], generator=generator)
    chosen = torch.where(samples.exists, lots, -1.0).topk(count, dim=1).indices
    pos, values = (part.take_along_dim(chosen[..., None], 1) for part in (samples.pos, samples.values))
    return Samples(pos, values, None if samples.mask is None else samples.mask.take_along_dim(chosen, 1))


def draw_each(samples: Samples, count: int | None, seeds: Sequence[int]) -> Samples:
    """Draws as `draw_samples`, but each function by its own seed, independent of the other functions."""
    if count is None or count >= samples.pos.shape[1]:
        return samples
    drawn = [
        draw_samples(samples.select(torch.tensor([i])), count, torch.Generator().manual_seed(seed))
        for i, seed in enumerate(seeds)
    ]
    mask = None if samples.mask is None else torch.cat([part.exists for part in drawn])
    return Samples(torch.cat([part.pos for part in drawn]), torch.cat([part.values for part in drawn]), mask)


def draw_times(given: Samples, targets: Samples, steps: int, generator: torch.Generator) -> tuple[Samples, Samples]:
    """Draws, for each trajectory, a random state and the next ``steps`` states."""
    channels = given.num_channels
    states = torch.cat([given.values, targets.values], dim=-1).unflatten(-1, (-1, channels))
    first = torch.randint(states.shape[2] - steps, (len(states),), generator=generator)
    index = (first[:, None] + torch.arange(steps + 1))[:, None, :, None]
    taken = states.take_along_dim(index, dim=2)
    return given.with_values(taken[:, :, 0]), targets.with_values(taken[:, :, 1:].flatten(2))


def moved(batch: Batch, symmetries: Sequence[Symmetry], generator: torch.Generator) -> Batch:
    """Moves a batch in the unit box, inputs and targets, by one of the symmetries, drawn at random."""
    if not symmetries:
        return batch
    axes = batch["pos"].shape[-1]
    is_mirrored, order = torch.zeros(axes, dtype=torch.bool), torch.arange(axes)
    if "mirror" in symmetries:
        is_mirrored = torch.rand(axes, generator=generator) < 0.5
    if "exchange" in symmetries:
        order = torch.randperm(axes, generator=generator)
    found = dict(batch)
    for name in ("", "target_"):
        pos = torch.where(is_mirrored, 1 - batch[f"{name}pos"], batch[f"{name}pos"])[..., order]
        parts = {"pos": pos, **{part: batch[f"{name}{part}"] for part in ("values", "mask")}}
        # points of a grid are brought into the order of a grid again
        sorted_by = row_major(pos)
        found |= {f"{name}{part}": tensor.take_along_dim(_like(sorted_by, tensor), 1) for part, tensor in parts.items()}
    return found


def row_major(pos: Tensor) -> Tensor:
    """Returns the lexicographic order of points `(B, N, s)` by their coordinates: `(B, N)`."""
    order = torch.arange(pos.shape[1]).expand(pos.shape[:2])
    for axis in reversed(range(pos.shape[2])):
        order = order.take_along_dim(pos[..., axis].take_along_dim(order, 1).argsort(dim=1, stable=True), 1)
    return order


def _like(index: Tensor, tensor: Tensor) -> Tensor:
    return index if tensor.ndim == 2 else index[..., None]
