"""Norms of hops from what `hops.py` measures of their rows, and how gradients pass through them.

Legend
    r_l          Σ_j ω_j (φ m)_lj² of a point's own row             n_i    how many leading points a query sees
    c_i²         c_0² + Σ_{l < n_i} ω_l r_l; all l, unless causal   ρ_i    (∂L/∂log c_i) / c_i², with the sign turned

    ∂L/∂(ω_l r_l) = -E_l / 2,   E_l = Σ_{i: n_i > l} ρ_i
"""

from typing import NamedTuple, final

import torch
from torch import Tensor


class Order(NamedTuple):
    """Which rows count in the norm of a query: the first `seen - start` of them."""

    seen: Tensor  # (G, Nq)
    start: int  # points before the first row


@final
class BlockNorm:
    """The Frobenius norm of all rows, or of those so far.

    Args:
        rows: r, `(G, n)` in float64.
        mass: ω of the rows, `(G or 1, n)`; None: 1.
        before: c_0, `(G,)`; None: 0.
    """

    def __init__(self, rows: Tensor, mass: Tensor | None, before: Tensor | None) -> None:
        self.rows, self.before = rows, before
        weighed = rows if mass is None else rows * mass
        first = rows.new_zeros(len(rows), 1) if before is None else before.double().square()[:, None]
        self.squares = torch.cat([first, weighed], dim=-1).cumsum(-1)  # (G, n + 1)

    def at(self, num_queries: int, order: Order | None) -> Tensor:
        """c of queries, `(G, Nq)` in float64."""
        if order is None:
            return self.squares[:, -1:].sqrt().expand(-1, num_queries)
        return self.squares.gather(-1, _places(order, self.rows.shape[-1])).sqrt()

    def spread(self, ratios: Tensor, order: Order | None) -> Tensor:
        """E, `(G, n)`, from ρ `(G, Nq)`."""
        count = self.rows.shape[-1]
        if order is None:
            return ratios.sum(-1, keepdim=True).expand(-1, count)
        bins = torch.zeros_like(self.squares).scatter_add(-1, _places(order, count), ratios)
        return bins.flip(-1).cumsum(-1).flip(-1)[:, 1:]


def _places(order: Order, count: int) -> Tensor:
    return (order.seen - order.start).clamp(0, count)


def reciprocal(norm: Tensor, dtype: torch.dtype) -> Tensor:
    """1 / c, and NaN for NaN; 0 where there is no hop, or one so small that 1 / c is infinite in `dtype`."""
    no_hop = norm <= torch.finfo(dtype).tiny
    return torch.where(no_hop, 0.0, 1 / torch.where(no_hop, 1.0, norm)).to(dtype)
