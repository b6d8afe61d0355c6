"""The integral of hops: one hop in tiles, and the series of all hops by a solver, forward and backward.

Legend (heads of a batch in a row, G = B·H)
    φ_ij, P_ij   score and mass of a pair              S_ij   φ_ij P_ij, the hop before its norm
    m            pair weight, 0 where hidden           ω      mass of a point
    r_l          Σ_j P_lj (φ m)_lj of a point's row    n_i    number of leading points that a query sees
    c_i          Σ_j |S_ij|, the norm of a row         c_i²   c_0² + Σ_{l < n_i} ω_l r_l, or all l: the norm of a block

    y = B (v + y)                the series,  B = γ S / c

Gradients: one adjoint series, by the implicit function theorem, then those of one hop
    λ = g + Bᵀ λ                 the adjoint of the series, g = ∂L/∂y
    ∂L/∂v = Bᵀ λ,   ∂L/∂B = λ (v + y)ᵀ              so that only the last hop is needed
    z            v + y                              w    γ λ / c
    δ_i          λ_i·y_i / c_i = -∂L/∂c_i           ρ_i  δ_i / c_i
    E_l          Σ_{i: n_i > l} ρ_i,   ∂L/∂(ω_l r_l) = -E_l / 2

    t_ij = w_i·z_j - δ_i sign φ_ij   (norm of rows)      or      w_i·z_j - E_i ω_i m_ij φ_ij   (norm of a block)

    ∂L/∂φ_ij = P_ij t_ij,   ∂L/∂m_ij = ω_j t_ij φ_ij,   ∂L/∂z_j = Σ_i S_ij w_i;   every tile is recomputed
"""

from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm._precision import wide_dtype
from fredholm.evaluation.custom_op import Operator
from fredholm.evaluation.neumann.solvers import Factors, Solver, System, Truncation, hop, weigh
from fredholm.evaluation.pair_tiles import PairGradients, Pairs, PairTiles, Rows, TileInputs, all_pairs
from fredholm.kernels.attention.scored import Score
from fredholm.kernels.kernel import divided
from fredholm.kernels.linear_algebra import solve_each
from fredholm.kernels.neumann.infinite_attention import block_norm


class HopInputs(NamedTuple):
    """All inputs of the integral; None where absent. B' and H' are 1, or B and H."""

    query: Tensor  # q, times the scale: (B, H, Nq, d)
    own: Tensor | None  # q at the points, where the queries are other points: (B, H, N, d)
    key: Tensor  # (B, H, N, d)
    value: Tensor  # v; for points before a chunk v + y, or v where κ is one hop: (B, H, N, d_v)
    gamma: Tensor | None  # γ: (H,); None: κ is one hop
    before: Tensor | None  # c of the points before a chunk: (B, H)
    mass: Tensor | None  # ω: (B', N)
    pairs: Tensor | None  # m: (B', H', Nq, N)
    seen: Tensor | None  # number of leading points that each query sees, int64: (B', Nq)
    own_seen: Tensor | None  # the same for the points, where the queries are other points: (B', N)


class HopOutputs(NamedTuple):
    """The integral, and further tensors for the backward pass; in at least float32. None: absent."""

    out: Tensor  # (B, H, Nq, c)
    norm: Tensor  # c of the queries: (B, H, Nq)
    inner: Tensor | None  # the series at the points, where the queries are other points: (G, N, c)
    inner_norm: Tensor | None  # c of the points, where the queries are other points: (G, N)
    rows: Tensor | None  # r, under the norm of a block: (G, n) in float64
    factors: Tensor | None  # factors of I - B, transposed: (G, N, N)
    pivots: Tensor | None  # (G, N), int32


