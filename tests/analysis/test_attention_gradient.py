import math
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from fredholm import IntegralOperator, analysis, fields
from fredholm.domains import Sequence
from fredholm.kernels import Attention
from tests.refusals import refused


class Regression(NamedTuple):
    """The paper's setting: f(x) = Σ_k c_k sin(w_k·x + b_k), 100 samples, coefficients that are not yet fitted."""

    features: Tensor
    y: Tensor
    c: Tensor
    weights: Tensor

    @property
    def residual(self) -> Tensor:
        return self.y - self.features @ self.c


def regression(n: int = 100, k: int = 50, m: int = 2) -> Regression:
    torch.manual_seed(0)
    basis = fields.SinusoidalField(2, num_terms=k).double()
    features = basis.basis(torch.randn(3, n, 2, dtype=torch.float64))
    y, c = torch.randn(3, n, m, dtype=torch.float64), 0.1 * torch.randn(3, k, m, dtype=torch.float64)
    return Regression(features, y, c, torch.rand(3, n, dtype=torch.float64))


@pytest.mark.parametrize("n", [0, 1, 100])
@pytest.mark.parametrize("weighted", [False, True])
def test_linear_attention_is_the_negative_gradient(n: int, weighted: bool) -> None:
    problem = regression(n)
    c = problem.c.clone().requires_grad_()
    weights = problem.weights if weighted else None
    loss = 0.5 * ((1 if weights is None else weights[..., None]) * (problem.y - problem.features @ c).square()).sum()
    (expected,) = torch.autograd.grad(loss, c)
    found = analysis.negative_gradient(problem.features, problem.residual, weights)
    torch.testing.assert_close(found, -expected, rtol=1e-12, atol=1e-12)


def test_any_queries_and_a_readout() -> None:
    problem = regression(k=7)
    g = analysis.negative_gradient(problem.features, problem.residual)
    for heads in (3, 7, 9):
        Q = torch.randn(heads, 7, dtype=torch.float64)
        by_heads = torch.stack([(problem.features @ q)[..., None].mul(problem.residual).sum(-2) for q in Q], dim=-2)
        R = torch.randn(7, heads, dtype=torch.float64)
        step = analysis.preconditioned_step(Q, R, problem.features, problem.residual)
        torch.testing.assert_close(step, R @ by_heads, rtol=1e-11, atol=1e-11)
        back = analysis.preconditioned_step(Q, torch.linalg.pinv(Q), problem.features, problem.residual)
        # the projection onto the span of the queries, which is g itself for K or more heads
        span = torch.linalg.pinv(Q) @ Q
        torch.testing.assert_close(back, span @ g, rtol=1e-10, atol=1e-10)
        assert torch.allclose(back, g) == (heads >= 7)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_remainder_decays_quadratically_and_stays_below_its_bound(weighted: bool) -> None:
    problem = regression()
    weights = problem.weights if weighted else None
    temperatures = torch.logspace(1, 4, 13, dtype=torch.float64)
    remainders, relative = [], []
    exact = analysis.negative_gradient(problem.features, problem.residual, weights)
    for tau in temperatures.tolist():
        found = analysis.softmax_expansion(
            torch.eye(50, dtype=torch.float64), problem.features, problem.residual, tau, weights
        )
        assert bool((found.remainder.abs() <= found.bound).all())
        remainders.append(found.remainder.norm())
        relative.append((found.gradient - exact).norm() / exact.norm())
    assert 1.9 <= analysis.decay_exponent(temperatures, torch.stack(remainders)) <= 2.1
    # as an estimate of the gradient, the error decays linearly with τ
    assert 0.95 <= analysis.decay_exponent(temperatures, torch.stack(relative)) <= 1.05


@pytest.mark.parametrize("tau", [0.01, 0.1, 1.0, 10.0])
def test_the_bound_holds_for_every_temperature(tau: float) -> None:
    problem = regression(k=9)
    Q = torch.randn(4, 9, dtype=torch.float64)
    found = analysis.softmax_expansion(Q, problem.features, problem.residual, tau, problem.weights)
    assert bool((found.remainder.abs() <= found.bound).all())
    torch.testing.assert_close(found.output, found.mean + found.first_order + found.remainder)


