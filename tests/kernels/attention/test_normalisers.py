"""Normalisers: the paper's formulas, properties that tiled evaluation needs, and scores at the limits of the dtype."""

import pytest
import torch

from fredholm.domains import Domain, Sequence
from fredholm.evaluation import Dense, Integral
from fredholm.kernels import Normaliser, Scored, Softermax, Softmax, SoftSigmoid, SoftTanh, Unnormalised
from fredholm.kernels.attention.normalisers import soft_sigmoid, soft_tanh, softermax
from fredholm.kernels.attention.scored import Competitive, Score, ScoreForm
from tests.refusals import refused

ALL = [
    Softmax(), Softermax(), Softermax(2.0, 1e-2), Softermax(0.5, 1.0), SoftSigmoid(), SoftSigmoid(2.5),
    SoftSigmoid(0.5), SoftTanh(), SoftTanh(3.0), Unnormalised(),
]  # fmt: skip


def scores(*shape: int) -> torch.Tensor:
    return 3 * torch.rand(*shape, dtype=torch.float64)


def literal(normaliser: Normaliser, s: torch.Tensor, mass: torch.Tensor) -> torch.Tensor:
    match normaliser:
        case Softmax():
            return s.exp() / (mass * s.exp()).sum(-1, keepdim=True)
        case Softermax(power, epsilon):
            return s**power / (epsilon + (mass * s**power).sum(-1, keepdim=True))
        case SoftSigmoid(power):
            return s**power / (1 + s**power)
        case SoftTanh(power):
            return (s**power - 1) / (s**power + 1)
    return s


@pytest.mark.parametrize("normaliser", ALL, ids=str)
def test_density_equals_the_formula(normaliser):
    s, mass = scores(3, 5), torch.rand(5, dtype=torch.float64)
    torch.testing.assert_close(normaliser.density(s.clone(), mass), literal(normaliser, s, mass))


@pytest.mark.parametrize("normaliser", ALL, ids=str)
def test_density_has_the_formulas_gradient(normaliser):
    s, mass = scores(3, 5).requires_grad_(), torch.rand(5, dtype=torch.float64).requires_grad_()
    weights = torch.randn(3, 5, dtype=torch.float64)
    grads = [
        torch.autograd.grad((weights * density).sum(), [s, mass], allow_unused=True)
        for density in (normaliser.density(s, mass), literal(normaliser, s, mass))
    ]
    torch.testing.assert_close(grads[0][0], grads[1][0])
    if grads[1][1] is not None:
        torch.testing.assert_close(grads[0][1], grads[1][1])


@pytest.mark.parametrize("normaliser", ALL, ids=str)
def test_slope_is_the_derivative_of_the_numerator(normaliser):
    s = scores(2, 4).requires_grad_()
    reference = s.detach().amax(-1, keepdim=True)
    numerator = normaliser.numerator(s.clone(), reference)
    expected = torch.autograd.grad(numerator.sum(), s)[0]
    found = normaliser.slope(s.detach(), reference, numerator.detach())
    torch.testing.assert_close(found.expand_as(expected), expected)


@pytest.mark.parametrize("normaliser", [n for n in ALL if isinstance(n, Competitive)], ids=str)
def test_a_row_may_be_summed_over_any_reference(normaliser):
    s = scores(2, 6)
    expected = normaliser.density(s.clone(), torch.ones(6, dtype=torch.float64))
    for factor in (1.0, 1.7):
        reference = factor * s.amax(-1, keepdim=True)
        numerator = normaliser.numerator(s.clone(), reference)
        floor = normaliser.floor(reference)
        total = numerator.sum(-1, keepdim=True) + (0.0 if floor is None else floor)
        torch.testing.assert_close(numerator / total, expected)


