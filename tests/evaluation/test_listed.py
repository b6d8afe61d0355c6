"""Integrals over listed pairs, whose chunks are recomputed in the backward pass with the same random draws."""

import pytest
import torch

from fredholm import IntegralOperator, kernels
from fredholm.domains import PairList, Points
from fredholm.evaluation import AUTO, ROUTES, Dense, EachQuery, Route
from fredholm.kernels import Kernel
from tests.contracts.routes import randomise


@pytest.mark.parametrize("elements", [1 << 22, 1500, 40])
def test_weight_dropout_is_drawn_once_for_both_passes(monkeypatch: pytest.MonkeyPatch, elements: int) -> None:
    monkeypatch.setattr("fredholm.evaluation.listed.CHUNK_ELEMENTS", elements)
    kernel = kernels.ContinuousConvolution(2, 3, pos_dim=2, width=8, omega_0=3.0, weight_dropout=0.5)
    op = IntegralOperator(kernel, evaluation=EachQuery(), residual=False).double().train()
    points = Points(torch.rand(6, 2, dtype=torch.float64))
    listed = points.list_pairs(PairList.of_index(torch.randint(6, (1, 6, 3)), torch.ones(1, 6, 3), 6))
    u = torch.randn(1, 6, 2, dtype=torch.float64, requires_grad=True)

    def value(signal: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(4)
        return op(signal, listed).square().sum()

    torch.manual_seed(4)
    out = value(u)
    after = torch.get_rng_state()
    (grad,) = torch.autograd.grad(out, u)
    assert torch.equal(torch.get_rng_state(), after)
    along, step = torch.randn_like(u), 1e-6
    with torch.no_grad():
        slope = (value(u + step * along) - value(u - step * along)) / (2 * step)
    torch.testing.assert_close((grad * along).sum(), slope, rtol=1e-6, atol=1e-8)


LINEAR_IN_WEIGHTS: dict[str, Kernel] = {
    "perceptron": kernels.MLP(4, 2, 2, width=5, num_frequencies=2),
    "low rank": kernels.LowRankMLP(4, 2, 2, rank=2, width=5, num_frequencies=2),
    "separable": kernels.SeparableMLP(4, 2, 2, width=5, num_frequencies=2),
    "continuous convolution": kernels.ContinuousConvolution(4, 4, 2, width=5, omega_0=3.0),
    "constant": kernels.Constant(4, 4),
}
HIDING: dict[str, Kernel] = {
    "attention": kernels.Attention(4, 2),
    "linear attention": kernels.LinearAttention(4, 2),
    "unnormalised": kernels.UnnormalisedAttention(4, 2),
}


NO_PAIRS = {
    "no groups": PairList((), 1, 4, 4),
    "groups of no points": PairList.of_index(torch.zeros(1, 4, 0, dtype=torch.int64), torch.zeros(1, 4, 0), 4),
}


@pytest.mark.parametrize("pairs", NO_PAIRS.values(), ids=NO_PAIRS.keys())
@pytest.mark.parametrize("name", [*LINEAR_IN_WEIGHTS, *HIDING])
def test_without_pairs_the_integral_and_its_gradients_are_zero(name: str, pairs: PairList) -> None:
    kernel = {**LINEAR_IN_WEIGHTS, **HIDING}[name].double()
    where = Points(torch.rand(4, 2, dtype=torch.float64)).list_pairs(pairs)
    for route in (AUTO, *(route for route in ROUTES if route.lists_pairs and route.is_made_for(kernel))):
        u = torch.randn(2, 4, 4, dtype=torch.float64, requires_grad=True)
        out = IntegralOperator(kernel, evaluation=route, residual=False, bias=False, output_projection=False)(u, where)
        assert out.shape == (2, 4, 4)
        assert not out.any()
        found = torch.autograd.grad(out.sum(), [u, *kernel.parameters()])
        assert not any(grad.any() for grad in found)


def gradient_of_weights(kernel: Kernel, route: Route, weights: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)
    op = IntegralOperator(kernel, evaluation=route, residual=False, bias=False, output_projection=False).double()
    points, u = Points(torch.rand(4, 2, dtype=torch.float64)), torch.randn(1, 4, 4, dtype=torch.float64)
    weights = weights.clone().requires_grad_()
    index = torch.arange(4).expand(1, 4, 4)
    out = op(u, points.list_pairs(PairList.of_index(index, weights, 4)))
    return torch.autograd.grad((out * torch.linspace(-1, 2, out.numel()).view_as(out)).sum(), weights)[0]


@pytest.mark.parametrize("name", [*LINEAR_IN_WEIGHTS, *HIDING])
def test_a_listed_weight_of_zero_has_one_gradient_by_every_route(name: str) -> None:
    kernel = randomise({**LINEAR_IN_WEIGHTS, **HIDING}[name].double())
    weights = torch.rand(1, 4, 4, dtype=torch.float64) + 0.2
    weights[0, 3, 1] = weights[0, 0, 0] = 0
    expected = gradient_of_weights(kernel, Dense(), weights)
    # without normalisation the integral is linear in the weights, with a constant gradient
    hides = name in HIDING
    if not hides:
        torch.testing.assert_close(expected, gradient_of_weights(kernel, Dense(), weights + 0.1))
    assert bool(expected[0, 3, 1]) == (not hides)
    listing = [route for route in ROUTES if route.needs_list and route.is_made_for(kernel)]
    assert listing
    for route in listing:
        torch.testing.assert_close(gradient_of_weights(kernel, route, weights), expected)