def test_the_bound_is_tight_within_a_factor() -> None:
    """One sample of four with another value and score: the remainder is more than a twentieth of its bound."""
    scores = torch.tensor([[1.0], [0.0], [0.0], [0.0]], dtype=torch.float64)
    found = analysis.softmax_expansion(torch.eye(1, dtype=torch.float64), scores, scores.clone(), 50.0)
    assert 0.05 < (found.remainder.abs() / found.bound).item() < 1


def test_correlation_with_the_gradient() -> None:
    problem = regression()
    exact = analysis.negative_gradient(problem.features, problem.residual)
    for tau in (100.0, 1000.0):
        found = analysis.softmax_expansion(torch.eye(50, dtype=torch.float64), problem.features, problem.residual, tau)
        both = torch.stack([found.gradient.flatten(), exact.flatten()])
        assert torch.corrcoef(both)[0, 1] >= 0.999


def test_centring_the_values_is_sufficient() -> None:
    problem = regression()
    centred = problem.residual - problem.residual.mean(1, keepdim=True)
    Q, tau = torch.eye(50, dtype=torch.float64), 1e5
    found = analysis.softmax_expansion(Q, problem.features, centred, tau)
    torch.testing.assert_close(found.mean, torch.zeros_like(found.mean))
    exact = analysis.negative_gradient(problem.features, centred)
    torch.testing.assert_close(100 * tau * found.output, exact, rtol=0, atol=1e-3)
    # without centring, the plain output is not the gradient
    raw = analysis.softmax_expansion(Q, problem.features, problem.residual + 1, tau).output
    assert (100 * tau * raw - analysis.negative_gradient(problem.features, problem.residual + 1)).abs().max() > 1e5


def test_a_standard_attention_layer_computes_the_gradient() -> None:
    """Appendix A.5: query and key maps are the identity, and the values are the residuals."""
    problem = regression(k=9)
    kernel = Attention(9, kdim=9, vdim=2, bias=False, scale=1 / 20.0).double()
    projections = kernel.projections
    with torch.no_grad():
        for weight in (projections.query_weight, projections.key_weight, projections.value_weight):
            weight.copy_(torch.eye(*weight.shape))
    signal = torch.cat([problem.features, problem.residual], -1)
    domain = Sequence(100, weights=problem.weights)
    op = IntegralOperator(kernel, residual=False, bias=False, output_projection=False)
    selectors = torch.eye(9, dtype=torch.float64).expand(3, -1, -1)
    output = op(signal, domain, query=selectors, query_domain=Sequence(9))
    found = analysis.softmax_expansion(
        torch.eye(9, dtype=torch.float64), problem.features, problem.residual, 20.0, problem.weights
    )
    torch.testing.assert_close(output[..., :2], found.output)
    assert not output[..., 2:].any()


def test_bad_inputs_are_refused() -> None:
    problem = regression(5, 3)
    Q = torch.eye(3, dtype=torch.float64)
    with refused(ValueError, "temperature", "got 0.0"):
        analysis.softmax_expansion(Q, problem.features, problem.residual, 0.0)
    with refused(ValueError, "without mass"):
        analysis.softmax_expansion(Q, problem.features, problem.residual, 1.0, torch.zeros(3, 5, dtype=torch.float64))
    with refused(ValueError, "(3, 5, 3)", "(3, 4, 2)"):
        analysis.negative_gradient(problem.features, problem.residual[:, :4])
    with refused(ValueError, "must be > 0"):
        analysis.decay_exponent(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 0.0]))
    with refused(ValueError, "two vectors", "(1,)"):
        analysis.decay_exponent(torch.tensor([1.0]), torch.tensor([1.0]))
    assert analysis.decay_exponent(torch.tensor([1.0, 10.0]), torch.tensor([1.0, 1e-3])) == pytest.approx(3)
    assert math.isfinite(analysis.decay_exponent(torch.tensor([1.0, 10.0]), torch.tensor([1.0, 1.0])))
