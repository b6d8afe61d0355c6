"""Routes of normalised kernels equal the dense oracle under all masks, weights and pair weights."""

import pytest
import torch

from fredholm.domains import Domain, Sequence
from fredholm.evaluation import (
    AUTO,
    Dense,
    FeatureMapSum,
    FusedAttention,
    Integral,
    ScoreTiled,
    StatefulEvaluation,
    Weighted,
)
from fredholm.kernels import Attention, Kernel, LinearAttention, Rotary
from tests.contracts.routes import (
    TOLERANCE,
    changed,
    check_autocast,
    check_chunks,
    check_route,
    compare,
    randomise,
    results,
)
from tests.contracts.weighed_domains import DOMAINS, PAIRS, domain, uniform
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("poisoned_memory")
ROUTES: dict[type[Kernel], StatefulEvaluation] = {Attention: FusedAttention(), LinearAttention: FeatureMapSum(chunk=3)}
OPTIONS = {
    "self": {},
    "causal": {"is_causal": True},
    "no bias": {"bias": False},
    "grouped queries": {"num_kv_heads": 2},
    "causal, one key head": {"num_kv_heads": 1, "is_causal": True},
}


def problem(kernel_class: type[Kernel], options: dict, where: Domain, dtype: torch.dtype = torch.float64) -> Integral:
    torch.manual_seed(1)
    kernel = randomise(kernel_class(8, 4, **options).to(dtype))  # pyright: ignore[reportCallIssue]
    u = torch.randn(2, where.num_points, 8, dtype=dtype)
    return Integral(kernel, u if where.mask is None else torch.where(where.mask[..., None], u, 0.0), where)


@pytest.mark.sampled
@pytest.mark.parametrize("name", DOMAINS + PAIRS)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_fused_attention_equals_dense(options, name):
    check_route(FusedAttention(), problem(Attention, options, domain(name)))


@pytest.mark.sampled
@pytest.mark.parametrize("name", DOMAINS)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_feature_map_sum_equals_dense(options, name):
    made = problem(LinearAttention, options, domain(name))
    if options.get("is_causal") and name == "times that coincide":
        assert isinstance(AUTO.choose(made).route, Weighted)
        check_route(Weighted(), made)
    else:
        check_route(FeatureMapSum(chunk=3), made)


@pytest.mark.parametrize("name", ["sequence", "masked", "times", "no point"])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"num_kv_heads": 2, "is_causal": True}], ids=str)
def test_rotary_positions_of_linear_attention_equal_dense(options, name):
    check_route(FeatureMapSum(chunk=3), problem(LinearAttention, {"rotary": Rotary(10.0), **options}, domain(name)))


@pytest.mark.parametrize("kernel_class", ROUTES)
@pytest.mark.parametrize("is_causal", [False, True])
def test_queries_elsewhere(kernel_class, is_causal):
    made = problem(kernel_class, {"is_causal": is_causal}, Sequence(times=uniform(6).sort().values))
    made = changed(
        made, query=torch.randn(2, 3, 8, dtype=torch.float64), query_domain=Sequence(times=uniform(2, 3).sort().values)
    )
    route = ROUTES[kernel_class]
    if is_causal and kernel_class is LinearAttention:
        assert route.unsupported_reasons(made)
    else:
        check_route(route, made)


def test_keys_and_values_of_other_widths():
    made = problem(Attention, {"kdim": 3, "vdim": 5}, Sequence(6))
    assert made.kernel.in_dim == 8
    made = changed(made, query=torch.randn(2, 4, 8, dtype=torch.float64), query_domain=Sequence(4))
    check_route(FusedAttention(), made)


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kernel_class", ROUTES)
@pytest.mark.parametrize("name", ["masked", "weights"])
def test_low_precision(kernel_class, dtype, name):
    exact = problem(kernel_class, {"is_causal": True}, domain(name))
    rough = problem(kernel_class, {"is_causal": True}, domain(name), dtype)
    rough.kernel.load_state_dict(exact.kernel.state_dict())
    exact.kernel.load_state_dict(rough.kernel.state_dict())
    exact = changed(exact, u=rough.u.double())
    got, expected = results(ROUTES[kernel_class], rough), results(Dense(), exact)
    compare({"integral": got["integral"]}, {"integral": expected["integral"]}, 2 * TOLERANCE[dtype])


@pytest.mark.parametrize("kernel_class", ROUTES)
def test_autocast_takes_signals_of_either_precision(kernel_class):
    check_autocast(ROUTES[kernel_class], randomise(kernel_class(8, 4, is_causal=True)))


