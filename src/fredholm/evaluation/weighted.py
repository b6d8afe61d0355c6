"""Kernels of one number per head and pair, times a value matrix, in tiles of queries."""

import dataclasses
from typing import final

import torch
from torch import Tensor

from fredholm.domains import Points, past_mass
from fredholm.evaluation.evaluation import Route
from fredholm.evaluation.integral import Integral, order_read
from fredholm.evaluation.recomputed import recomputed
from fredholm.evaluation.tiling import pair_refusals
from fredholm.kernels import ValueMixing


@final
@dataclasses.dataclass(frozen=True)
class Weighted(Route[ValueMixing]):
    """For `ValueMixing` kernels: `coefficients @ values`, some queries at a time, recomputed in the backward pass.

    Only the kernel's own `density` is needed. Cost per pair and head that of the density and 2 d_v flops; memory O(N·d)
    plus that of one tile, without the N x N x d² of κ.

    Args:
        tile_elements: pairs of all heads in a tile; None: 2^20 on a CPU, 2^25 elsewhere.
    """

    marker = ValueMixing
    weighs_pairs = True
    tile_elements: int | None = None

    def refusals(self, integral: Integral[ValueMixing]) -> list[str]:
        """Refuses kernels whose rows depend on each other, and pair weights for other heads than the kernel's."""
        if integral.kernel.holds_pair_weights:
            return ["κ is a sum over chains of pairs, whose rows cannot be computed one by one"]
        return pair_refusals(integral)

    def compute(self, integral: Integral[ValueMixing]) -> Tensor:
        """See `Route.compute`."""
        kernel, u = integral.kernel, integral.u
        elements = self.tile_elements or (1 << 20 if u.device.type == "cpu" else 1 << 25)
        size = max(1, elements // max(1, u.shape[0] * kernel.num_heads * integral.domain.num_points))
        multiplicand, matrices = kernel.multiplicand(u), kernel.value_matrices()
        value = torch.einsum("hoi,bni->bhno", matrices.to(u.dtype), multiplicand)
        rows = [
            recomputed(kernel, self._rows, integral, value, slice(start, start + size))
            for start in range(0, integral.num_queries, size)
        ]
        return torch.cat(rows, dim=1)

    def _rows(self, integral: Integral[ValueMixing], value: Tensor, rows: slice) -> Tensor:
        """The integral at some queries, `(B, r, H·d)`."""
        domain, query_domain = integral.domain, integral.query_domain
        at, times = order_read(integral.kernel, query_domain, domain)
        pos = (query_domain.pos if query_domain.pos.ndim == 3 else query_domain.pos[None])[:, rows]
        past = past_mass(query_domain, domain)[:, rows] if integral.kernel.averages_past else None
        query_domain = Points.derived(
            query_domain, pos, pos.new_ones(pos.shape[:2]), None if at is None else at[:, rows], past
        )
        domain = domain.as_met_by(rows, times)
        coefficients = integral.kernel.coefficients(integral.u, domain, integral.query[:, rows], query_domain)
        return (coefficients @ value.to(coefficients.dtype)).transpose(1, 2).flatten(2)
