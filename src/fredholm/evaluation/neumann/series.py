"""The series cut after T hops, and what is left out.

    Σ_{t > T} (γA)^t v  is at most  γ^{T+1} / (1 - γ) ‖v‖

in L²(μ) under the Frobenius norm, whose hops have norm 1 there at most, and in the largest entry under the norm of
rows, whose hops have norm 1 there.
"""

import math

import torch
from torch import Tensor

from fredholm.evaluation.neumann.system import System


def num_terms(gamma: float, tolerance: float) -> int:
    """The least T >= 1 with γ^{T+1} / (1 - γ) <= tolerance."""
    return max(1, math.ceil(math.log(tolerance * (1 - gamma)) / math.log(gamma) - 1 - 1e-9))


def remainder(gamma: float, terms: int) -> float:
    """γ^{T+1} / (1 - γ): what is left out after T hops, over ‖v‖, at most."""
    return gamma ** (terms + 1) / (1 - gamma)


def solve(system: System, signal: Tensor, terms: int, *, adjoint: bool = False) -> Tensor:
    """Σ_{1 <= t <= T} B^t f, or of Bᵀ, `(g, N, c)`."""
    x = torch.zeros_like(signal)
    for _ in range(terms):
        x = system.apply(signal + x, adjoint=adjoint)
    return x