@pytest.mark.parametrize("kernel_class", ROUTES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_steps_and_chunks_equal_the_whole_sequence(kernel_class, dtype):
    kernel = randomise(kernel_class(8, 4, num_kv_heads=2, is_causal=True).to(dtype))
    u, route = torch.randn(2, 7, 8, dtype=dtype), ROUTES[kernel_class]
    tolerance = 1e-6 if dtype == torch.float32 else 1e-12
    check_chunks(route, kernel, u, tolerance)


def test_gradients_flow_through_a_state():
    kernel = randomise(LinearAttention(4, 2, is_causal=True).double())
    u = torch.randn(1, 5, 4, dtype=torch.float64, requires_grad=True)
    whole = FeatureMapSum(2).integrate(Integral(kernel, u, Sequence(5)))
    state = FeatureMapSum(2).run(Integral(kernel, u[:, :3], Sequence(3)))[1]
    second = FeatureMapSum(2).run(Integral(kernel, u[:, 3:], Sequence(2)), state)[0]
    torch.testing.assert_close(second, whole[:, 3:])
    expected = torch.autograd.grad(whole[:, 3:].square().sum(), u)[0]
    torch.testing.assert_close(torch.autograd.grad(second.square().sum(), u)[0], expected)


def test_a_query_without_mass_has_result_zero_and_zero_gradient():
    made = problem(Attention, {}, Sequence(3).weigh_pairs(torch.tensor([[True] * 3, [False] * 3, [True] * 3])))
    made.u.requires_grad_()
    for route in (FusedAttention(), Dense()):
        out = route.integrate(made)
        assert torch.equal(out[:, 1], torch.zeros(2, 8, dtype=torch.float64))
        grads = torch.autograd.grad(out[:, 1].sum(), [made.u, *made.kernel.parameters()], allow_unused=True)
        assert all(not grad.any() for grad in grads if grad is not None)


def test_large_scores_do_not_overflow():
    made = problem(Attention, {}, Sequence(5, weights=torch.rand(5)), torch.float32)
    assert isinstance(made.kernel, Attention)
    with torch.no_grad():
        made.kernel.projections.query_weight.mul_(1e3)
    got, expected = (results(route, made)["integral"] for route in (FusedAttention(), Dense()))
    torch.testing.assert_close(got, expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("options", [{}, {"is_causal": True}], ids=["full", "causal"])
def test_gradients_of_rows_dominated_by_one_point_stay_precise(options):
    """Scores of 1e4: recomputing a row as exp(s - log Σ exp s) in float32 would leave three digits."""
    made = problem(Attention, options, Sequence(17), torch.float32)
    made = Integral(made.kernel, 100.0 * made.u, made.domain)
    got = results(FusedAttention(), made)
    exact = Integral(made.kernel.double(), made.u.detach().double(), made.domain)
    expected = results(Dense(), exact)
    for name in ("integral", "d/d projections.value_weight", "d/d projections.value_bias"):
        error = (got[name].double() - expected[name]).abs().max() / expected[name].abs().max()
        assert error < 2e-6, f"{name}: {error:.1e}"


def test_refuses_pair_weights_for_other_heads():
    made = problem(Attention, {}, Sequence(5).weigh_pairs(torch.zeros(2, 3, 5, 5)))
    for route in (FusedAttention(), Dense()):
        with refused(ValueError, "pair weights must be for 1 or 4 heads", "for 3"):
            route.integrate(made)


def test_pair_weights_on_a_kernel_without_normalisation_multiply_it():
    from fredholm.kernels import MLP

    kernel = randomise(MLP(4, 2, 1, width=3, num_frequencies=2).double())
    u, bias = torch.randn(2, 5, 4, dtype=torch.float64), torch.randn(5, 5, dtype=torch.float64)
    weighed = Sequence(5).weigh_pairs(bias)
    expected = torch.einsum("bqkoi,qk,bki->bqo", kernel.matrix(u, Sequence(5)), bias.exp() / 5, u)
    for route in (AUTO, Dense()):
        torch.testing.assert_close(route.integrate(Integral(kernel, u, weighed)), expected)


@pytest.mark.parametrize("kernel_class", ROUTES)
def test_a_query_that_is_nan_stays_nan(kernel_class):
    made = problem(kernel_class, {}, Sequence(5))
    query = made.u.clone()
    query[:, 1] = torch.nan
    for route in (Dense(), ROUTES[kernel_class]):
        out = route.integrate(Integral(made.kernel, made.u, made.domain, query))
        assert bool(out[:, 1].isnan().all())
        assert bool(out[:, [0, 2, 3, 4]].isfinite().all())


@pytest.mark.parametrize("where", [Sequence(9, mask=torch.arange(9) % 3 > 0), Sequence(9)], ids=["masked", "causal"])
def test_tiles_of_scores_that_are_all_far_below_0(where: Domain) -> None:
    """The reference must be one of these scores: relative to another, their exponentials underflow in float32."""
    kernel = Attention(1, bias=False, is_causal=where.mask is None)
    with torch.no_grad():
        for weight, value in zip(kernel.parameters(), (1.0, -1.0, 0.5), strict=True):
            weight.fill_(value)
    check_route(ScoreTiled(tile_elements=18), Integral(kernel, 10 + torch.rand(2, 9, 1), where), 1e-2)
