"""Routes of kernels that factor into features of single points equal the dense oracle."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fredholm.domains import Domain, Grid, Points, Sequence, Union
from fredholm.evaluation import (
    AUTO,
    Dense,
    Evaluation,
    FeatureSum,
    Integral,
    LowRankScan,
    SeparableScan,
    StatefulEvaluation,
    StepLoop,
    Weighted,
)
from fredholm.evaluation.features.feature_sum import feature_sums, feature_tables
from fredholm.evaluation.features.low_rank_scan import feature_maps
from fredholm.kernels import Kernel, LowRankMLP, PointInputs, SeparableMLP
from tests.contracts.routes import TOLERANCE, changed, check_chunks, check_route, compare, randomise, results
from tests.contracts.small_perceptron import small_perceptron
from tests.contracts.weighed_domains import keep, uniform
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("poisoned_memory")
ANYWHERE = PointInputs(query_position=False, key_position=False)
KERNELS = {
    "low rank": (LowRankMLP, {"rank": 3}),
    "low rank, no constant, shared": (LowRankMLP, {"rank": 7, "constant": False, "head_shared": True}),
    "low rank, raw coordinates": (LowRankMLP, {"rank": 1, "num_frequencies": 0, "activation": "relu"}),
    "low rank, no positions": (LowRankMLP, {"rank": 2, "inputs": ANYWHERE, "activation": "gelu_tanh"}),
    "low rank, nothing of the query": (
        LowRankMLP,
        {"rank": 2, "inputs": PointInputs(query_position=False, query_content=False)},
    ),
    "separable": (SeparableMLP, {}),
    "separable, shared": (SeparableMLP, {"head_shared": True, "num_frequencies": 0}),
    "separable, content of the query": (SeparableMLP, {"inputs": PointInputs(key_content=False, query_position=False)}),
}
WEIGHING: dict[type[Kernel], Evaluation] = {LowRankMLP: LowRankScan(50), SeparableMLP: Weighted(50)}
SCANS: dict[type[Kernel], StatefulEvaluation] = {LowRankMLP: LowRankScan(40), SeparableMLP: SeparableScan(3)}


def domain(name: str) -> Domain:
    torch.manual_seed(0)
    return {
        "sequence": lambda: Sequence(7),
        "points": lambda: Points(uniform(7, 1)),
        "points of each entry": lambda: Points(uniform(2, 7, 1)),
        "one point": lambda: Sequence(1),
        "no point": lambda: Sequence(0),
        "masked": lambda: Sequence(7, mask=keep(2, 7)),
        "nothing exists": lambda: Sequence(5, mask=torch.tensor([[True] * 5, [False] * 5])),
        "weights": lambda: Points(uniform(7, 1), weights=uniform(7)),
        "weights per entry, some 0": lambda: Points(uniform(2, 7, 1), weights=uniform(2, 7), mask=keep(2, 7)),
        "no weight at first": lambda: Points(uniform(4, 1), weights=torch.tensor([0.0, 0.0, 0.5, 0.2]).double()),
        "balanced union": lambda: Union(Grid(5), Grid(2), mass=(0.3, 0.7)),
        "times": lambda: Sequence(times=uniform(6).sort().values),
        "times that coincide": lambda: Sequence(times=torch.tensor([0.0, 0.5, 0.5, 1.0], dtype=torch.float64)),
        "times per entry, padded": lambda: Sequence(times=uniform(2, 6).sort().values, mask=keep(2, 6)),
    }[name]()


DOMAINS = [
    "sequence", "points", "points of each entry", "one point", "no point", "masked", "nothing exists", "weights",
    "weights per entry, some 0", "no weight at first", "balanced union", "times", "times that coincide",
    "times per entry, padded",
]  # fmt: skip


def kernel_named(
    name: str, *, is_causal: bool = False, dtype: torch.dtype = torch.float64
) -> LowRankMLP | SeparableMLP:
    torch.manual_seed(1)
    made, options = KERNELS[name]
    return randomise(made(8, 4, 1, is_causal=is_causal, **small_perceptron(**options)).to(dtype))


def problem(name: str, where: Domain, *, is_causal: bool = False, dtype: torch.dtype = torch.float64) -> Integral:
    kernel = kernel_named(name, is_causal=is_causal, dtype=dtype)
    u = torch.randn(2, where.num_points, 8, dtype=dtype)
    return Integral(kernel, u if where.mask is None else torch.where(where.mask[..., None], u, 0.0), where)


@pytest.mark.sampled
@pytest.mark.parametrize("where", DOMAINS)
@pytest.mark.parametrize("name", KERNELS)
def test_the_sum_equals_dense(name, where):
    check_route(FeatureSum(), problem(name, domain(where)))


@pytest.mark.pairs
@pytest.mark.parametrize("elements", [1, 70, 150])
@pytest.mark.parametrize("where", ["points", "weights per entry, some 0", "times per entry, padded"])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", ["low rank", "low rank, no constant, shared", "low rank, no positions"])
def test_chunks_of_any_size_equal_dense(name, is_causal, where, elements):
    """Chunks of single points, of some points of an entry, and of all points of some entries."""
    made = problem(name, domain(where), is_causal=is_causal)
    made = changed(
        made, u=torch.cat([made.u, made.u[:, :1].expand_as(made.u)])[: len(made.u) + (made.domain.batch_size is None)]
    )
    check_route(LowRankScan(elements) if is_causal else FeatureSum(elements), made)


@pytest.mark.sampled
@pytest.mark.parametrize("where", DOMAINS)
@pytest.mark.parametrize("name", KERNELS)
def test_the_scan_equals_dense(name, where):
    made = problem(name, domain(where), is_causal=True)
    route = SCANS[type(made.kernel)]
    if isinstance(route, SeparableScan) and where == "times that coincide":
        assert isinstance(AUTO.choose(made).route, Weighted)
        route = Weighted(50)
    check_route(route, made)


@pytest.mark.pairs
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", KERNELS)
def test_queries_elsewhere(name, is_causal, batched):
    made = problem(name, Sequence(times=uniform(6).sort().values), is_causal=is_causal)
    made = changed(
        made,
        query=torch.randn(2, 3, 8, dtype=torch.float64),
        query_domain=Sequence(times=uniform(*((2, 3) if batched else (3,))).sort().values),
    )
    route: Evaluation = SCANS[type(made.kernel)] if is_causal else FeatureSum(50)
    if isinstance(route, SeparableScan):
        assert route.unsupported_reasons(made)
        route = Weighted(50)
    check_route(route, made)


@pytest.mark.parametrize("is_causal", [False, True])
def test_queries_whose_signal_is_not_read(is_causal):
    made = problem("low rank, nothing of the query", Sequence(6), is_causal=is_causal)
    made = changed(made, query_domain=Sequence(3))
    check_route(LowRankScan() if is_causal else FeatureSum(), made)


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", ["low rank", "separable"])
def test_low_precision(name, is_causal, dtype):
    exact = problem(name, domain("weights"), is_causal=is_causal)
    rough = problem(name, domain("weights"), is_causal=is_causal, dtype=dtype)
    rough.kernel.load_state_dict(exact.kernel.state_dict())
    exact.kernel.load_state_dict(rough.kernel.state_dict())
    exact = changed(exact, u=rough.u.double())
    got = results(SCANS[type(rough.kernel)] if is_causal else FeatureSum(60), rough)
    compare(got, results(Dense(), exact), 3 * TOLERANCE[dtype])


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", ["low rank", "separable"])
def test_autocast_takes_signals_of_either_precision(name, is_causal):
    kernel = kernel_named(name, is_causal=is_causal, dtype=torch.float32)
    route = SCANS[type(kernel)] if is_causal else FeatureSum()
    where, u = Sequence(5, weights=torch.rand(5)), torch.randn(2, 5, 8)
    exact = Dense().integrate(Integral(kernel, u, where))
    with torch.autocast("cpu", torch.bfloat16):
        for signal in (u, u.bfloat16()):
            out = route.integrate(Integral(kernel, signal, where))
            assert out.dtype == torch.bfloat16
            torch.testing.assert_close(out.float(), exact, atol=2e-2 * exact.abs().max().item(), rtol=0)


def test_sums_keep_float32_under_autocast():
    """A sum of 1,001 ones: in bfloat16 it would stop at 256."""
    kernel = LowRankMLP(4, 2, 1, rank=1, epsilon=0.0, **small_perceptron())
    with torch.autocast("cpu", torch.bfloat16):
        out = FeatureSum(50).integrate(
            Integral(kernel, torch.ones(1, 1001, 4), Sequence(1001, weights=torch.ones(1001)))
        )
    torch.testing.assert_close(out.float(), torch.full((1, 1001, 4), 1001.0), atol=4, rtol=0)


@pytest.mark.parametrize("name", ["low rank, no positions", "low rank", "separable"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_steps_and_chunks_equal_the_whole_sequence(name, dtype):
    kernel = kernel_named(name, is_causal=True, dtype=dtype)
    u, route, times = torch.randn(2, 9, 8, dtype=dtype), SCANS[type(kernel)], torch.rand(9).sort().values.double()

    check_chunks(route, kernel, u, 1e-6 if dtype == torch.float32 else 1e-12, times)


def test_steps_of_a_long_sequence_equal_the_whole():
    kernel = kernel_named("low rank, no positions", is_causal=True, dtype=torch.float32)
    u = torch.randn(1, 500, 8)
    with torch.no_grad():
        torch.testing.assert_close(
            StepLoop().run(Integral(kernel, u, Sequence(500)))[0],
            LowRankScan().integrate(Integral(kernel, u, Sequence(500))),
            atol=1e-6,
            rtol=1e-6,
        )


@pytest.mark.parametrize("name", ["low rank, no positions", "separable"])
def test_gradients_flow_through_a_state(name):
    kernel = kernel_named(name, is_causal=True)
    route, times = SCANS[type(kernel)], uniform(5).sort().values
    u = torch.randn(1, 5, 8, dtype=torch.float64, requires_grad=True)
    whole = route.integrate(Integral(kernel, u, Sequence(times=times)))
    state = route.run(Integral(kernel, u[:, :3], Sequence(times=times[:3])))[1]
    second = route.run(Integral(kernel, u[:, 3:], Sequence(times=times[3:])), state)[0]
    torch.testing.assert_close(second, whole[:, 3:])
    expected = torch.autograd.grad(whole[:, 3:].square().sum(), u)[0]
    torch.testing.assert_close(torch.autograd.grad(second.square().sum(), u)[0], expected)


@pytest.mark.parametrize("name", ["low rank", "separable"])
def test_a_state_and_positions_need_times(name):
    kernel = kernel_named(name, is_causal=True)
    route, u = SCANS[type(kernel)], torch.randn(1, 3, 8, dtype=torch.float64)
    _, state = route.run(Integral(kernel, u, Sequence(3)))
    with refused(ValueError, "reads positions, and Sequence(3) does not continue", "Sequence(times=...)"):
        route.run(Integral(kernel, u, Sequence(3)), state)
    with refused(ValueError, "support no reset", "StepLoop()"):
        route.run(Integral(kernel, u, Sequence(3)), None, torch.zeros(1, 3, dtype=torch.bool))


def test_a_sum_by_chunks_refuses_points_that_share_a_time():
    kernel, where = kernel_named("separable", is_causal=True), domain("times that coincide")
    with refused(ValueError, "SeparableScan refuses this integral: points that share a time see each other"):
        SeparableScan().run(Integral(kernel, torch.randn(1, 4, 8, dtype=torch.float64), where))


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", ["low rank", "separable"])
def test_signals_that_are_views_of_others(name, is_causal):
    made = problem(name, Sequence(6), is_causal=is_causal)
    made = changed(
        made,
        u=torch.randn(8, 12, 2, dtype=torch.float64).permute(2, 1, 0)[:, ::2],
        query=torch.randn(6, 2, 8, dtype=torch.float64).transpose(0, 1),
        query_domain=made.domain,
    )
    check_route(SCANS[type(made.kernel)] if is_causal else FeatureSum(60), made)


@pytest.mark.parametrize("name", KERNELS)
def test_the_route_is_chosen(name):
    u = torch.randn(1, 3, 8, dtype=torch.float64)
    assert isinstance(AUTO.choose(Integral(kernel_named(name), u, Sequence(3))).route, FeatureSum)
    causal = kernel_named(name, is_causal=True)
    choice = AUTO.choose(Integral(causal, u, Sequence(3)))
    assert type(choice.route) is type(SCANS[type(causal)])
    assert "every query has a sum of its own" in choice.refusals["FeatureSum"][0]
    assert "looks ahead" in SCANS[type(causal)].unsupported_reasons(Integral(kernel_named(name), u, Sequence(3)))[0]


PAIRS: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
    "kept per entry": ((2, 1), torch.bool),
    "weighed": ((1,), torch.float64),
    "weighed per head": ((1, 4), torch.float64),
    "weighed per entry and head": ((2, 4), torch.float64),
}


def pair_bias(pairs: str, queries: int, keys: int) -> Tensor:
    """A mask or the logarithm of weights of pairs; some pairs are hidden, and all pairs of the last query."""
    leading, dtype = PAIRS[pairs]
    torch.manual_seed(2)
    keep = torch.rand(*leading, queries, keys) > 0.3
    keep[..., -1:, :] = False
    bias = torch.randn(*leading, queries, keys, dtype=torch.float64)
    whole = keep if dtype == torch.bool else bias.masked_fill(~keep, -torch.inf)
    return whole[0] if len(leading) == 1 else whole


def with_gradient_of_pairs(route: Evaluation, made: Integral) -> dict[str, Tensor]:
    """`results`, and the gradient of the pair weights."""
    found, bias = results(route, made), made.domain.pair_bias
    assert bias is not None
    if bias.dtype == torch.bool or bias.numel() == 0:
        return found
    out = route.integrate(changed(made, domain=made.domain.weigh_pairs(leaf := bias.clone().requires_grad_())))
    cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64).to(out)
    return {**found, "d/d pairs": torch.autograd.grad(out, leaf, cotangent)[0]}


@pytest.mark.pairs
@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(
    "where", ["points", "one point", "no point", "masked", "weights per entry, some 0", "times that coincide"]
)
def test_pair_weights(name, is_causal, pairs, where):
    made = problem(name, domain(where), is_causal=is_causal)
    n = made.domain.num_points
    made = changed(made, domain=made.domain.weigh_pairs(pair_bias(pairs, n, n)))
    route = WEIGHING[type(made.kernel)]
    assert made.is_empty or type(AUTO.choose(made).route) is type(route)
    compare(with_gradient_of_pairs(route, made), with_gradient_of_pairs(Dense(), made), TOLERANCE[torch.float64])


@pytest.mark.pairs
@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", KERNELS)
def test_pair_weights_of_queries_elsewhere(name, is_causal, pairs):
    made = problem(name, Sequence(times=uniform(6).sort().values), is_causal=is_causal)
    made = changed(
        made,
        domain=made.domain.weigh_pairs(pair_bias(pairs, 5, 6)),
        query=torch.randn(2, 5, 8, dtype=torch.float64),
        query_domain=Sequence(times=uniform(2, 5).sort().values),
    )
    route = WEIGHING[type(made.kernel)]
    compare(with_gradient_of_pairs(route, made), with_gradient_of_pairs(Dense(), made), TOLERANCE[torch.float64])


@pytest.mark.parametrize("name", ["low rank", "separable"])
def test_derived_queries_keep_the_mass_of_their_past(name):
    made = problem(name, Sequence(times=uniform(6).sort().values), is_causal=True)
    times = uniform(2, 4).sort().values
    queries = Points.derived(made.domain, times[..., None], torch.ones_like(times), times, uniform(2, 4))
    weighed = made.domain.weigh_pairs(pair_bias("weighed", 4, 6))
    made = changed(made, domain=weighed, query=torch.randn(2, 4, 8, dtype=torch.float64), query_domain=queries)
    check_route(WEIGHING[type(made.kernel)], made)


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", ["low rank", "separable"])
def test_pair_weights_in_low_precision(name, is_causal, dtype):
    where = domain("weights").weigh_pairs(pair_bias("weighed per head", 7, 7))
    exact, rough = (problem(name, where, is_causal=is_causal, dtype=kind) for kind in (torch.float64, dtype))
    exact.kernel.load_state_dict(rough.kernel.state_dict())
    exact, route = changed(exact, u=rough.u.double()), WEIGHING[type(rough.kernel)]
    compare(results(route, rough), results(Dense(), exact), 3 * TOLERANCE[dtype])


@pytest.mark.parametrize("name", ["low rank", "separable"])
def test_pair_weights_of_another_number_of_heads_go_to_dense(name):
    kernel, u = kernel_named(name), torch.randn(1, 3, 8, dtype=torch.float64)
    weighed = Integral(kernel, u, Sequence(3).weigh_pairs(torch.randn(1, 2, 3, 3)))
    choice = AUTO.choose(weighed)
    assert isinstance(choice.route, Dense)
    found = ["pairs are weighed for 2 heads, and the kernel has 4"]
    assert choice.refusals[type(WEIGHING[type(kernel)]).__name__] == found


@pytest.mark.parametrize("name", ["low rank", "separable"])
def test_pair_weights_are_the_only_values_of_pairs_saved_for_the_backward_pass(name):
    n, kernel = 400, kernel_named(name, is_causal=True, dtype=torch.float32)
    bias = torch.randn(n, n, requires_grad=True)
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        memory = tensor.untyped_storage()
        kept[memory.data_ptr()] = memory.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        where = Sequence(n).weigh_pairs(bias)
        route: Evaluation = LowRankScan(2**12) if isinstance(kernel, LowRankMLP) else Weighted(2**12)
        route.integrate(Integral(kernel, torch.randn(1, n, 8), where))
    kept.pop(bias.untyped_storage().data_ptr(), None)
    assert sum(kept.values()) < bias.nbytes


OPERATORS = [feature_sums, feature_tables, feature_maps]


def _leaves(operator, shared) -> Any:
    h, n, w, d = 2, 4, 3, 2
    features = [(1 if shared else 2, n, 3), (2, n, h, d), (h, w, 3), (h, w, d), (h, w)]
    more = {
        feature_sums: [(1, n)],
        feature_tables: [(h, 2, w + 1, 5)],
        feature_maps: [(2, n, h, d), (h, w + 1, 5, d)],
    }[operator]
    return [torch.randn(*s, dtype=torch.float64, requires_grad=True) for s in features + more]


def _options(operator, activation: str = "gelu") -> tuple[Any, ...]:
    return (activation, 30) if operator is feature_maps else (activation, torch.float64, 30)


@pytest.mark.slow
@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)
@pytest.mark.parametrize("shared", [False, pytest.param(True, marks=pytest.mark.long)])
def test_operator_registration(operator, shared):
    """`opcheck`: schema, fake tensors, autograd and the compiler's view of the operators."""
    leaves = _leaves(operator, shared)
    _, name = operator.name.split("::")
    report = torch.library.opcheck(getattr(torch.ops.fredholm, name).default, (leaves, *_options(operator)))
    assert set(report.values()) == {"SUCCESS"}
    assert torch.autograd.gradcheck(lambda *t: operator(operator.inputs(*t), *_options(operator))[0], leaves)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)
def test_forward_mode_and_second_derivatives(operator, activation):
    leaves = _leaves(operator, shared=True)

    def apply(*tensors):
        return operator(operator.inputs(*tensors), *_options(operator, activation))[0]

    assert torch.autograd.gradcheck(apply, leaves, check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(apply, leaves, check_fwd_over_rev=True, fast_mode=True)


@pytest.mark.parametrize("name", ["low rank", "separable"])
def test_steps_that_need_times_refuse_domains_without_them(name: str) -> None:
    kernel, u = kernel_named(name, is_causal=True), torch.randn(1, 5, 8, dtype=torch.float64)
    found = "a step needs the time of its point, and the domain has no times"
    assert found in StepLoop().unsupported_reasons(Integral(kernel, u, Sequence(5)))
    assert StepLoop().unsupported_reasons(Integral(kernel, u, Sequence(times=torch.linspace(0, 1, 5)))) == []
    blind = LowRankMLP(8, 2, rank=2, inputs=ANYWHERE, is_causal=True)
    assert StepLoop().unsupported_reasons(Integral(blind, u.float(), Sequence(5))) == []
