"""One integral of hops, ready to be computed, and its value.

Legend (heads of a batch in a row, G = B·H)
    φ_ij, P_ij   score and mass of a pair              S_ij   φ_ij P_ij, the hop before its norm
    r_l          Σ_j P_lj (φ m)_lj of a point's row    n_i    how many leading points a query sees
    c_i          Σ_j |S_ij|, the norm of a row         c_i²   c_0² + Σ_{l < n_i} ω_l r_l, or all l: the norm of a block
    ρ_i          (∂L/∂log c_i) / c_i², with the sign turned

    ∂L/∂(ω_l r_l) = -E_l / 2,   E_l = Σ_{i: n_i > l} ρ_i
"""

from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm.evaluation.neumann.solvers import Factors, Solver, System, Truncation, hop, weigh
from fredholm.evaluation.pair_tiles import PairTiles, TileInputs
from fredholm.kernels.attention.scored import Score


class HopInputs(NamedTuple):
    """Everything that the integral depends on; what is not there is None. B' and H' are 1, or B and H."""

    query: Tensor  # q, times the scale: (B, H, Nq, d)
    own: Tensor | None  # q at the points, where the queries are others: (B, H, N, d)
    key: Tensor  # (B, H, N, d)
    value: Tensor  # v; of points before a chunk v + y, or v where κ is one hop: (B, H, N, d_v)
    gamma: Tensor | None  # γ: (H,); None: κ is one hop
    before: Tensor | None  # c of the points before a chunk: (B, H)
    mass: Tensor | None  # ω: (B', N)
    pairs: Tensor | None  # m: (B', H', Nq, N)
    seen: Tensor | None  # how many leading points each query sees, int64: (B', Nq)
    own_seen: Tensor | None  # the same of the points, where the queries are others: (B', N)


class HopOutputs(NamedTuple):
    """The integral, and what the backward pass needs beside the inputs; in at least float32. None: not there."""

    out: Tensor  # (B, H, Nq, c)
    norm: Tensor  # c of the queries: (B, H, Nq)
    inner: Tensor | None  # the series at the points, where the queries are others: (G, N, c)
    inner_norm: Tensor | None  # c of the points, likewise: (G, N)
    rows: Tensor | None  # r, under the norm of a block: (G, n) in float64
    factors: Tensor | None  # of I - B, transposed: (G, N, N)
    pivots: Tensor | None  # (G, N), int32