@final
class HopProblem:
    """One integral of hops, with batch and heads in one axis, in at least float32.

    Args:
        inputs: see `HopInputs`.
        score: φ, as `encoded`.
        has_one_norm: whether the norm is over all points (or all so far), not over each row.
        solver: its `options`; empty where κ is one hop.
        elements: approximate number of pairs in a tile; None: the default of `PairTiles`.

    Attributes:
        queries, points: tiles of scores of the queries, and of the points themselves; the same tiles where the points
            are the queries.
        is_elsewhere: whether the queries are other points.
        start: number of points before the first row, where a chunk continues a sequence.
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

        self.queries = self.points = tiles(inputs.query, inputs.seen)
        self.is_elsewhere = inputs.own is not None
        if inputs.own is not None:
            self.points = tiles(inputs.own, inputs.own_seen)
        self.start = inputs.key.shape[2] - self.points.num_queries
        self.dtype = self.queries.dtype
        self.value = self.queries.flat(inputs.value)
        self.gamma = None
        if inputs.gamma is not None:
            self.gamma = inputs.gamma.to(self.dtype).repeat(self.queries.batch)[:, None, None]

    def point_mass(self) -> Tensor | None:
        """ω, `(G, N)`; None: all 1."""
        return None if self.points.mass is None else self._each_head(self.points, self.points.mass)

    def _each_head(self, tiles: PairTiles, of_batch: Tensor) -> Tensor:
        return of_batch.expand(tiles.batch, -1).repeat_interleave(tiles.num_heads, 0)

    def running_squares(self, rows: Tensor) -> Tensor:
        """c² after each of the points' rows, and before the first, `(G, n + 1)`, from r."""
        mass, before = self.point_mass(), self.inputs.before
        weighed = rows if mass is None else rows * mass
        first = rows.new_zeros(rows.shape[0], 1) if before is None else before.flatten().double().square()[:, None]
        return torch.cat([first, weighed], dim=-1).cumsum(-1)

    def places(self, tiles: PairTiles, count: int) -> Tensor | None:
        """Number of the `count` rows in the norm of each query, `(G, Nq)`; None: all."""
        if tiles.order is None:
            return None
        return (self._each_head(tiles, tiles.order) - self.start).clamp(0, count)

    def norm(self, tiles: PairTiles, rows: Tensor) -> Tensor:
        """c at the queries of some tiles, `(G, Nq)`: from the rows of the points, or from their own."""
        if not self.has_one_norm:
            return rows.to(self.dtype)
        squares, places = self.running_squares(rows), self.places(tiles, rows.shape[-1])
        if places is None:
            return block_norm(squares[:, -1:]).expand(-1, tiles.num_queries).to(self.dtype)
        return block_norm(squares.gather(-1, places)).to(self.dtype)

    def spread(self, tiles: PairTiles, rows: Tensor, ratios: Tensor) -> Tensor:
        """E, `(G, n)`, from ρ `(G, Nq)`."""
        count, places = rows.shape[-1], self.places(tiles, rows.shape[-1])
        if places is None:
            return ratios.sum(-1, keepdim=True).expand(-1, count)
        bins = ratios.new_zeros(rows.shape[0], count + 1).scatter_add(-1, places, ratios)
        return bins.flip(-1).cumsum(-1).flip(-1)[:, 1:]

    def weight(self, norm: Tensor) -> Tensor:
        """γ / c, or 1 / c, `(G, Nq, 1)`."""
        inverse = reciprocal(norm, self.dtype)[..., None]
        return inverse if self.gamma is None else self.gamma * inverse

    def solve(
        self, heads: slice, weight: Tensor, signal: Tensor, factors: Factors | None = None, *, adjoint: bool = False
    ) -> Tensor:
        """Solves x = B f + B x on some heads, or with Bᵀ, for a signal of these heads."""
        if self.points.num_keys == 0:
            return torch.zeros_like(signal)
        solve = Solver.of(self.solver).solve
        system = System(self.points, heads, weight[heads])
        return solve(system, signal, self.solver[1:], factors, adjoint=adjoint)

    def forward(self, *, keep: bool) -> HopOutputs:
        """See `HopOutputs`; factors are kept if `keep`."""
        queries, points = self.queries, self.points
        reached, inner, inner_norm, factors, pivots, rows = self.value, None, None, None, None, None
        if self.gamma is not None:
            rows = row_measures(points, self.has_one_norm)
            inner_norm = self.norm(points, rows)
            if keep and Solver.of(self.solver).keeps_factors:
                size = self.value.shape[0], points.num_keys
                factors = self.value.new_empty(*size, size[1])
                pivots = self.value.new_empty(size, dtype=torch.int32)
            inner = self._series(self.weight(inner_norm), factors, pivots)
            if not self.is_elsewhere:
                return self._found(inner, inner_norm, None, None, rows, factors, pivots)
            reached = reached + inner
        elif self.is_elsewhere and self.has_one_norm:
            rows = row_measures(points, squares=True)
        out = reached.new_zeros(reached.shape[0], queries.num_queries, reached.shape[-1])
        if rows is not None and self.has_one_norm:
            for heads in queries.groups():
                out[heads] = hop(queries, reached[heads], heads)
        else:
            rows = torch.zeros(out.shape[:2], dtype=torch.float64, device=out.device)
            for heads in queries.groups():
                out[heads], rows[heads] = measured_hop(queries, reached[heads], heads, self.has_one_norm)
        norm = self.norm(queries, rows)
        return self._found(out * self.weight(norm), norm, inner, inner_norm, rows, factors, pivots)

    def _found(self, out: Tensor, norm: Tensor, *others: Tensor | None) -> HopOutputs:
        heads = self.inputs.query.shape[:2]
        inner, inner_norm, rows, factors, pivots = others
        out, norm = (t.contiguous().unflatten(0, heads) for t in (out, norm))
        inner_norm = None if inner_norm is None else inner_norm.contiguous()
        return HopOutputs(out, norm, inner, inner_norm, rows if self.has_one_norm else None, factors, pivots)

    def _series(self, weight: Tensor, factors: Tensor | None, pivots: Tensor | None) -> Tensor:
        """y at the points; factors are written to their memory, if given."""
        points, value = self.points, self.value
        out = value.new_zeros(value.shape[0], points.num_queries, value.shape[-1])
        for heads in points.groups():
            made = None
            if factors is not None and pivots is not None and points.num_keys:
                made = Factors.within(factors[heads], pivots[heads], System(points, heads, weight[heads]))
            out[heads] = self.solve(heads, weight, value[heads], made)
        return out


