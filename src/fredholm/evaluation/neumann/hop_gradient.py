"""Gradients of hops and of their series: one adjoint series, by the implicit function theorem, then that of one hop.

Legend (beside that of `hop_problem.py`)
    y = B (v + y)                the series         λ = g + Bᵀ λ     its adjoint, g = ∂L/∂y
    ∂L/∂v = Bᵀ λ,   ∂L/∂B = λ (v + y)ᵀ              so that no hop but the last is remembered
    z            v + y                              w    γ λ / c
    δ_i          λ_i·y_i / c_i = -∂L/∂c_i           m    pair weight, 0 where hidden

    t_ij = w_i·z_j - δ_i sign φ_ij   (norm of rows)      or      w_i·z_j - E_i ω_i m_ij φ_ij   (norm of a block)

    ∂L/∂φ_ij = P_ij t_ij,   ∂L/∂m_ij = ω_j t_ij φ_ij,   ∂L/∂z_j = Σ_i S_ij w_i;   every tile is computed anew
"""

from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm.evaluation.neumann.hop_problem import HopInputs, HopOutputs, HopProblem, reciprocal
from fredholm.evaluation.neumann.solvers import Factors, weigh
from fredholm.evaluation.pair_tiles import PairGradients, PairTiles, Rows


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
        sums.mass += by_entry if len(sums.mass) == len(by_entry) else by_entry.sum(0, keepdim=True)
    if steps.by_gamma is not None:
        found["gamma"] = steps.by_gamma.unflatten(0, inputs.query.shape[:2]).sum(0)
    if inputs.before is not None and steps.ratios is not None:
        found["before"] = -inputs.before.flatten() * steps.ratios
    return {**found, **sums.found(problem.asked), "value": steps.carried_grad}


class _Pull(NamedTuple):
    """What pulls at the rows of a hop, `(G, Nq, ...)`; None: nothing."""

    flow: Tensor | None  # w: (G, Nq, c)
    row: Tensor | None  # δ: (G, Nq, 1), under the norm of rows
    block: Tensor | None  # E: (G, Nq, 1), under the norm of a block
    row_mass: Tensor | None  # ω of the rows, (G, Nq, 1), where E is given; None: 1


@final
class _Steps:
    """The hop to the queries, where these are others, then those among the points; gradients are summed over both."""

    def __init__(self, problem: HopProblem, found: HopOutputs, wanted: frozenset[str]) -> None:
        self.problem, self.found = problem, found
        self.carried = problem.value.clone()  # z
        if problem.gamma is not None:
            series = found.inner if found.inner is not None else found.out.flatten(0, 1)
            self.carried[:, problem.start :] += series
        self.carried_grad = torch.zeros_like(self.carried)
        self.sums = PairGradients(problem.asked, wanted)
        self.by_gamma = None if problem.gamma is None else problem.gamma.new_zeros(len(problem.value))
        self.block: Tensor | None = None  # E: (G, n), float64
        self.ratios: Tensor | None = None  # Σ_i ρ_i: (G,)

    def at_queries(self, grad: Tensor, grad_norm: Tensor) -> Tensor:
        """Gradient of queries that are no points; what reaches the points is in the sums, and in E."""
        out, norm, asked = self.found.out.flatten(0, 1), self.found.norm.flatten(0, 1), self.problem.asked
        row = self._pulls(asked, grad, out, norm, grad_norm)
        return self._add(asked, _Pull(self.problem.weight(norm) * grad, row, None, None))

    def at_points(self, grad: Tensor, out: Tensor | None, norm: Tensor | None, grad_norm: Tensor | None) -> Tensor:
        """Gradient of the points' own queries, from that of the series or the hop there."""
        problem, points = self.problem, self.problem.points
        mass = problem.point_mass()
        mass = None if mass is None else mass[..., None]
        if out is None or norm is None:  # κ is one hop, and only its norm is made at the points
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
        """δ `(G, Nq, 1)` under the norm of rows; under that of a block E grows. The gradient of γ grows too."""
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
        """Adds what a hop says; its queries' gradients, `(G, Nq, d)`."""
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