@final
class HopProblem:
    """Heads of a batch in a row, in at least float32.

    Args:
        inputs: see `HopInputs`.
        score: φ, as `encoded`.
        has_one_norm: whether the norm is a number of all points, or of all so far, and not of a row by itself.
        solver: as `told`; empty where κ is one hop.
        elements: pairs in a tile, about; None: as `PairTiles` has it.

    Attributes:
        asked, points: scores of the queries, and of the points themselves, which are the same tiles where those are
            the queries.
        is_elsewhere: whether the queries are others than the points.
        start: points before the first row, where a chunk goes on after others.
        value: v, `(G, N, c)`.
        gamma: γ, `(G, 1, 1)`; None: κ is one hop.
    """

    def __init__(
        self, inputs: HopInputs, score: list[float], has_one_norm: bool, solver: list[float], elements: int | None
    ) -> None:
        self.inputs, self.has_one_norm = inputs, has_one_norm
        self.solver = solver if inputs.gamma is None else Truncation.settled(solver, inputs.gamma)
        phi = Score.decoded(score)

        def tiles(query: Tensor, seen: Tensor | None) -> PairTiles:
            pairs = TileInputs(query, inputs.key, mass=inputs.mass, pairs=inputs.pairs, seen=seen)
            return PairTiles(pairs, phi, elements)

        self.asked = self.points = tiles(inputs.query, inputs.seen)
        self.is_elsewhere = inputs.own is not None
        if inputs.own is not None:
            self.points = tiles(inputs.own, inputs.own_seen)
        self.start = inputs.key.shape[2] - self.points.num_queries
        self.dtype = self.asked.dtype
        self.value = self.asked.flat(inputs.value)
        self.gamma = None
        if inputs.gamma is not None:
            self.gamma = inputs.gamma.to(self.dtype).repeat(self.asked.batch)[:, None, None]

    def point_mass(self) -> Tensor | None:
        """ω, `(G, N)`; None: all 1."""
        return None if self.points.mass is None else self._each_head(self.points, self.points.mass)

    def _each_head(self, tiles: PairTiles, of_batch: Tensor) -> Tensor:
        return of_batch.expand(tiles.batch, -1).repeat_interleave(tiles.num_heads, 0)

    def running_squares(self, rows: Tensor) -> Tensor:
        """c² after each of the points' rows, and before the first, `(G, n + 1)`, from r."""
        mass, before = self.point_mass(), self.inputs.before
        weighed = rows if mass is None else rows * mass
        first = rows.new_zeros(len(rows), 1) if before is None else before.flatten().double().square()[:, None]
        return torch.cat([first, weighed], dim=-1).cumsum(-1)

    def places(self, tiles: PairTiles, count: int) -> Tensor | None:
        """How many of `count` rows are in the norm of each query, `(G, Nq)`; None: all."""
        if tiles.order is None:
            return None
        return (self._each_head(tiles, tiles.order) - self.start).clamp(0, count)

    def norm(self, tiles: PairTiles, rows: Tensor) -> Tensor:
        """c at the queries of some tiles, `(G, Nq)`: from the rows of the points, or from their own."""
        if not self.has_one_norm:
            return rows.to(self.dtype)
        squares, places = self.running_squares(rows), self.places(tiles, rows.shape[-1])
        if places is None:
            return squares[:, -1:].sqrt().expand(-1, tiles.num_queries).to(self.dtype)
        return squares.gather(-1, places).sqrt().to(self.dtype)

    def spread(self, tiles: PairTiles, rows: Tensor, ratios: Tensor) -> Tensor:
        """E, `(G, n)`, from ρ `(G, Nq)`."""
        count, places = rows.shape[-1], self.places(tiles, rows.shape[-1])
        if places is None:
            return ratios.sum(-1, keepdim=True).expand(-1, count)
        bins = ratios.new_zeros(len(rows), count + 1).scatter_add(-1, places, ratios)
        return bins.flip(-1).cumsum(-1).flip(-1)[:, 1:]

    def weight(self, norm: Tensor) -> Tensor:
        """γ / c, or 1 / c, `(G, Nq, 1)`."""
        inverse = reciprocal(norm, self.dtype)[..., None]
        return inverse if self.gamma is None else self.gamma * inverse

    def solve(
        self, heads: slice, weight: Tensor, signal: Tensor, factors: Factors | None = None, *, adjoint: bool = False
    ) -> Tensor:
        """x = B f + B x on some heads, or with Bᵀ, of a signal of these heads."""
        if self.points.num_keys == 0:
            return torch.zeros_like(signal)
        solve = Solver.of(self.solver).solve
        system = System(self.points, heads, weight[heads])
        return solve(system, signal, self.solver[1:], factors, adjoint=adjoint)

    def forward(self, *, keep: bool) -> HopOutputs:
        """See `HopOutputs`; factors are kept on demand."""
        asked, points = self.asked, self.points
        reached, inner, inner_norm, factors, pivots, rows = self.value, None, None, None, None, None
        if self.gamma is not None:
            rows = row_measures(points, self.has_one_norm)
            inner_norm = self.norm(points, rows)
            if keep and Solver.of(self.solver).keeps_factors:
                size = len(self.value), points.num_keys
                factors = self.value.new_empty(*size, size[1])
                pivots = self.value.new_empty(size, dtype=torch.int32)
            inner = self._series(self.weight(inner_norm), factors, pivots)
            if not self.is_elsewhere:
                return self._found(inner, inner_norm, None, None, rows, factors, pivots)
            reached = reached + inner
        elif self.is_elsewhere and self.has_one_norm:
            rows = row_measures(points, squares=True)
        out = reached.new_zeros(len(reached), asked.num_queries, reached.shape[-1])
        if rows is not None and self.has_one_norm:
            for heads in asked.groups():
                out[heads] = hop(asked, reached[heads], heads)
        else:
            rows = torch.zeros(out.shape[:2], dtype=torch.float64, device=out.device)
            for heads in asked.groups():
                out[heads], rows[heads] = measured_hop(asked, reached[heads], heads, self.has_one_norm)
        norm = self.norm(asked, rows)
        return self._found(out * self.weight(norm), norm, inner, inner_norm, rows, factors, pivots)

    def _found(self, out: Tensor, norm: Tensor, *others: Tensor | None) -> HopOutputs:
        heads = self.inputs.query.shape[:2]
        inner, inner_norm, rows, factors, pivots = others
        out, norm = (t.contiguous().unflatten(0, heads) for t in (out, norm))
        inner_norm = None if inner_norm is None else inner_norm.contiguous()
        return HopOutputs(out, norm, inner, inner_norm, rows if self.has_one_norm else None, factors, pivots)

    def _series(self, weight: Tensor, factors: Tensor | None, pivots: Tensor | None) -> Tensor:
        """y at the points; factors are left in their memory, if there is some."""
        points, value = self.points, self.value
        out = value.new_zeros(len(value), points.num_queries, value.shape[-1])
        for heads in points.groups():
            made = None
            if factors is not None and pivots is not None and points.num_keys:
                made = Factors.within(factors[heads], pivots[heads], System(points, heads, weight[heads]))
            out[heads] = self.solve(heads, weight, value[heads], made)
        return out