def reciprocal(norm: Tensor, dtype: torch.dtype) -> Tensor:
    """1 / c, NaN for NaN; 0 where c is 0, or so small that 1 / c is infinite in `dtype`."""
    no_hop = norm <= torch.finfo(dtype).tiny
    return torch.where(no_hop, 0.0, 1 / torch.where(no_hop, 1.0, norm)).to(dtype)


def measured_hop(tiles: PairTiles, signal: Tensor, heads: slice, squares: bool) -> tuple[Tensor, Tensor]:
    """S f, and for every row Σ_j ω_j (φ m)_ij² or Σ_j ω_j |φ m|_ij, `(g, Nq)` in float64."""
    out = signal.new_zeros(signal.shape[0], tiles.num_queries, signal.shape[-1])
    total = torch.zeros(signal.shape[0], tiles.num_queries, dtype=torch.float64, device=signal.device)
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
    """The row sums of `measured_hop`, `(G, Nq)`, without a hop."""
    total = torch.zeros(tiles.query.shape[0], tiles.num_queries, dtype=torch.float64, device=tiles.query.device)
    for heads in tiles.groups():
        nothing = tiles.query.new_zeros(heads.stop - heads.start, tiles.num_keys, 0)
        total[heads] = measured_hop(tiles, nothing, heads, squares)[1]
    return total


def _forward(
    inputs: HopInputs,
    score: list[float],
    has_one_norm: bool,
    solver: list[float],
    elements: int | None,
    keep: bool,
) -> HopOutputs:
    return HopProblem(inputs, score, has_one_norm, solver, elements).forward(keep=keep)


