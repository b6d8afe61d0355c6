"""Attention without a normaliser: the route equals the dense oracle, and the kernel equals its formula."""

import pytest
import torch

from fredholm import IntegralOperator
from fredholm.domains import Domain, Sequence
from fredholm.evaluation import AUTO, BilinearSum, Dense, Integral, Weighted
from fredholm.kernels import UnnormalisedAttention
from tests.contracts.routes import TOLERANCE, changed, check_chunks, check_route, compare, randomise, results
from tests.contracts.weighed_domains import DOMAINS, PAIRS, domain, uniform
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("poisoned_memory")
OPTIONS = {
    "self": {},
    "causal": {"is_causal": True},
    "other head sizes": {"head_dim": 3, "value_head_dim": 1},
}


def problem(options: dict, where: Domain, dtype: torch.dtype = torch.float64) -> Integral:
    torch.manual_seed(1)
    kernel = randomise(UnnormalisedAttention(8, 4, **options).to(dtype))
    u = torch.randn(2, where.num_points, kernel.in_dim, dtype=dtype)
    return Integral(kernel, u if where.mask is None else torch.where(where.mask[..., None], u, 0.0), where)


@pytest.mark.parametrize("name", DOMAINS)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_bilinear_sum_equals_dense(options, name):
    made = problem(options, domain(name))
    if options.get("is_causal") and name == "times that coincide":
        assert isinstance(AUTO.choose(made).route, Weighted)
        check_route(Weighted(tile_elements=50), made)
    else:
        check_route(BilinearSum(chunk=3), made)


@pytest.mark.parametrize("name", PAIRS)
def test_pair_weights_are_computed_in_tiles_of_queries(name):
    made = problem({}, domain(name))
    assert isinstance(AUTO.choose(made).route, Weighted)
    check_route(Weighted(tile_elements=50), made)


@pytest.mark.parametrize("n", [0, 1])
def test_few_points(n):
    check_route(BilinearSum(), problem({}, Sequence(n)))


def test_queries_elsewhere_and_separate_values():
    made = problem({"kdim": 3, "vdim": 5, "value_head_dim": 3}, Sequence(6))
    assert made.kernel.in_dim == 8
    assert made.kernel.out_dim == 12
    made = changed(made, query=torch.randn(2, 4, 8, dtype=torch.float64), query_domain=Sequence(4))
    check_route(BilinearSum(), made)
    causal = problem({"is_causal": True}, Sequence(times=uniform(6).sort().values))
    later = Sequence(times=uniform(2, 3).sort().values)
    assert BilinearSum().unsupported_reasons(Integral(causal.kernel, causal.u, causal.domain, made.query, later))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision(dtype):
    exact, rough = (problem({"is_causal": True}, domain("weights"), kind) for kind in (torch.float64, dtype))
    exact.kernel.load_state_dict(rough.kernel.state_dict())
    exact = changed(exact, u=rough.u.double())
    got, expected = results(BilinearSum(), rough), results(Dense(), exact)
    compare({"integral": got["integral"]}, {"integral": expected["integral"]}, 2 * TOLERANCE[dtype])


def test_steps_and_chunks_equal_the_whole_sequence():
    kernel = randomise(UnnormalisedAttention(8, 4, is_causal=True, value_head_dim=3).double())
    u, route = torch.randn(2, 7, 8, dtype=torch.float64), BilinearSum(chunk=3)
    check_chunks(route, kernel, u, 1e-12)
    with refused(ValueError, "no reset"):
        route.run(Integral(kernel, u, Sequence(7)), reset=torch.ones(2, 7, dtype=torch.bool))


def test_matrix_equals_the_formula():
    kernel, u = UnnormalisedAttention(6, 2).double(), torch.randn(1, 3, 6, dtype=torch.float64)
    kappa = kernel.matrix(u, Sequence(3))
    for head, rows in enumerate((slice(0, 3), slice(3, 6))):
        q, k = kernel.query_weight[rows] @ u[0, 1], kernel.key_weight[rows] @ u[0, 2]
        torch.testing.assert_close(kappa[0, 1, 2, rows], (q @ k) * kernel.value_weight[rows], msg=f"head {head}")


def test_selectors_give_the_negative_gradient():
    """Theorem 3 for the operator: weighted loss, vector values, masked samples."""
    torch.manual_seed(0)
    features = torch.randn(2, 9, 5, dtype=torch.float64)
    c = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)
    y, weights = torch.randn(2, 9, 3, dtype=torch.float64), torch.rand(2, 9, dtype=torch.float64)
    mask = torch.rand(2, 9) > 0.3
    residual = y - features @ c
    (gradient,) = torch.autograd.grad(0.5 * (weights * mask * residual.square().sum(-1)).sum(), c)
    op = IntegralOperator(
        UnnormalisedAttention.of_features(5, 3), residual=False, bias=False, output_projection=False
    ).double()
    selectors = torch.eye(5, dtype=torch.float64).expand(2, -1, -1)
    found = op(
        torch.cat([features, residual.detach()], -1),
        Sequence(9, weights=weights, mask=mask),
        query=selectors,
        query_domain=Sequence(5),
    )
    torch.testing.assert_close(found, -gradient, atol=1e-12, rtol=1e-12)


def test_refusals():
    with refused(ValueError, "kernels.UnnormalisedAttention", "num_heads must divide"):
        UnnormalisedAttention(8, num_heads=3)
    with refused(ValueError, "kernels.UnnormalisedAttention", "kdim"):
        UnnormalisedAttention(8, kdim=0)
    with refused(ValueError, "kernels.UnnormalisedAttention", "head_dim"):
        UnnormalisedAttention(8, head_dim=0)
