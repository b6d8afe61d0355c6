"""The equation of a series of hops.

Legend
    B = γ S / c     one discounted hop      y = B (v + y)   the series, v the values      λ = g + Bᵀ λ   its adjoint
"""

from typing import final

import torch
from torch import Tensor

from fredholm.evaluation.neumann.hops import hop, transposed_hop
from fredholm.evaluation.neumann.tiles import HopTiles


@final
class System:
    """B of some heads of a problem.

    Args:
        tiles: scores among the points; rows are the last of these, where a chunk goes on after others.
        heads: which heads.
        weight: γ / c, `(g, n, 1)`.
    """

    def __init__(self, tiles: HopTiles, heads: slice, weight: Tensor) -> None:
        self.tiles, self.heads, self.weight = tiles, heads, weight

    def apply(self, signal: Tensor, *, adjoint: bool = False) -> Tensor:
        """B f, or Bᵀ f, `(g, n, c)`."""
        if adjoint:
            return transposed_hop(self.tiles, self.weight * signal, self.heads)
        return self.weight * hop(self.tiles, signal, self.heads)

    def mass(self) -> Tensor | None:
        """ω of the points, `(g or 1, N, 1)`; None: all 1."""
        tiles = self.tiles
        if tiles.mass is None:
            return None
        index = torch.arange(self.heads.start, self.heads.stop, device=tiles.query.device)
        return tiles.mass[(index // tiles.num_heads) % len(tiles.mass)][..., None]