def reciprocal(norm: Tensor, dtype: torch.dtype) -> Tensor:
    """1 / c, and NaN for NaN; 0 where there is no hop, or one so small that 1 / c is infinite in `dtype`."""
    no_hop = norm <= torch.finfo(dtype).tiny
    return torch.where(no_hop, 0.0, 1 / torch.where(no_hop, 1.0, norm)).to(dtype)


def measured_hop(tiles: PairTiles, signal: Tensor, heads: slice, squares: bool) -> tuple[Tensor, Tensor]:
    """S f, and of every row Σ_j ω_j (φ m)_ij² or Σ_j ω_j |φ m|_ij, `(g, Nq)` in float64."""
    out = signal.new_zeros(len(signal), tiles.num_queries, signal.shape[-1])
    total = torch.zeros(len(signal), tiles.num_queries, dtype=torch.float64, device=signal.device)
    for rows in tiles.rows_of(heads):
        for columns in tiles.columns_of(rows):
            scores, _ = tiles.scores(rows, columns)
            mass, density = tiles.pair_mass(rows, columns), tiles.density(rows, columns)
            flow = scores if mass is None else weigh(scores, mass)
            out[:, rows.rows].baddbmm_(flow, signal[:, columns])
            total[:, rows.rows] += _row_squares(scores, mass, density) if squares else flow.abs().sum(-1)
    return out, total


def _row_squares(scores: Tensor, mass: Tensor | None, density: Tensor | None) -> Tensor:
    """Σ_j P_ij m_ij φ_ij² of a tile, `(g, r)`."""
    if mass is not None and density is not None:
        scores = weigh(scores, (mass * density).sqrt())
    return torch.linalg.vector_norm(scores, dim=-1).double().square()


def row_measures(tiles: PairTiles, squares: bool) -> Tensor:
    """What `measured_hop` says of the rows, `(G, Nq)`, without a hop."""
    total = torch.zeros(len(tiles.query), tiles.num_queries, dtype=torch.float64, device=tiles.query.device)
    for heads in tiles.groups():
        nothing = tiles.query.new_zeros(heads.stop - heads.start, tiles.num_keys, 0)
        total[heads] = measured_hop(tiles, nothing, heads, squares)[1]
    return total
