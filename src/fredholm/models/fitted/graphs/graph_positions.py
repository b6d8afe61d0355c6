"""Spectral positions of the nodes of a graph, and their alignment after the graph has grown.

Legend
    A, d        weights of edges and their sums at the N nodes, as in `graph_kernel.py`, in units of the mean of all d
    S_τ         (D + τI)^-½ A (D + τI)^-½,  τ = 1, the mean of d;   S_τ ψ_k = μ_k ψ_k,  |μ_1| >= |μ_2| >= ...
    x_k(v)      √N (d_v + τ)^-½ ψ_k(v),  k = 1, ..., K;  isolated nodes are at 0

Eigenvalues of both signs are used: positive ones show groups with edges inside, negative ones groups with edges between
them. τ prevents small components of the graph, each of which would have an eigenvalue 1, from filling all K coordinates
(regularised spectral clustering: Qin and Rohe, 2013). The ψ are exact up to DENSE nodes. For larger graphs they are
computed in the space of Ω, S_τ Ω, ..., S_τ^STEPS Ω with a fixed random Ω (block Krylov: Musco and Musco, 2015). If
|μ_K| = |μ_{K+1}|, the choice among their vectors would be arbitrary, and all vectors of this |μ| are left out.

The signs of ψ, and in a grown graph the order of close eigenvalues, are arbitrary too. So positions x' of another graph
with some nodes of the first are aligned to a x' R, with the orthogonal matrix R and the scale a > 0 that minimise
Σ_v ‖a x'(v) R - x(v)‖² over these nodes (Procrustes: Schönemann, 1966).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from fredholm.models.fitted.graphs.graph_kernel import GraphSteps

DENSE = 512
STEPS, EXTRA = 16, 8
"""Number of products with S_τ, and number of columns of Ω beyond K."""
_EQUAL = 1e-6
"""Relative differences up to which eigenvalues count as equal, and positions as unchanged."""


def positions_of(steps: GraphSteps, count: int, *, signed: bool = True) -> Tensor:
    """Computes the positions x of all nodes, float64 `(N, count)`; columns that are left out are 0.

    Args:
        steps: the graph.
        count: K.
        signed: whether negative eigenvalues are used too.
    """
    mass = torch.where(steps.is_joined, steps.root**-2, 0.0)
    root = (mass + 1).rsqrt()
    size, turned = len(root), (root / steps.root)[:, None]

    def step(columns: Tensor) -> Tensor:
        return turned * steps.step(turned * columns)

    if size <= DENSE:
        values, vectors = torch.linalg.eigh(step(torch.eye(size, dtype=root.dtype, device=root.device)))
    else:
        values, vectors = krylov(step, root, count + EXTRA, STEPS)
    values = values.abs() if signed else values.clamp_min(0)
    order = values.argsort(descending=True, stable=True)
    height = values[order]
    kept = min(count, int((height > _EQUAL).sum()))
    while 0 < kept < len(height) and float(height[kept - 1] - height[kept]) <= _EQUAL * float(height[0]):
        kept -= 1
    found = size**0.5 * root[:, None] * vectors[:, order[:kept]]
    found = torch.where((found**3).sum(0) < 0, -found, found)
    return torch.cat([found, found.new_zeros(size, count - kept)], 1)


def aligned(found: Tensor, nodes: Tensor, places: Tensor, read: Tensor) -> Tensor:
    """Aligns positions of a grown graph to the earlier ones of some of its nodes: a x' R, see the legend.

    Args:
        found: x' of all nodes, float64 `(N, K)`.
        nodes: nodes of the earlier graph, int64 `(m,)`.
        places: their earlier positions x, `(m, K)`, in all coordinates, which determine a and R.
        read: mask of the coordinates to return, bool `(K,)`; the others are 0 in the result.

    Returns:
        Aligned positions `(N, K)`; equal to x' up to signs if the nodes have not moved.
    """
    own = found[nodes]
    signed = torch.where((own * places).sum(0) < 0, -1.0, 1.0)
    if bool(((own * signed - places)[:, read].abs() <= _EQUAL * places.abs().amax().clamp_min(1.0)).all()):
        return found * signed * read
    left, sizes, right = torch.linalg.svd(own.T @ places)
    scale = sizes.sum() / own.square().sum().clamp_min(torch.finfo(own.dtype).tiny)
    return scale * found @ (left @ right) * read


def krylov(step: Callable[[Tensor], Tensor], like: Tensor, width: int, num_steps: int) -> tuple[Tensor, Tensor]:
    """Eigenpairs of a symmetric map S of `(N, c)` in the space of Ω, S Ω, ..., S^num_steps Ω with a random Ω."""
    draw = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(len(like), width, generator=draw, dtype=like.dtype).to(like.device))[0]
    last = basis
    for _ in range(num_steps):
        last = step(last)
        for _ in range(2):  # twice, since one orthogonalisation leaves rounding errors
            last = last - basis @ (basis.T @ last)
        last = torch.linalg.qr(last)[0]
        basis = torch.cat([basis, last], 1)
    basis = torch.linalg.qr(basis)[0]
    within = basis.T @ step(basis)
    values, vectors = torch.linalg.eigh((within + within.T) / 2)
    return values, basis @ vectors
