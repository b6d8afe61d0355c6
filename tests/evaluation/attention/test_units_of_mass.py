"""Attention divides by a sum over masses, so that on every route the unit of mass does not matter."""

from typing import Any

import pytest
import torch

from fredholm import IntegralOperator, kernels
from fredholm.domains import Points, Sequence
from fredholm.evaluation import Dense, ScoreTiled
from fredholm.kernels import Kernel
from fredholm.kernels.attention.normalisers import Softermax
from fredholm.quadrature import Neighbourhood
from tests.contracts.routes import randomise


@pytest.mark.parametrize("kernel", [kernels.Attention(4, 2), kernels.YatAttention(4, 2, epsilon=1.0)])
@pytest.mark.parametrize("options", [{"evaluation": ScoreTiled()}, {"quadrature": Neighbourhood(num_neighbours=3)}])
def test_attention_takes_masses_in_any_unit(kernel: Kernel, options: dict[str, Any]) -> None:
    """In float32, where squares of the smallest masses underflow: first and second gradients stay the same."""
    torch.manual_seed(0)
    op, pos, weights = IntegralOperator(randomise(kernel), **options), torch.rand(7, 2), torch.rand(7) + 0.1
    u, found = torch.randn(2, 7, 4, requires_grad=True), []
    for unit in (1.0, 2.0**-70, 2.0**-115):
        out = op(u, Points(pos, weights=weights * unit))
        (first,) = torch.autograd.grad(out.square().sum(), u, create_graph=True)
        found.append((out, first, *torch.autograd.grad(first.square().sum(), u)))
    for scaled in found[1:]:
        for ours, expected in zip(scaled, found[0], strict=True):
            assert (ours - expected).abs().max() <= 1e-3 * expected.abs().max()


@pytest.mark.parametrize(
    "kernel",
    [
        kernels.Attention(4, 2),
        kernels.YatAttention(4, 2, epsilon=1.0, is_causal=True),
        kernels.AdditiveAttention(4, 2),
        kernels.LinearAttention(4, 2),
        kernels.InfiniteAttention(4, 2),
        kernels.FactorisedInfiniteAttention(4, 2),
        kernels.LinearInfiniteAttention(4, 2),
    ],
    ids=lambda kernel: type(kernel).__name__,
)
def test_dense_takes_masses_in_any_unit(kernel: Kernel) -> None:
    """In float32, where squares of the smallest masses underflow; every gradient once held NaN."""
    torch.manual_seed(0)
    op, weights = IntegralOperator(randomise(kernel), evaluation=Dense()), torch.rand(7) + 0.1
    u, found = torch.randn(2, 7, 4, requires_grad=True), []
    for unit in (1.0, 2.0**-70, 2.0**-115):
        out = op(u, Sequence(7, weights=weights * unit))
        found.append((out, *torch.autograd.grad(out.square().sum(), u)))
    for scaled in found[1:]:
        for ours, expected in zip(scaled, found[0], strict=True):
            assert (ours - expected).abs().max() <= 1e-3 * expected.abs().max()


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e3])
def test_weights_of_points_are_densities_times_masses(unit: float) -> None:
    score, mass = torch.rand(2, 5, 7, dtype=torch.float64), unit * torch.rand(7, dtype=torch.float64)
    normaliser = Softermax(power=1.5, epsilon=0.3)
    torch.testing.assert_close(normaliser.shares(score, mass), normaliser.density(score, mass) * mass)


@pytest.mark.parametrize("is_causal", [False, True])
def test_linear_attention_under_pair_weights_takes_masses_in_any_unit(is_causal: bool) -> None:
    torch.manual_seed(0)
    op, weights = IntegralOperator(kernels.LinearAttention(4, 2, is_causal=is_causal)), torch.rand(7) + 0.1
    u, pairs, found = torch.randn(2, 7, 4, requires_grad=True), torch.randn(7, 7), []
    for unit in (1.0, 2.0**-70, 2.0**-115, 2.0**70):
        out = op(u, Sequence(7, weights=weights * unit).weigh_pairs(pairs))
        found.append((out, *torch.autograd.grad(out.square().sum(), u)))
    for scaled in found[1:]:
        torch.testing.assert_close(scaled, found[0], rtol=1e-4, atol=1e-4)
