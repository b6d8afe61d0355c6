"""What Yat responses are computed from, besides the products S of points and prototypes."""

from dataclasses import dataclass
from typing import Self, final

import torch
from torch import Tensor

from fredholm.layers.yat_response.tiling import BLOCK_ELEMENTS, Block


@final
@dataclass(frozen=True)
class Terms:
    """Legend of one block: S is `(N, G, U, L)`, for N signals of G groups of U units at L points each.

    Attributes:
        query_square: ‖x‖², `(N, G, 1, L)`.
        key_square: ‖w‖², `(1, G, U, 1)`.
        bias: b, `(1, G, U, 1)`; None: 0.
        epsilon: ε, 0-dim.
        scale: s, 0-dim; None: 1.
    """

    query_square: Tensor
    key_square: Tensor
    bias: Tensor | None
    epsilon: Tensor
    scale: Tensor | None

    def at(self, block: Block) -> Self:
        """The terms of one block."""
        n, g, u = block
        bias = None if self.bias is None else self.bias[:, g, u]
        return type(self)(self.query_square[n, g], self.key_square[:, g, u], bias, self.epsilon, self.scale)

    def scaled_sums(self) -> Self:
        """The terms with s (‖x‖² + ε) and s ‖w‖², whose sum is s C, for the backward; never below what divides."""
        tiny = torch.finfo(self.query_square.dtype).tiny
        query, key = self.query_square + self.epsilon, self.key_square
        if self.scale is not None:
            query, key = query * self.scale, key * self.scale
        return type(self)(query.clamp_min(tiny), key, self.bias, self.epsilon, self.scale)


def squares(vectors: Tensor) -> Tensor:
    """‖v‖² of `(M, d)`, NaN where it is not finite: such a vector would otherwise answer a plausible 0."""
    # some rows at a time, so that their squares stay in cache
    rows = max(1, BLOCK_ELEMENTS // max(1, vectors.shape[-1]))
    found = torch.cat([part.square().sum(-1) for part in vectors.split(rows)])
    return torch.where(found.isinf(), torch.nan, found)
