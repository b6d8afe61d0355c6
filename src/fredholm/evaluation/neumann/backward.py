"""Gradients of the integral, by the implicit function theorem: one adjoint series, then the gradient of one hop.

Legend
    y = B (v + y)                the series         λ = g + Bᵀ λ   its adjoint, g = ∂L/∂y
    ∂L/∂v = Bᵀ λ,   ∂L/∂B = λ (v + y)ᵀ              so that no hop but the last is remembered
"""

from typing import NamedTuple

import torch
from torch import Tensor

from fredholm.evaluation.neumann.direct import Factors
from fredholm.evaluation.neumann.forward import Found
from fredholm.evaluation.neumann.gradient import HopGradient, Pull
from fredholm.evaluation.neumann.norms import reciprocal
from fredholm.evaluation.neumann.problem import Problem
from fredholm.evaluation.neumann.solvers import solve
from fredholm.evaluation.neumann.tiles import HopTiles


class Gradients(NamedTuple):
    """Gradients of the fields of `HopInputs`, heads of a batch in a row; None where unwanted or not there."""

    query: Tensor
    own: Tensor | None
    key: Tensor
    value: Tensor
    gamma: Tensor | None  # (G,)
    before: Tensor | None  # (G,)
    mass: Tensor | None
    pairs: Tensor | None


def backward(
    problem: Problem, found: Found, grad: Tensor, grad_norm: Tensor, *, wants_mass: bool, wants_pairs: bool
) -> Gradients:
    """From gradients of the integral `(G, Nq, c)` and of the queries' norms `(G, Nq)`."""
    steps = _Steps(problem, found, wants_mass=wants_mass, wants_pairs=wants_pairs)
    if problem.is_elsewhere:
        query = steps.at_queries(grad, grad_norm)
        own = steps.at_points(steps.sums.carried.clone(), found.inner, found.inner_norm, None)
    else:
        query, own = steps.at_points(grad, found.out, found.norm, grad_norm), None
    sums, before = steps.sums, problem.inputs.before
    if sums.mass is not None and steps.block is not None:
        by_head = (-0.5 * steps.block * found.rows).to(problem.dtype).unflatten(0, (-1, problem.points.num_heads))
        by_entry = by_head.sum(1)
        sums.mass += by_entry if len(sums.mass) == len(by_entry) else by_entry.sum(0, keepdim=True)
    return Gradients(
        query=query,
        own=own,
        key=sums.key,
        value=sums.carried,
        gamma=steps.by_gamma,
        before=-before.flatten() * steps.ratios if before.ndim == 2 and steps.ratios is not None else None,
        mass=sums.mass,
        pairs=sums.pairs,
    )


class _Steps:
    """The hop to the queries, where these are others, then those among the points."""

    def __init__(self, problem: Problem, found: Found, *, wants_mass: bool, wants_pairs: bool) -> None:
        self.problem, self.found = problem, found
        carried = problem.value.clone()
        if problem.gamma is not None:
            carried[:, problem.start :] += found.inner if problem.is_elsewhere else found.out
        self.sums = HopGradient(carried, problem.asked, wants_mass=wants_mass, wants_pairs=wants_pairs)
        self.by_gamma = None if problem.gamma is None else problem.gamma.new_zeros(problem.num_heads)
        self.block: Tensor | None = None  # E: (G, n), float64
        self.ratios: Tensor | None = None  # Σ_i ρ_i: (G,)

    def at_queries(self, grad: Tensor, grad_norm: Tensor) -> Tensor:
        """Gradient of queries that are no points; what reaches the points is in the sums, and in E."""
        out, norm, asked = self.found.out, self.found.norm, self.problem.asked
        row = self._pulls(asked, grad, out, norm, grad_norm)
        return self.sums.add(asked, Pull(self.problem.weight(norm) * grad, row, None, None))

    def at_points(self, grad: Tensor, out: Tensor, norm: Tensor, grad_norm: Tensor | None) -> Tensor:
        """Gradient of the points' own queries, from that of the series or the hop there."""
        problem, points = self.problem, self.problem.points
        mass = problem.point_mass()
        mass = None if mass is None else mass[..., None]
        if problem.gamma is None and problem.is_elsewhere:
            return self.sums.add(points, Pull(None, None, self._block(), mass))
        weight = problem.weight(norm)
        full = grad if problem.gamma is None else grad + self._adjoint(grad, weight)[:, problem.start :]
        row = self._pulls(points, full, out, norm, grad_norm)
        return self.sums.add(points, Pull(weight * full, row, self._block(), mass))

    def _block(self) -> Tensor | None:
        return None if self.block is None else self.block.to(self.problem.dtype)[..., None]

    def _pulls(
        self, tiles: HopTiles, full: Tensor, out: Tensor, norm: Tensor, grad_norm: Tensor | None
    ) -> Tensor | None:
        """δ `(G, Nq, 1)` under the norm of rows; under that of a block E grows. The gradient of γ grows too."""
        along = (full * out).sum(-1)
        if self.by_gamma is not None:
            assert self.problem.gamma is not None
            self.by_gamma += along.sum(-1) / self.problem.gamma[:, 0, 0]
        inverse = reciprocal(norm, torch.float64)
        delta = along * inverse if grad_norm is None else along * inverse - grad_norm
        if not self.problem.plan.has_one_norm:
            return delta.to(self.problem.dtype)[..., None]
        ratios = delta * inverse
        spread = self.problem.norm(self.found.rows).spread(ratios, self.problem.order(tiles))
        self.block = spread if self.block is None else self.block + spread
        self.ratios = ratios.sum(-1)
        return None

    def _adjoint(self, grad: Tensor, weight: Tensor) -> Tensor:
        """Bᵀ λ, `(G, N, c)`."""
        problem, found = self.problem, self.found
        out = grad.new_zeros(problem.value.shape)
        for heads in problem.points.groups():
            factors = Factors(found.factors[heads], found.pivots[heads]) if found.pivots.numel() else None
            system = problem.system(heads, weight)
            out[heads] = solve(problem.plan, system, grad[heads], factors, adjoint=True)
        return out
