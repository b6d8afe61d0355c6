"""The ways to solve for a series, by their places in a plan."""

import torch
from torch import Tensor

from fredholm.evaluation.neumann import series, substitution
from fredholm.evaluation.neumann.direct import Factors
from fredholm.evaluation.neumann.inputs import HopPlan
from fredholm.evaluation.neumann.krylov import Iteration
from fredholm.evaluation.neumann.system import System

SUBSTITUTION, DIRECT, ITERATION, SERIES = range(4)
"""`HopPlan.solver`."""


def solve(plan: HopPlan, system: System, signal: Tensor, factors: Factors | None, *, adjoint: bool = False) -> Tensor:
    """x = B f + B x, or with Bᵀ; `factors` are kept from the other direction."""
    if system.tiles.num_keys == 0:
        return torch.zeros_like(signal)
    if plan.solver == SUBSTITUTION:
        return substitution.solve(system, signal, adjoint=adjoint)
    if plan.solver == DIRECT:
        factors = fresh_factors(system) if factors is None else factors
        return factors.solve(system, signal, adjoint=adjoint)
    if plan.solver == ITERATION:
        return Iteration(plan.tolerance, plan.limit, plan.restart).solve(system, signal, adjoint=adjoint)
    return series.solve(system, signal, plan.limit, adjoint=adjoint)


def fresh_factors(system: System) -> Factors:
    """The factors of a system, in memory of their own."""
    count, points = system.heads.stop - system.heads.start, system.tiles.num_keys
    memory = system.tiles.key.new_empty(count, points, points)
    return Factors.within(memory, torch.empty(count, points, dtype=torch.int32, device=memory.device), system)
