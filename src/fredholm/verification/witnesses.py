"""Operators of this library outside a classical family, each with the property that distinguishes it.

Source: ITNet (arXiv 2606.19538), C.4, D.5, D.6, E.9 and E.10. Deviations: E.10 bounds the rank of a whole kernel, which
a recurrence with n state variables does not obey; instead every block of κ that lies in the past of its
queries has rank at most n, and that is measured here. C.4's map is κ = σ(u(x)·u(x_0)) I 1[x = y].
"""

import math
from collections.abc import Callable, Iterator
from typing import final

import torch
from torch import Tensor

from fredholm.domains import Domain, Grid, Points
from fredholm.kernels import Kernel
from fredholm.operators import IntegralOperator
from fredholm.verification.check import EXACT, Check, operator_of, relative_error

Scalar = Callable[[Tensor, Tensor], Tensor]
"""Scalar κ, `(Nq, N)`, as a function of query positions `(Nq, s)` and key positions `(N, s)`."""


@final
class _Scalar(Kernel):
    """κ(x, y) = f(x, y) I, for a function of the positions."""

    is_causal = reads_query = False

    def __init__(self, dim: int, pos_dim: int, function: Scalar) -> None:
        super().__init__()
        self.in_dim = self.out_dim = dim
        self.pos_dim, self.function = pos_dim, function

    def matrix(
        self, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        at = domain if query_domain is None else query_domain
        value = self.function(at.pos, domain.pos).to(u.dtype)[..., None, None]
        return (value * torch.eye(self.in_dim, dtype=u.dtype)).expand(len(u), -1, -1, -1, -1)


@final
class _ContentGate(Kernel):
    """κ(x, y, u) = σ(u(x)·u(x_0)) I 1[x = y] with σ the logistic function and x_0 the first point (C.4, eq. 39-40)."""

    pos_dim = None
    is_causal = False
    reads_query = counts_points = True

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.in_dim = self.out_dim = dim

    def matrix(
        self, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        gate = torch.sigmoid((u * u[:, :1]).sum(-1))
        return torch.diag_embed(gate)[..., None, None] * torch.eye(self.in_dim, dtype=u.dtype)


def witnesses() -> Iterator[Check]:
    """Checks each witness against its own formula, then measures the property that its classical family cannot have."""
    yield from _gaussian()
    yield from _distance()
    yield from _gate()
    yield from _bidirectional()
    yield from _high_rank()


def _row(variant: str, check: str, value: float, bound: float, *, at_least: bool = True) -> Check:
    return Check("witness", variant, check, value, bound, at_least)


def _gaussian() -> Iterator[Check]:
    variant, grid, length = "unnormalised Gaussian smoothing", Grid(9, 9), 0.7

    def gaussian(x: Tensor, y: Tensor) -> Tensor:
        return (-(x[:, None] - y[None]).square().sum(-1) / length**2).exp()

    operator = _operator(3, 2, gaussian)
    constant = torch.ones(1, 81, 3, dtype=torch.float64)
    out = operator(constant, grid)
    # the midpoint rule of one axis, squared: the sum over the grid factorises
    axis = [(i + 0.5) / 9 for i in range(9)]
    along = torch.tensor(
        [sum(math.exp(-((a - b) ** 2) / length**2) for b in axis) / 9 for a in axis], dtype=torch.float64
    )
    expected = (along[:, None] * along[None]).reshape(1, 81, 1).expand(-1, -1, 3)
    yield _row(variant, "its formula", relative_error(out, expected), EXACT, at_least=False)
    # a mean of equal values is that value, whatever the weights: attention maps constants to constants
    spread = (out.amax(1) - out.amin(1)).max().item()
    yield _row(variant, "a constant is not mapped to a constant, as every softmax attention does", spread, 0.1)


def _distance() -> Iterator[Check]:
    variant = "distance-weighted mean"
    operator = _operator(2, 1, lambda x, y: (x[:, None] - y[None]).square().sum(-1).sqrt())
    domain = Points(torch.tensor([[0.0], [1.0]], dtype=torch.float64))
    u = torch.eye(2, dtype=torch.float64)[None]
    out = operator(u, domain)
    expected = torch.tensor([[[0.0, 0.5], [0.5, 0.0]]], dtype=torch.float64)
    yield _row(variant, "its formula", relative_error(out, expected), EXACT, at_least=False)
    far = Points(torch.tensor([[0.0], [1.0], [3.0]], dtype=torch.float64))
    u = torch.eye(3, 2, dtype=torch.float64)[None]
    permuted = [2, 0, 1]
    gap = (operator(u[:, permuted], far) - operator(u, far)[:, permuted]).abs().max().item()
    yield _row(variant, "not equivariant to permutations of the features, as attention without positions is", gap, 0.1)


def _gate() -> Iterator[Check]:
    variant = "content-gated map"
    operator = operator_of(_ContentGate(3))
    u = torch.randn(1, 5, 3, dtype=torch.float64)
    expected = torch.sigmoid((u * u[:, :1]).sum(-1, keepdim=True)) * u
    yield _row(variant, "its formula", relative_error(operator(u), expected), EXACT, at_least=False)
    bend = (operator(2 * u) - 2 * operator(u)).abs().max().item()
    yield _row(variant, "not linear, as every convolution is", bend, 0.01)
    shifted = u.roll(1, dims=1)
    gap = (operator(shifted) - operator(u).roll(1, dims=1)).abs().max().item()
    yield _row(variant, "not equivariant to translations, as every convolution is", gap, 0.01)


def _bidirectional() -> Iterator[Check]:
    variant, domain = "bidirectional exponential", Grid(6)
    operator = _operator(2, 1, lambda x, y: (-(x - y.mT).abs() / 0.5).exp())
    impulse = torch.zeros(1, 6, 2, dtype=torch.float64)
    impulse[0, 5] = 1.0
    out = operator(impulse, domain)
    expected = (-(domain.pos - domain.pos[5]).abs() / 0.5).exp()[None].expand(-1, -1, 2) / 6
    yield _row(variant, "its formula", relative_error(out, expected), EXACT, at_least=False)
    ahead = out[:, 0].abs().max().item()
    yield _row(variant, "answers to the future, which no recurrence does", ahead, 0.01)


def _high_rank() -> Iterator[Check]:
    states = 3
    variant, domain = f"rank-{states + 1} kernel", Grid(16)

    def bases(x: Tensor) -> Tensor:
        return torch.cat([math.sqrt(2) * torch.sin(math.pi * k * x) for k in range(1, states + 2)], dim=-1)

    operator = _operator(1, 1, lambda x, y: bases(x) @ bases(y).mT)
    u = torch.randn(1, 16, 1, dtype=torch.float64)
    basis = bases(domain.pos)
    expected = (basis @ (basis.mT @ u[0]) / 16)[None]
    yield _row(variant, "its formula", relative_error(operator(u, domain), expected), EXACT, at_least=False)
    kappa = operator.kernel.matrix(u, domain)[0, ..., 0, 0] if isinstance(operator.kernel, Kernel) else u
    past = kappa[8:, :8]  # queries in the second half, keys in the first: rank <= n for n state variables
    values = torch.linalg.svdvals(past)
    distance = (values[states] / values[0]).item()
    check = f"distance of its past block from every recurrence with {states} states"
    yield _row(variant, check, distance, 1e-6)


def _operator(dim: int, pos_dim: int, function: Scalar) -> IntegralOperator:
    return operator_of(_Scalar(dim, pos_dim, function))