def _like(
    inputs: HopInputs,
    score: list[float],
    has_one_norm: bool,
    solver: list[float],
    elements: int | None,
    keep: bool,
) -> HopOutputs:
    (batch, heads, num_queries, _), points = inputs.query.shape, inputs.key.shape[2]
    channels, dtype, elsewhere = inputs.value.shape[-1], wide_dtype(inputs.query), inputs.own is not None
    inner = elsewhere and inputs.gamma is not None
    factors = keep and inputs.gamma is not None and Solver.of(solver).keeps_factors

    def empty(*shape: int, kind: torch.dtype = dtype) -> Tensor:
        return inputs.query.new_empty(shape, dtype=kind)

    total = batch * heads
    return HopOutputs(
        out=empty(batch, heads, num_queries, channels),
        norm=empty(batch, heads, num_queries),
        inner=empty(total, points, channels) if inner else None,
        inner_norm=empty(total, points) if inner else None,
        rows=empty(total, points if elsewhere else num_queries, kind=torch.float64) if has_one_norm else None,
        factors=empty(total, points, points) if factors else None,
        pivots=empty(total, points, kind=torch.int32) if factors else None,
    )


def hop_backward(
    inputs: HopInputs,
    outputs: HopOutputs,
    grads: HopOutputs,
    wanted: frozenset[str],
    score: list[float],
    has_one_norm: bool,
    solver: list[float],
    elements: int | None,
    keep: bool,
) -> dict[str, Tensor]:
    """Gradients by the names of `HopInputs`."""
    problem = HopProblem(inputs, score, has_one_norm, solver, elements)
    grad, grad_norm = (t.flatten(0, 1).to(problem.dtype) for t in (grads.out, grads.norm))
    steps = _Steps(problem, outputs, wanted)
    found = {}
    if problem.is_elsewhere:
        assert outputs.inner is not None or problem.gamma is None
        found["query"] = steps.at_queries(grad, grad_norm)
        found["own"] = steps.at_points(steps.carried_grad.clone(), outputs.inner, outputs.inner_norm, None)
    else:
        found["query"] = steps.at_points(grad, outputs.out.flatten(0, 1), outputs.norm.flatten(0, 1), grad_norm)
    sums = steps.sums
    if sums.mass is not None and steps.block is not None and outputs.rows is not None:
        by_head = (-0.5 * steps.block * outputs.rows).to(problem.dtype).unflatten(0, (-1, problem.points.num_heads))
        by_entry = by_head.sum(1)
        sums.mass += by_entry if sums.mass.shape[0] == by_entry.shape[0] else by_entry.sum(0, keepdim=True)
    if steps.by_gamma is not None:
        found["gamma"] = steps.by_gamma.unflatten(0, inputs.query.shape[:2]).sum(0)
    if inputs.before is not None and steps.ratios is not None:
        found["before"] = -inputs.before.flatten() * steps.ratios
    return {**found, **sums.found(problem.queries), "value": steps.carried_grad}


class _Pull(NamedTuple):
    """Cotangents of the rows of a hop, `(G, Nq, ...)`; None: absent."""

    flow: Tensor | None  # w: (G, Nq, c)
    row: Tensor | None  # δ: (G, Nq, 1), under the norm of rows
    block: Tensor | None  # E: (G, Nq, 1), under the norm of a block
    row_mass: Tensor | None  # ω of the rows, (G, Nq, 1), where E is given; None: 1


