"""Regular grids, by default on the unit box."""

import math
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from fredholm._settings import is_count
from fredholm.domains.checks import values_can_be_read
from fredholm.domains.domain import Domain, GridBlock, device_of
from fredholm.domains.points import Points


@final
class Grid(Domain):
    """A regular grid in row-major order: by default the cell centres of the unit box `[0, 1]^s`.

    Along an axis of n cells the positions are (i + 1/2) / n, so that the default measure is the midpoint rule; with a
    `spacing` or an `origin` they are origin + i spacing.

    Args:
        *shape: number of cells along each axis, each >= 1.
        periodic: displacements wrap to [-1/2, 1/2) along every axis (the torus).
        spacing: distance between neighbours along each axis, > 0; default 1 / n.
        origin: position of the first cell; default half a spacing along each axis.
        weights: mass of each cell, `(N,)` or `(B, N)`, >= 0; default uniform with total mass 1.
        mask: `(N,)` or `(B, N)` bool, True = this cell exists.
        device: device of the positions; None: that of weights or mask, else torch's default.

    Raises:
        ValueError: on a shape, spacing or origin out of range, and for a periodic grid whose cells do not tile the unit
            box.

    Positions are float64, so that a computation in any precision rounds them once.
    """

    def __init__(
        self,
        *shape: int,
        periodic: bool = False,
        spacing: Ordered[float] | None = None,
        origin: Ordered[float] | None = None,
        weights: Tensor | None = None,
        mask: Tensor | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        if not shape or not all(is_count(n) for n in shape):
            raise ValueError(
                f"Grid: needs at least one axis and every axis at least one cell, as in Grid(14, 14); got {shape}"
            )
        for what, given in (("spacing", spacing), ("origin", origin)):
            if isinstance(given, int | float):
                raise TypeError(f"Grid: {what} is a number for each axis, {what}={(given,) * len(shape)}; got {given}")
        self.shape = shape
        self.spacing = tuple(1.0 / n for n in shape) if spacing is None else tuple(spacing)
        self.origin = tuple(0.5 * h for h in self.spacing) if origin is None else tuple(origin)
        _check_lattice(shape, self.spacing, self.origin, periodic)
        self.is_periodic = periodic
        self.is_generated = True
        self.grid_blocks = (GridBlock(0, shape, self.spacing, self.origin, periodic),)
        device = device_of(weights, mask) if device is None else device
        cells = [torch.arange(n, dtype=torch.float64, device=device) for n in shape]
        if spacing is None and origin is None:
            axes = [(i + 0.5) / n for i, n in zip(cells, shape, strict=True)]
        else:
            axes = [x + i * h for x, i, h in zip(self.origin, cells, self.spacing, strict=True)]
        pos = torch.stack([axis.reshape(-1) for axis in torch.meshgrid(*axes, indexing="ij")], dim=-1)
        self._set(pos, weights, mask)


@final
@dataclass(frozen=True)
class UnitGrid:
    """The arguments of a regular `Grid` of the unit box."""

    shape: tuple[int, ...]
    spacing: tuple[float, ...]
    origin: tuple[float, ...]
    """Position of the first cell."""

    @property
    def num_points(self) -> int:
        """Number of points N."""
        return math.prod(self.shape)

    def domain(self, *, is_periodic: bool) -> Grid:
        """The grid as a domain."""
        return Grid(*self.shape, spacing=self.spacing, origin=self.origin, periodic=is_periodic)


def _check_lattice(
    shape: tuple[int, ...], spacing: tuple[float, ...], origin: tuple[float, ...], periodic: bool
) -> None:
    if len(spacing) != len(shape) or not all(0 < h < float("inf") for h in spacing):
        raise ValueError(f"Grid: spacing is a finite number > 0 for each of the {len(shape)} axes; got {spacing}")
    if len(origin) != len(shape) or not all(abs(x) < float("inf") for x in origin):
        raise ValueError(f"Grid: origin is a finite number for each of the {len(shape)} axes; got {origin}")
    if periodic and not all(abs(n * h - 1) < 1e-9 for n, h in zip(shape, spacing, strict=True)):
        raise ValueError(
            f"Grid: the cells of a periodic grid tile the unit box, spacing = 1 / n; got spacing {spacing} for {shape}"
        )


def whole_grid(domain: Domain) -> GridBlock | None:
    """The regular grid that all points of a domain form; None where they form none."""
    blocks = domain.grid_blocks
    return blocks[0] if len(blocks) == 1 and blocks[0].num_points == domain.num_points else None


def domain_of(pos: Tensor, mask: Tensor | None = None, *, periodic: bool = False) -> Domain:
    """The `Grid` that positions form in row-major order, or else `Points`; entries with equal positions share them.

    Positions form a grid if they lie on a lattice to one part in 1e6 of its spacing. Where values cannot be read, or
    need a gradient, they count as scattered, and as each entry's own.

    Args:
        pos: `(N, s)` or `(B, N, s)`, float.
        mask: as for `Points`.
        periodic: whether displacements wrap round the unit box; a grid then tiles it.
    """
    if pos.ndim == 3 and len(pos) and values_can_be_read(pos) and bool((pos == pos[:1]).all()):
        pos = pos[0]
    if pos.ndim == 2 and pos.numel() and values_can_be_read(pos) and not pos.requires_grad:
        found = _lattice(pos.double().cpu())
        if found is not None:
            shape, spacing, origin = found
            tiles = all(abs(n * h - 1) < 1e-9 for n, h in zip(shape, spacing, strict=True))
            if tiles or not periodic:
                return Grid(*shape, periodic=periodic, spacing=spacing, origin=origin, mask=mask, device=pos.device)
    return Points(pos, mask=mask, periodic=periodic)


def _lattice(pos: Tensor) -> tuple[tuple[int, ...], tuple[float, ...], tuple[float, ...]] | None:
    """Shape, spacing and origin of the lattice that positions `(N, s)` run through row by row; None: they do not."""
    low, high, step = pos.amin(0), pos.amax(0), (pos - pos[0]).abs()
    shape: list[int] = []
    spacing: list[float] = []
    for axis in range(pos.shape[1]):
        moves = step[step[:, axis] > 0, axis]
        extent = float(high[axis] - low[axis])
        count = 1 if len(moves) == 0 else round(extent / float(moves.min())) + 1
        shape.append(count)
        # an axis of one cell has any spacing
        spacing.append(1.0 if count == 1 else _snapped(extent / (count - 1)))
    if math.prod(shape) != len(pos):
        return None
    origin = tuple(low.tolist())
    away = (Grid(*shape, spacing=spacing, origin=origin).pos - pos).abs()
    return None if bool((away > 1e-6 * pos.new_tensor(spacing)).any()) else (tuple(shape), tuple(spacing), origin)


def _snapped(spacing: float) -> float:
    """The spacing, replaced by 1 / n where it equals that up to rounding."""
    count = round(1 / spacing)
    return 1 / count if count and abs(spacing * count - 1) < 1e-9 else spacing
