"""Where nodes lie by how they are joined, and in a graph that has grown by where they lay before.

Legend
    A, d        weights of edges and their sums at the N nodes, as in `graph_kernel.py`, in units of the mean of all d
    S_τ         (D + τI)^-½ A (D + τI)^-½,  τ = 1, the mean of d;   S_τ ψ_k = μ_k ψ_k,  |μ_1| >= |μ_2| >= ...
    x_k(v)      √N (d_v + τ)^-½ ψ_k(v),  k = 1, ..., K;  nodes that are joined to nothing are at 0

Eigenvalues of both signs count: positive ones tell groups that are joined within, negative ones groups that are joined
to each other. τ keeps small parts of the graph, each of which would have an eigenvalue 1, from filling all K places
(regularised spectral clustering: Qin and Rohe, 2013). The ψ are exact up to DENSE nodes; beyond they are those of S_τ
in the space of Ω, S_τ Ω, ..., S_τ^STEPS Ω with Ω drawn, always the same (block Krylov: Musco and Musco, 2015). Where
|μ_K| = |μ_{K+1}|, which of their vectors are taken would be chance, and those of this size are left out.

The signs of ψ, and in a graph that has grown the order of near eigenvalues, are chance as well. So of another graph
with some nodes of the first, a x' R is read, R the orthogonal matrix and a > 0 the number by which
Σ_v ‖a x'(v) R - x(v)‖² over these nodes is smallest (Procrustes: Schönemann, 1966).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from fredholm.models.fitted.graph_kernel import GraphSteps

DENSE = 512
STEPS, EXTRA = 16, 8
"""Products with S_τ, and columns of Ω beyond K."""
_EQUAL = 1e-6
"""Over the largest |μ|, by how much those differ that are one; and over x, by how much it is where it was."""


def positions_of(steps: GraphSteps, count: int, *, signed: bool = True) -> Tensor:
    """x of all nodes, float64 `(N, count)`; columns that are left out are 0.

    Args:
        steps: the graph.
        count: K.
        signed: whether eigenvalues below 0 count too.
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
    """a x' R of a graph in which some nodes were elsewhere before; see the legend.

    Args:
        found: x' of all nodes, float64 `(N, K)`.
        nodes: those that were there before, int64 `(m,)`.
        places: x of these, `(m, K)`, in all coordinates, by which a and R are found.
        read: bool `(K,)`; the others are 0 in what is given back.

    Returns:
        `(N, K)`; x' but for signs, where the nodes are where they were.
    """
    own = found[nodes]
    signed = torch.where((own * places).sum(0) < 0, -1.0, 1.0)
    if bool(((own * signed - places)[:, read].abs() <= _EQUAL * places.abs().amax().clamp_min(1.0)).all()):
        return found * signed * read
    left, sizes, right = torch.linalg.svd(own.T @ places)
    scale = sizes.sum() / own.square().sum().clamp_min(torch.finfo(own.dtype).tiny)
    return scale * found @ (left @ right) * read


def krylov(step: Callable[[Tensor], Tensor], like: Tensor, width: int, num_steps: int) -> tuple[Tensor, Tensor]:
    """Eigenvalues and vectors of a symmetric map S of `(N, c)` in the space of Ω, S Ω, ..., S^num_steps Ω, Ω drawn."""
    draw = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(len(like), width, generator=draw, dtype=like.dtype).to(like.device))[0]
    last = basis
    for _ in range(num_steps):
        last = step(last)
        for _ in range(2):  # once leaves what rounding makes large
            last = last - basis @ (basis.T @ last)
        last = torch.linalg.qr(last)[0]
        basis = torch.cat([basis, last], 1)
    basis = torch.linalg.qr(basis)[0]
    within = basis.T @ step(basis)
    values, vectors = torch.linalg.eigh((within + within.T) / 2)
    return values, basis @ vectors