@final
class _Steps:
    """The hop to the queries, if these are other points, then those among the points; sums gradients over both."""

    def __init__(self, problem: HopProblem, found: HopOutputs, wanted: frozenset[str]) -> None:
        self.problem, self.found = problem, found
        self.carried = problem.value.clone()  # z
        if problem.gamma is not None:
            series = found.inner if found.inner is not None else found.out.flatten(0, 1)
            self.carried[:, problem.start :] += series
        self.carried_grad = torch.zeros_like(self.carried)
        self.sums = PairGradients(problem.queries, wanted)
        self.by_gamma = None if problem.gamma is None else problem.gamma.new_zeros(problem.value.shape[0])
        self.block: Tensor | None = None  # E: (G, n), float64
        self.ratios: Tensor | None = None  # Σ_i ρ_i: (G,)

    def at_queries(self, grad: Tensor, grad_norm: Tensor) -> Tensor:
        """Gradient of queries that are no points; gradients of the points are accumulated in the sums, and in E."""
        out, norm, queries = self.found.out.flatten(0, 1), self.found.norm.flatten(0, 1), self.problem.queries
        row = self._pulls(queries, grad, out, norm, grad_norm)
        return self._add(queries, _Pull(self.problem.weight(norm) * grad, row, None, None))

    def at_points(self, grad: Tensor, out: Tensor | None, norm: Tensor | None, grad_norm: Tensor | None) -> Tensor:
        """Gradient of the points' own queries, from that of the series or the hop at the points."""
        problem, points = self.problem, self.problem.points
        mass = problem.point_mass()
        mass = None if mass is None else mass[..., None]
        if out is None or norm is None:  # κ is one hop, and only its norm is computed at the points
            return self._add(points, _Pull(None, None, self._block(), mass))
        weight = problem.weight(norm)
        full = grad if problem.gamma is None else grad + self._adjoint(grad, weight)[:, problem.start :]
        row = self._pulls(points, full, out, norm, grad_norm)
        return self._add(points, _Pull(weight * full, row, self._block(), mass))

    def _block(self) -> Tensor | None:
        return None if self.block is None else self.block.to(self.problem.dtype)[..., None]

    def _pulls(
        self, tiles: PairTiles, full: Tensor, out: Tensor, norm: Tensor, grad_norm: Tensor | None
    ) -> Tensor | None:
        """Returns δ `(G, Nq, 1)` under row norms; under a block norm adds to E. Also adds to the gradient of γ."""
        along = (full * out).sum(-1)
        if self.by_gamma is not None:
            assert self.problem.gamma is not None
            self.by_gamma += along.sum(-1) / self.problem.gamma[:, 0, 0]
        inverse = reciprocal(norm, torch.float64)
        delta = along * inverse if grad_norm is None else along * inverse - grad_norm
        if self.found.rows is None:
            return delta.to(self.problem.dtype)[..., None]
        ratios = delta * inverse
        spread = self.problem.spread(tiles, self.found.rows, ratios)
        self.block = spread if self.block is None else self.block + spread
        self.ratios = ratios.sum(-1)
        return None

    def _adjoint(self, grad: Tensor, weight: Tensor) -> Tensor:
        """Bᵀ λ, `(G, N, c)`."""
        problem, found = self.problem, self.found
        out = grad.new_zeros(problem.value.shape)
        for heads in problem.points.groups():
            factors = None
            if found.factors is not None and found.pivots is not None:
                factors = Factors(found.factors[heads], found.pivots[heads])
            out[heads] = problem.solve(heads, weight, grad[heads], factors, adjoint=True)
        return out

    def _add(self, tiles: PairTiles, pull: _Pull) -> Tensor:
        """Adds the gradients of a hop; returns those of its queries, `(G, Nq, d)`."""
        into = self.sums.queries(tiles)
        for rows in tiles.all_rows():
            for columns in tiles.columns_of(rows):
                self._add_tile(tiles, pull, rows, columns, into)
        return self.sums.of_queries(tiles, into)

    def _add_tile(
        self, tiles: PairTiles, pull: _Pull, rows: Rows, columns: slice, into: tuple[Tensor, Tensor | None]
    ) -> None:
        sums, here, there = self.sums, (rows.heads, rows.rows), (rows.heads, columns)
        scores, kept = tiles.scores(rows, columns)
        mass, density = tiles.pair_mass(rows, columns), tiles.density(rows, columns)
        if pull.flow is None:
            by_score = torch.zeros_like(scores)
        else:
            flow = scores if mass is None else weigh(scores, mass)
            self.carried_grad[there].baddbmm_(flow.mT, pull.flow[here])
            by_score = pull.flow[here] @ self.carried[there].mT
        if pull.row is not None:
            by_score = by_score - pull.row[here] * scores.sign()
        shrink = None
        if pull.block is not None:  # E_i ω_i m_ij φ_ij
            factor = pull.block[here] if pull.row_mass is None else pull.block[here] * pull.row_mass[here]
            shrink = factor * (scores if density is None else weigh(scores, density))
        if sums.mass is not None:
            by_mass = (by_score if shrink is None else by_score - 0.5 * shrink) * scores
            sums.add_masses(tiles, rows, columns, by_mass if density is None else weigh(by_mass, density))
        if shrink is not None:
            by_score = by_score - shrink
        if sums.pairs is not None and density is not None:
            by_pair = by_score * scores
            by_pair = by_pair if tiles.mass is None else weigh(by_pair, tiles.mass_of(rows, columns))
            sums.add_pairs(tiles, rows, columns, torch.where(density == 0, 0.0, by_pair))
        sums.add(tiles, rows, columns, kept, by_score if mass is None else weigh(by_score, mass), into)


