"""A kernel between the nodes of a graph that grows with the number of walks between them, and sums weighted by it.

Legend
    a_vw ≥ 0    weight of the edge between v and w, the mean of both directions, in units of the mean of all d; A (N, N)
    d_v         Σ_w a_vw, at least LEAST; 1 where no edge is;  D their diagonal
    S           D^-½ A D^-½, whose eigenvalues lie in [-1, 1]
    γ, p, q     `reach`, -1 < γ < 1, `smoothness`, 1, 2, ..., and `stride`, 1 or 2
    T_k, c_k    Chebyshev's polynomials, and the coefficients of (1 - γ x^q)^-p

    κ(v, w) = [D^-½ (I - γ S^q)^-p D^-½]_vw,      (I - γ S^q)^-p = Σ_k c_k T_k(S)

With p = 1 it is the covariance of a Gaussian field whose mean at a node, given all others, is γ Σ_w a_vw f_w / d_v, γ
times the mean of its neighbours (Besag, Spatial interaction and the statistical analysis of lattice systems, 1974).
With larger p the field is smoother (Borovitskiy et al., Matérn Gaussian processes on graphs, 2021). With γ < 0
neighbours are negatively correlated. With q = 2 only walks of even length count: nodes are similar if they have
neighbours in common, or similar ones. Deviations: D is bounded away from 0, and the series is truncated where
coefficients are below _LEFT of its largest value.

The kernel matrix is never formed, except for requested pairs: T_k(S) is applied to columns, one sparse product per k.
"""

import math
import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor

LEAST = 1e-3
_LEFT = 1e-10
_PLACES, _MOST = 2048, 512
"""Number of points at which (1 - γ x^q)^-p is sampled for its coefficients, and largest number of coefficients."""
_COLUMNS = 256
"""Columns that T_k(S) is applied to at a time."""


@final
class Reach(NamedTuple):
    """Parameters of the kernel: γ, p and q."""

    reach: float
    smoothness: int
    stride: int = 1

    def coefficients(self) -> Tensor:
        """Returns the Chebyshev coefficients c, float64 `(K,)`."""
        angle = math.pi * (torch.arange(_PLACES, dtype=torch.float64) + 0.5) / _PLACES
        values = (1 - self.reach * angle.cos() ** self.stride) ** -float(self.smoothness)
        orders = torch.arange(_MOST, dtype=torch.float64)
        found = 2 / _PLACES * torch.cos(orders[:, None] * angle) @ values
        found[0] /= 2
        kept = (found.abs() > _LEFT * float(values.max())).nonzero()[:, 0]
        return found[: int(kept.max()) + 1]


@final
class GraphSteps:
    """The normalised adjacency matrix S of a graph of N nodes.

    Args:
        source, target: int64 `(E,)`, the ends of edges; an undirected edge is listed in both directions.
        weights: `(E,)`, at least 0.
        count: N.
    """

    def __init__(self, source: Tensor, target: Tensor, weights: Tensor, count: int) -> None:
        ends = torch.stack([torch.cat([source, target]), torch.cat([target, source])])
        values = weights.double().repeat(2)
        mass = values.new_zeros(count).index_add_(0, ends[0], values)
        joined = mass > 0
        self.is_joined = joined
        """Mask of the nodes with an edge, `(N,)`."""
        unit = float(mass[joined].mean()) if bool(joined.any()) else 1.0
        self.root = torch.where(joined, (mass / unit).clamp_min(LEAST), 1.0).rsqrt()
        """D^-½, `(N,)`."""
        steps = values / unit * self.root[ends[0]] * self.root[ends[1]]
        whole = torch.sparse_coo_tensor(ends, steps, (count, count), check_invariants=False)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta state")
            self._step = whole.coalesce().to_sparse_csr()

    def step(self, columns: Tensor) -> Tensor:
        """Applies S to columns, float64 `(N, c)`."""
        return self._step @ columns

    def sums(self, nodes: Tensor, values: Tensor, coefficients: Tensor) -> Tensor:
        """Returns Σ_j κ(v, w_j) f_j at all nodes v, float64 `(N, c)`, for nodes w `(n,)` and values f `(n, c)`."""
        start = values.new_zeros(len(self.root), values.shape[1], dtype=torch.float64)
        start.index_add_(0, nodes, self.root[nodes, None] * values.double())
        total = torch.zeros_like(start)
        for k, part in enumerate(self._polynomials(start, len(coefficients))):
            total.add_(part, alpha=float(coefficients[k]))
        return self.root[:, None] * total

    def between(self, nodes: Tensor, reaches: Sequence[Reach]) -> list[Tensor]:
        """Returns κ between some nodes `(n,)` for each of several reaches, float64 `(n, n)`."""
        coefficients = [reach.coefficients() for reach in reaches]
        count, root = max(map(len, coefficients)), self.root[nodes]
        found = [root.new_zeros(len(nodes), len(nodes)) for _ in reaches]
        for own in torch.arange(len(nodes), device=nodes.device).split(_COLUMNS):
            start = root.new_zeros(len(self.root), len(own))
            start[nodes[own], torch.arange(len(own), device=nodes.device)] = root[own]
            for k, part in enumerate(self._polynomials(start, count)):
                some = part[nodes]
                for each, c in zip(found, coefficients, strict=True):
                    if k < len(c):
                        each[:, own] += float(c[k]) * some
        scaled = (root[:, None] * each for each in found)
        return [(each + each.T) / 2 for each in scaled]  # removes asymmetry from rounding

    def _polynomials(self, start: Tensor, count: int) -> Iterator[Tensor]:
        """Yields T_0(S), T_1(S), ... applied to columns `(N, c)`."""
        before, now = start, self.step(start)
        yield before
        for _ in range(count - 1):
            yield now
            before, now = now, torch.sub(2 * self.step(now), before)