@pytest.mark.parametrize("normaliser", ALL, ids=str)
@pytest.mark.parametrize("size", [0.0, 1e-30, 1.0, 1e30], ids=str)
def test_densities_and_gradients_stay_finite(normaliser, size):
    s = torch.tensor([[0.0, 0.0, 0.5, 1.0], [0.0] * 4]).mul(size).requires_grad_()
    density = normaliser.density(s, torch.ones(4))
    (grad,) = torch.autograd.grad(density.clamp(max=2).sum(), s)
    assert bool(torch.isfinite(density).all())
    assert bool(torch.isfinite(grad).all())
    if not isinstance(normaliser, Unnormalised):
        assert density.max() <= 1
        assert density.min() >= -1


def test_softermax_of_zeros_is_zero_and_softmax_of_zeros_is_even():
    zeros = torch.zeros(2, 5)
    assert torch.equal(softermax(zeros), zeros)
    torch.testing.assert_close(Softmax().density(zeros.clone(), torch.ones(5)), torch.full((2, 5), 0.2))


@pytest.mark.parametrize("normaliser", ALL, ids=str)
def test_hidden_pairs_do_not_count(normaliser):
    s, mass = scores(2, 4), torch.tensor([1.0, 0.0, 2.0, 0.0], dtype=torch.float64)
    s[:, 1] = 1e9
    density = normaliser.density(s.clone(), mass)
    assert not density[:, [1, 3]].any()
    torch.testing.assert_close(density[:, [0, 2]], normaliser.density(s[:, [0, 2]], mass[[0, 2]]))
    assert not normaliser.density(s, torch.zeros(4, dtype=torch.float64)).any()


def test_functions_along_a_dimension():
    s = scores(4, 3)
    torch.testing.assert_close(softermax(s, 2.0, 0.1, dim=0), s**2 / (0.1 + (s**2).sum(0)))
    torch.testing.assert_close(soft_tanh(s, 3.0), 2 * soft_sigmoid(s, 3.0) - 1)
    assert softermax(s.bfloat16()).dtype == torch.bfloat16


def test_refusals():
    for build in (
        lambda: Softermax(0.0),
        lambda: SoftSigmoid(-1.0),
        lambda: SoftTanh(float("nan")),
        lambda: soft_sigmoid(scores(2), 0),
    ):
        with refused(ValueError, "power must be positive and finite"):
            build()
    with refused(ValueError, "epsilon must be positive and finite", "0"):
        Softermax(1.0, 0.0)


class Squared(Score):
    """(q·k)²."""

    is_nonnegative = True

    def value(self, dot, distance, *numbers):
        return dot.square()


class SquaredDotProduct(Scored):
    """(q·k)² with any normaliser: the code that a new kernel with non-negative scores needs."""

    in_dim = out_dim = 3
    pos_dim, is_causal, reads_query, num_heads = None, False, True, 1
    score = Squared()

    def __init__(self, normaliser: Normaliser) -> None:
        super().__init__()
        self.normaliser = normaliser

    def score_form(self, u, domain, query, query_domain):
        return ScoreForm(query[:, None], u[:, None], u[:, None])

    def value_matrices(self):
        return torch.eye(3, dtype=torch.float64)[None]


@pytest.mark.parametrize("normaliser", ALL, ids=str)
@pytest.mark.parametrize(
    "where", [Sequence(5), Sequence(5, mask=torch.tensor([True, False, True, True, False]))], ids=["all", "masked"]
)
def test_any_kernel_with_non_negative_scores_takes_any_normaliser(normaliser: Normaliser, where: Domain):
    u = torch.randn(2, 5, 3, dtype=torch.float64)
    kept = torch.ones(5, dtype=torch.bool) if where.mask is None else where.mask
    out = Dense().integrate(
        Integral(SquaredDotProduct(normaliser), torch.where(kept[:, None], u, 0.0), where, u, Sequence(5))
    )
    s = (u @ u[:, kept].mT).square()
    expected = literal(normaliser, s, torch.ones(int(kept.sum()), dtype=torch.float64)) @ u[:, kept]
    torch.testing.assert_close(out, expected)
