"""The unit box that functions are moved into, their grid in it, and their periodicity."""

from dataclasses import dataclass
from typing import Self, final

import torch
from torch import Tensor

from fredholm.domains import UnitGrid, domain_of, whole_grid
from fredholm.encoders.function import FunctionBatch, fill_gaps

from .field_set import FieldSet, Samples

LEAST_SIDE = 8
"""Number of points along an axis of the periodicity check."""
LEAST_FILLED = 0.5
"""Least part of a side of the unit box that functions within it must fill to stay where they are."""
OWN_REGION = 0.9
"""Side of functions' bounding boxes, relative to that of all, below which functions have regions of their own."""
TRIED = 1024
"""Largest number of functions of the periodicity check."""


@final
@dataclass(frozen=True)
class UnitBox:
    """Place of the unit box in the coordinates of the data, which are moved and scaled, all axes alike."""

    origin: tuple[float, ...]
    """Origin of the box."""
    extent: float
    """Side length of the box."""

    @classmethod
    def of(cls, train: FieldSet, *, is_periodic: bool) -> Self:
        """Returns the box that training functions fill, or the unit box where they fill at least half of a side of it.

        Raises:
            ValueError: periodic functions have samples outside the unit box.
        """
        every = torch.cat([_different_places(samples) for samples in (train.given, train.targets)])
        low, high = every.amin(0), every.amax(0)
        is_inside = bool((low >= 0).all()) and bool((high <= 1).all())
        if is_periodic and not is_inside:
            raise ValueError(
                f"is_periodic is True, and coordinates run from {low.tolist()} to {high.tolist()}; scale them so that "
                "functions repeat beyond the unit box, 0 to 1"
            )
        filled = float((high - low).max())
        if is_inside and (is_periodic or not 0 < filled < LEAST_FILLED):
            return cls((0.0,) * len(low), 1.0)
        return cls(tuple(low.tolist()), filled or 1.0)

    def placed(self, pos: Tensor) -> Tensor:
        """Converts positions of the data to the unit box."""
        return (pos - pos.new_tensor(self.origin)) / self.extent

    def in_data(self, pos: Tensor) -> Tensor:
        """Converts positions in the unit box to those of the data."""
        return pos * self.extent + pos.new_tensor(self.origin)


def _different_places(samples: Samples) -> Tensor:
    """Returns the points of functions, `(K, s)`; shared ones once."""
    return samples.pos[0] if samples.share_places else torch.cat(samples.places)


def grid_of(given: Samples, box: UnitBox, *, is_periodic: bool) -> UnitGrid | None:
    """Returns the grid of all functions, or one with twice as many points as a function, where each has its own points.

    Args:
        given: the functions.
        box: box that they are moved into.
        is_periodic: whether the grid must tile the box.

    Returns:
        The grid, or None where all functions share points that form none.
    """
    if given.share_places:
        lattice = whole_grid(domain_of(box.placed(given.pos[0]), periodic=is_periodic))
        return None if lattice is None else UnitGrid(lattice.shape, lattice.spacing, lattice.origin)
    places = box.placed(torch.cat(given.places))
    low, high = places.amin(0), places.amax(0)
    if is_periodic:
        low, high = torch.zeros_like(low), torch.ones_like(high)
    extent, wide = high - low, high > low
    spacing = (extent[wide].prod() / (2 * given.counts.double().mean())) ** (1 / max(1, int(wide.sum())))
    counts = torch.where(wide, (extent / spacing).round().clamp(min=1), 1.0)
    steps = torch.where(wide, extent / counts, 1.0)
    first = torch.where(wide, low + steps / 2, low)
    return UnitGrid(tuple(int(n) for n in counts.tolist()), tuple(steps.tolist()), tuple(first.tolist()))


def seem_to_repeat(functions: FieldSet, box: UnitBox) -> bool:
    """Whether functions seem to repeat beyond the unit box, which a grid must then tile.

    Across each border of the box they change by at most twice as much as between neighbours (root mean square), and at
    the border they differ from each other at least half as much as elsewhere: functions that are all 0 there do not
    repeat.
    """
    some = functions.select(torch.arange(min(len(functions), TRIED)))
    for samples in (some.given, some.targets):
        grid = grid_of(samples, box, is_periodic=True) if samples.share_places else None
        if grid is None or min(grid.shape) < LEAST_SIDE:
            return False
        domain = domain_of(samples.pos[0], samples.mask if samples.has_gaps else None)
        values = fill_gaps(FunctionBatch(samples.values, domain)).mT.unflatten(-1, grid.shape)
        spread = values.var(0, correction=0).mean()
        for axis in range(2, values.ndim):
            ends = values.index_select(axis, torch.tensor([0, grid.shape[axis - 2] - 1]))
            jump = ends.diff(dim=axis).square().mean()
            if jump > 4 * values.diff(dim=axis).square().mean() or ends.var(0, correction=0).mean() < 0.25 * spread:
                return False
    return True


def have_own_regions(samples: Samples) -> bool:
    """Whether functions have samples in different regions, such as intervals of different lengths.

    On average over functions and axes their bounding boxes are shorter than that of all functions by more than a tenth,
    apart from the part that N uniform samples leave out, 2 / (N + 1).
    """
    if samples.share_places:
        return False
    every = torch.cat(samples.places)
    extent, counts = every.amax(0) - every.amin(0), samples.counts.double()[:, None]
    own = torch.stack([places.amax(0) - places.amin(0) for places in samples.places])
    # functions of one sample have no box
    several, wide = counts[:, 0] > 1, extent > 0
    filled = (own / extent * (counts + 1) / (counts - 1))[several][:, wide]
    return filled.numel() > 0 and float(filled.mean()) < OWN_REGION