def _plain(
    inputs: HopInputs,
    score: list[float],
    has_one_norm: bool,
    solver: list[float],
    elements: int | None,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    """The integral and the norms in differentiable operations: all pairs at once, and a series by elimination."""
    phi = Score.decoded(score)

    def pairs_of(query: Tensor, seen: Tensor | None) -> Pairs:
        return all_pairs(TileInputs(query, inputs.key, mass=inputs.mass, pairs=inputs.pairs, seen=seen), phi)

    queries = points = pairs_of(inputs.query, inputs.seen)
    if inputs.own is not None:
        points = pairs_of(inputs.own, inputs.own_seen)
    value = inputs.value.to(points.scores.dtype)
    squares = _running_squares(inputs, points) if has_one_norm else None
    start = inputs.key.shape[2] - points.scores.shape[2]
    reached = value
    if inputs.gamma is not None:
        gamma = inputs.gamma.to(value.dtype)[:, None, None]
        norm = _plain_norm(points, squares, inputs.seen if inputs.own is None else inputs.own_seen, start)
        step = gamma * divided(_flow(points), norm[..., None])
        identity = torch.eye(step.shape[2], dtype=step.dtype, device=step.device)
        # the series at a point without mass is not needed
        series = solve_each(identity - step[..., start:], step @ value)
        if inputs.own is None:
            return series, norm
        reached = value + series
    norm = _plain_norm(queries, squares, inputs.seen, start)
    out = divided(_flow(queries) @ reached, norm[..., None])
    return (out if inputs.gamma is None else inputs.gamma.to(out.dtype)[:, None, None] * out), norm


def _flow(pairs: Pairs) -> Tensor:
    """S, exactly 0 where a pair is hidden."""
    return pairs.scores if pairs.mass is None else torch.where(pairs.mass > 0, pairs.scores * pairs.mass, 0.0)


def _running_squares(inputs: HopInputs, points: Pairs) -> Tensor:
    """c² after each of the points' rows, and before the first, `(B, H, n + 1)`."""
    scores = points.scores.double()
    if points.density is not None:
        scores = torch.where(points.density > 0, scores * points.density, 0.0)
    mass = None if inputs.mass is None else inputs.mass.double()[:, None]
    rows = (scores.square() if mass is None else scores.square() * mass[:, :, None]).sum(-1)
    rows = rows if mass is None else rows * mass
    first = rows.new_zeros(*rows.shape[:2], 1) if inputs.before is None else inputs.before.double().square()[..., None]
    return torch.cat([first, rows], dim=-1).cumsum(-1)


def _plain_norm(pairs: Pairs, squares: Tensor | None, seen: Tensor | None, start: int) -> Tensor:
    """c of the queries of some pairs, `(B, H, Nq)`."""
    if squares is None:
        return _flow(pairs).abs().sum(-1)
    queries = pairs.scores.shape[2]
    if seen is None:
        return block_norm(squares[..., -1:]).expand(-1, -1, queries).to(pairs.scores.dtype)
    places = (seen - start).clamp(0, squares.shape[-1] - 1)[:, None]
    return block_norm(squares.gather(-1, places.expand(*squares.shape[:2], -1))).to(pairs.scores.dtype)


hops = Operator(
    "hops",
    HopInputs,
    HopOutputs,
    _forward,
    _like,
    hop_backward,
    results=("out", "norm"),
    keeps=HopOutputs._fields,
    plain=_plain,
)
"""The integral of hops. Options: the score as `encoded`, whether the norm is over all points, the solver as
`options`, pairs in a tile, and whether factors are kept for the backward pass."""
