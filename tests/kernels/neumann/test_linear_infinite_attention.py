"""The kernel of linear infinite attention equals eq. 16-21, which only approximate infinite attention."""

import pytest
import torch
from torch import Tensor

from fredholm import IntegralOperator
from fredholm.domains import Points, Sequence
from fredholm.evaluation import AUTO, CentralPooling, Dense, Integral, Weighted
from fredholm.kernels import LinearInfiniteAttention
from fredholm.kernels.neumann.linear_infinite_attention import CentralForm, central_weights
from tests.contracts.routes import randomise
from tests.refusals import refused

WEIGHTS = torch.rand(7, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
PLACES = Points(torch.zeros(7, 1, dtype=torch.float64), weights=WEIGHTS)


def made(**options):
    torch.manual_seed(0)
    kernel = randomise(LinearInfiniteAttention(8, 2, **options).double())
    return kernel, torch.randn(1, 7, 8, dtype=torch.float64)


def queries(kernel: LinearInfiniteAttention, u: Tensor, head: int) -> Tensor:
    assert kernel.query_bias is not None
    return (u[0] @ kernel.query_weight.T + kernel.query_bias)[:, 4 * head : 4 * head + 4]


@pytest.mark.parametrize("power_steps", [1, 3])
def test_coefficients_equal_the_formula(power_steps):
    kernel, u = made(power_steps=power_steps, gamma=(0.4, 0.7))
    for head, gamma in enumerate((0.4, 0.7)):
        q = queries(kernel, u, head)
        alpha = WEIGHTS * q.norm(dim=1)
        for _ in range(power_steps):
            alpha = alpha / alpha.sum()
            central = (alpha[:, None] * q).sum(0)
            alpha = torch.stack([WEIGHTS[j] * torch.clamp(central @ q[j] / 2, min=0) for j in range(7)])
        expected = gamma * alpha / alpha.sum()
        found = kernel.coefficients(u, PLACES)[0, head]
        torch.testing.assert_close(found, expected.expand(7, 7))


def test_several_central_queries_equal_the_formula():
    kernel, u = made(num_central=3)
    q = queries(kernel, u, 1)
    assert kernel.groups is not None
    share = (q @ kernel.groups[1].T / 2).softmax(-1)
    expected, whole = 0.0, (WEIGHTS * q.norm(dim=1)).sum()
    for group in range(3):
        energy = WEIGHTS * share[:, group] * q.norm(dim=1)
        score = WEIGHTS * (q @ (energy / energy.sum() @ q)).relu()
        expected = expected + energy.sum() / whole * score / score.sum()
    torch.testing.assert_close(kernel.coefficients(u, PLACES)[0, 1, 0], expected)


def test_equal_directions_are_one_central_query():
    kernel, u = made(num_central=3)
    one, _ = made()
    assert kernel.groups is not None
    one.load_state_dict({name: value for name, value in kernel.state_dict().items() if name != "groups"})
    with torch.no_grad():
        kernel.groups.copy_(kernel.groups[:, :1].expand(-1, 3, -1))
    torch.testing.assert_close(kernel.matrix(u, PLACES), one.matrix(u, PLACES))


def test_two_central_queries_see_two_clusters_that_lie_opposite():
    cluster = torch.tensor([[1.0, 0.0]] * 3, dtype=torch.float64)
    q = torch.cat([cluster, -cluster])[None, None]
    mass = torch.ones(1, 1, 6, dtype=torch.float64)
    weight = torch.eye(2, dtype=torch.float64)[None]
    groups = torch.tensor([[[30.0, 0.0], [-30.0, 0.0]]], dtype=torch.float64)
    assert not central_weights(q, mass, CentralForm(weight, None, 1)).any()
    found = central_weights(q, mass, CentralForm(weight, groups, 1))
    torch.testing.assert_close(found, torch.full_like(found, 1 / 6), atol=1e-6, rtol=0)


def test_zero_energy_and_zero_scores_give_zero_without_gradient():
    for bias in (True, False):
        op = IntegralOperator(LinearInfiniteAttention(8, 2, bias=bias), residual=False, bias=False)
        u = torch.zeros(2, 5, 8, requires_grad=True)
        out = op(u)
        assert not out.any()
        gradients = torch.autograd.grad(out.sum(), [u, *op.parameters()])
        assert all(torch.isfinite(g).all() for g in gradients)


def alignment(mean: float) -> float:
    """Cosine of a and the Perron vector of max(q qᵀ, 0), over 8 heads of 256 normal queries in 12 dimensions."""
    q = torch.randn(1, 8, 256, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + mean
    a = central_weights(q, torch.ones(1, 1, 256, dtype=torch.float64), CentralForm(q[0, :, :12], None, 1))
    affinity, perron = (q @ q.mT).relu(), torch.ones(1, 8, 256, 1, dtype=torch.float64)
    for _ in range(60):
        perron = affinity @ perron
        perron = perron / perron.sum(2, keepdim=True)
    return torch.cosine_similarity(a, perron[..., 0], dim=-1).mean().item()


def test_weights_are_close_to_the_perron_vector_only_if_queries_share_a_direction():
    assert alignment(1.0) > 0.9999
    assert 0.65 < alignment(0.0) < 0.75


def test_refusals():
    with refused(ValueError, "it cannot be causal", "FactorisedInfiniteAttention"):
        LinearInfiniteAttention(8, is_causal=True)
    with refused(ValueError, "num_central must be at least 1; got 0"):
        LinearInfiniteAttention(8, num_central=0)
    with refused(ValueError, "power_steps must be at least 1; got -1"):
        LinearInfiniteAttention(8, power_steps=-1)
    with refused(ValueError, "learn_gamma needs a gamma to start from"):
        LinearInfiniteAttention(8, learn_gamma=True)
    with refused(ValueError, "gamma must be in (0, 1)"):
        LinearInfiniteAttention(8, gamma=1.0)


def test_pair_weights_multiply_weights_that_are_made_of_all_points():
    kernel, u = made()
    m = torch.rand(7, 7, dtype=torch.float64)
    plain = kernel.coefficients(u, Sequence(7))
    weighed = kernel.coefficients(u, Sequence(7).weigh_pairs(m.log()))
    torch.testing.assert_close(weighed, plain * m)
    assert isinstance(AUTO.choose(Integral(kernel, u, Sequence(7).weigh_pairs(m.log()))).route, Weighted)


@pytest.mark.parametrize("evaluation", [Dense(), CentralPooling()], ids=lambda route: route.name)
def test_second_derivatives_behind_a_mask(evaluation):
    kernel = LinearInfiniteAttention(4, 2).double()  # constants start at 0, and so do masked queries
    operator = IntegralOperator(kernel, evaluation=evaluation).double()
    u = torch.randn(1, 5, 4, dtype=torch.float64)
    mask = torch.tensor([True, True, False, True, False])

    def curvature(u: Tensor, mask: Tensor | None = None) -> Tensor:
        loss = operator(u, Sequence(u.shape[1], mask=mask))[:, :1].square().sum()
        (slope,) = torch.autograd.grad(loss, kernel.query_weight, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), kernel.query_weight)[0]

    torch.testing.assert_close(curvature(u, mask), curvature(u[:, mask]))
