"""Regular grids on the unit box."""

from typing import final

import torch
from torch import Tensor

from fredholm.domains.domain import Domain, GridBlock, device_of


@final
class Grid(Domain):
    """Cell centres of a regular grid on the unit box `[0, 1]^s`, in row-major order.

    Along an axis of n cells the positions are (i + 1/2) / n, so that the default measure is the midpoint rule.

    Args:
        *shape: number of cells along each axis, each >= 1.
        periodic: displacements wrap to [-1/2, 1/2) along every axis (the torus).
        weights: mass of each cell, `(N,)` or `(B, N)`, >= 0; default uniform with total mass 1.
        mask: `(N,)` or `(B, N)` bool, True = this cell exists.

    Positions are float64, so that a computation in any precision rounds them once.
    """

    def __init__(
        self, *shape: int, periodic: bool = False, weights: Tensor | None = None, mask: Tensor | None = None
    ) -> None:
        if not shape or any(not isinstance(n, int) or isinstance(n, bool) or n < 1 for n in shape):
            raise ValueError(f"Grid: needs at least one axis and every axis at least one cell; got {shape}")
        self.shape = shape
        self.spacing = tuple(1.0 / n for n in shape)
        self.is_periodic = periodic
        self.is_generated = True
        self.grid_blocks = (GridBlock(0, shape, self.spacing, tuple(0.5 * h for h in self.spacing), periodic),)
        device = device_of(weights, mask)
        axes = [(torch.arange(n, dtype=torch.float64, device=device) + 0.5) / n for n in shape]
        pos = torch.stack([axis.reshape(-1) for axis in torch.meshgrid(*axes, indexing="ij")], dim=-1)
        self._set(pos, weights, mask)
