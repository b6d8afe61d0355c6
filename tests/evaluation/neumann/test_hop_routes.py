"""Routes of hops and of series of hops equal the dense oracle under all masks, weights and orders of points."""

from typing import Any

import pytest
import torch

from fredholm import IntegralOperator
from fredholm.domains import Domain, Points, Sequence
from fredholm.evaluation import (
    AUTO,
    Dense,
    Evaluation,
    Factorisation,
    HopSeries,
    HopTiled,
    Integral,
    Iteration,
    Solver,
    Substitution,
    Truncation,
)
from fredholm.evaluation.neumann.hops import reciprocal
from fredholm.evaluation.pair_tiles import PairTiles, TileInputs
from fredholm.kernels import FactorisedInfiniteAttention, InfiniteAttention
from fredholm.kernels.attention.scored import Dot
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
ROWS, SMALL = 200, 6
"""Numbers of elements for tiles of three queries of all heads, and of three queries of one head and two points."""
SERIES: dict[str, dict[str, Any]] = {
    "frobenius": {},
    "rows, gelu": {"normaliser": "rows", "activation": "gelu", "learn_gamma": True},
    "abs, grouped queries": {"activation": "abs", "num_kv_heads": 2, "gamma": [0.1, 0.5, 0.7, 0.9]},
    "causal": {"is_causal": True, "learn_gamma": True},
    "causal rows, gelu": {"is_causal": True, "normaliser": "rows", "activation": "gelu", "num_kv_heads": 1},
}
HOPS = {
    name: {k: v for k, v in options.items() if k not in ("gamma", "learn_gamma")} | {"form": "hop"}
    for name, options in SERIES.items()
}


def problem(options: dict[str, Any], where: Domain, dtype: torch.dtype = torch.float64) -> Integral:
    torch.manual_seed(1)
    kernel = randomise(InfiniteAttention(8, 4, **options).to(dtype))
    u = torch.randn(2, where.num_points, 8, dtype=dtype)
    return Integral(kernel, u if where.mask is None else torch.where(where.mask[..., None], u, 0.0), where)


def by(route: Evaluation, solver: type[Solver]) -> bool:
    """Whether a route computes the series by a type of solver."""
    return isinstance(route, HopSeries) and isinstance(route.solver, solver)


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Tiles of three queries, and triangles of two, so that small problems fill many."""
    monkeypatch.setattr("fredholm.evaluation.pair_tiles.PairTiles.ROWS", 3)
    monkeypatch.setattr("fredholm.evaluation.neumann.solvers.Substitution.BLOCK", 2)


@pytest.mark.sampled
@pytest.mark.parametrize("name", DOMAINS + PAIRS)
@pytest.mark.parametrize("options", SERIES.values(), ids=SERIES.keys())
def test_series_equal_dense(options, name):
    made = problem(options, domain(name))
    expected = results(Dense(), made)
    for route in (
        HopSeries(Factorisation(), tile_elements=ROWS),
        HopSeries(Iteration(1e-13)),
        HopSeries(Substitution(), ROWS),
    ):
        reasons = route.unsupported_reasons(made)
        if by(route, Substitution) and reasons:
            assert not options.get("is_causal") or name == "times that coincide"
            continue
        assert not reasons
        # a single point attends only to itself: gradients of scores are 0 up to rounding
        compare(results(route, made), expected, 1e-9 if name == "one point" else 1e-10)


@pytest.mark.parametrize("name", ["masked", "pairs weighed per head"])
@pytest.mark.parametrize("options", SERIES.values(), ids=SERIES.keys())
def test_small_tiles_equal_dense(options, name):
    check_route(HopSeries(Factorisation(), tile_elements=SMALL), problem(options, domain(name)))
    if options.get("is_causal"):
        check_route(HopSeries(Substitution(), SMALL), problem(options, domain(name)))


def test_tiles_smaller_than_a_block_of_substitution(monkeypatch):
    monkeypatch.setattr("fredholm.evaluation.neumann.solvers.Substitution.BLOCK", 4)
    check_route(HopSeries(Substitution(), SMALL), problem({"is_causal": True}, Sequence(10)))


@pytest.mark.sampled
@pytest.mark.parametrize("name", DOMAINS + PAIRS)
@pytest.mark.parametrize("options", HOPS.values(), ids=HOPS.keys())
def test_one_hop_equals_dense(options, name):
    check_route(HopTiled(ROWS), problem(options, domain(name)), 1e-9 if name == "one point" else None)


def routes_for(options: dict[str, Any]) -> list[Evaluation]:
    if options.get("form") == "hop":
        return [HopTiled(ROWS)]
    causal_only: list[Evaluation] = [HopSeries(Substitution(), ROWS)] if options.get("is_causal") else []
    return [HopSeries(Factorisation(), tile_elements=ROWS), HopSeries(Iteration(1e-13)), *causal_only]


EVERY = {**{f"series, {k}": v for k, v in SERIES.items()}, **{f"hop, {k}": v for k, v in HOPS.items()}}


@pytest.mark.parametrize("options", EVERY.values(), ids=EVERY.keys())
def test_queries_elsewhere(options):
    made = problem(options, Sequence(times=uniform(6).sort().values, weights=uniform(6)))
    made = changed(
        made, query=torch.randn(2, 3, 8, dtype=torch.float64), query_domain=Sequence(times=uniform(2, 3).sort().values)
    )
    for route in routes_for(options):
        check_route(route, made)
    made = changed(
        made,
        query_domain=None,
        query=torch.randn(2, 6, 8, dtype=torch.float64),
        domain=domain("pairs weighed on weights") if not options.get("is_causal") else Sequence(6),
    )
    if made.domain.num_points == 7:
        made = changed(
            made, u=torch.randn(2, 7, 8, dtype=torch.float64), query=torch.randn(2, 7, 8, dtype=torch.float64)
        )
    for route in routes_for(options):
        check_route(route, made)


@pytest.mark.parametrize("options", EVERY.values(), ids=EVERY.keys())
def test_gradients_of_masses_and_pair_weights(options):
    made = problem(options, Sequence(5))
    for heads in (1, 4):
        leaves = [uniform(2, 5).requires_grad_(), torch.randn(2, heads, 5, 5, dtype=torch.float64).requires_grad_()]
        grads = []
        for route in (Dense(), *routes_for(options)):
            where = Points(torch.rand(5, 1, dtype=torch.float64), weights=leaves[0]).weigh_pairs(leaves[1])
            grads.append(torch.autograd.grad(route.integrate(Integral(made.kernel, made.u, where)).sin().sum(), leaves))
        for found in grads[1:]:
            torch.testing.assert_close(found, grads[0], atol=1e-12, rtol=1e-9)
        assert all(grad.any() for grad in grads[0])


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["masked", "weights"])
@pytest.mark.parametrize("options", EVERY.values(), ids=EVERY.keys())
def test_low_precision(options, name, dtype):
    exact, rough = (problem(options, domain(name), kind) for kind in (torch.float64, dtype))
    rough.kernel.load_state_dict(exact.kernel.state_dict())
    exact.kernel.load_state_dict(rough.kernel.state_dict())
    exact = changed(exact, u=rough.u.double())
    expected = results(Dense(), exact)
    for route in (Dense(), *routes_for(options)):
        if by(route, Iteration):
            route = HopSeries(Iteration())
        got = results(route, rough)
        names = ("integral",) if dtype == torch.bfloat16 else ("integral", "d/d u")
        compare({k: got[k] for k in names}, {k: expected[k] for k in names}, 2 * TOLERANCE[dtype])


@pytest.mark.parametrize(
    "route",
    [Dense(), HopSeries(Factorisation()), HopSeries(Iteration()), HopSeries(Truncation())],
    ids=lambda route: route.name,
)
def test_autocast_solves_in_float32(route):
    check_autocast(route, randomise(InfiniteAttention(8, 4)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("options", [v for v in EVERY.values() if v.get("is_causal")], ids=str)
def test_steps_and_chunks_equal_the_whole_sequence(options, dtype):
    made = problem(options, Sequence(7), dtype)
    route = routes_for(options)[-1]
    assert isinstance(route, HopTiled | HopSeries)
    check_chunks(route, made.kernel, made.u, 2e-6 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize("options", [v for v in EVERY.values() if v.get("is_causal")], ids=str)
def test_gradients_flow_through_a_state(options):
    made, route = problem(options, Sequence(7)), routes_for(options)[-1]
    assert isinstance(route, HopTiled | HopSeries)
    leaves = [made.u.requires_grad_(), *made.kernel.parameters()]
    whole = route.integrate(Integral(made.kernel, made.u, Sequence(7)))
    state = route.run(Integral(made.kernel, made.u[:, :3], Sequence(3)))[1]
    second = route.run(Integral(made.kernel, made.u[:, 3:], Sequence(4)), state)[0]
    expected, found = (
        torch.autograd.grad(out.sin().sum(), leaves, allow_unused=True) for out in (whole[:, 3:], second)
    )
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("normaliser", ["frobenius", "rows"])
@pytest.mark.parametrize("gamma", [0.3, 0.7, 0.95])
def test_the_remainder_of_a_truncated_series_is_within_its_bound(gamma, normaliser):
    for name in ("sequence", "weights", "pairs weighed per head", "one point"):
        made = problem({"gamma": gamma, "normaliser": normaliser}, domain(name))
        kernel = made.kernel
        assert isinstance(kernel, InfiniteAttention)
        exact = Dense().integrate(Integral(kernel, made.u, made.domain))
        value, mass = kernel.projections.values(made.u), made.domain.counts.expand(2, -1)
        for cut in (Truncation(1e-2), Truncation(1e-5), Truncation(terms=1), Truncation(terms=4)):
            left = HopSeries(cut).integrate(Integral(kernel, made.u, made.domain)) - exact
            left = left.unflatten(-1, (4, -1)).transpose(1, 2)
            if normaliser == "frobenius":
                sizes = [(mass[:, None, :, None] * part.square()).sum(2).sqrt() for part in (left, value)]
            else:
                seen = mass[:, None, :, None] > 0
                sizes = [torch.where(seen | (part is left), part, 0.0).abs().amax(2) for part in (left, value)]
            assert bool((sizes[0] <= cut.bound(gamma) * sizes[1] * (1 + 1e-9) + 1e-12).all())
            if cut.terms is None:
                one_less = Truncation(terms=cut.num_terms(gamma) - 1 or 1)
                assert cut.bound(gamma) <= cut.tolerance < one_less.bound(gamma)
        first = HopSeries(Truncation(terms=1)).integrate(Integral(kernel, made.u, made.domain))
        left_of_one = (first - exact).abs().max()
        assert name == "one point" or left_of_one > 1e-3 * exact.abs().max()


def test_a_long_series_has_the_gradients_of_all_hops():
    made = problem({"learn_gamma": True}, Sequence(6))
    check_route(HopSeries(Truncation(1e-13)), made)


@pytest.mark.parametrize("gamma", [0.7, 0.99, 0.999])
@pytest.mark.parametrize("normaliser", ["frobenius", "rows"])
def test_iteration_reaches_its_tolerance(normaliser, gamma):
    torch.manual_seed(2)
    kernel = InfiniteAttention(16, 2, gamma=gamma, normaliser=normaliser)
    u = torch.randn(1, 60, 16)
    exact = Dense().integrate(Integral(kernel.double(), u.double(), Sequence(60)))
    found = HopSeries(Iteration(restart=4)).integrate(Integral(kernel.float(), u, Sequence(60)))
    # the error may be 1 / (1 - γ) times the residual
    assert (found - exact).abs().max() <= max(1e-5, 2e-6 / (1 - gamma)) * exact.abs().max()
    rough = HopSeries(Iteration(1e-2)).integrate(Integral(kernel, u, Sequence(60)))
    error = (rough - exact).norm() / exact.norm()
    assert 1e-7 < error < 1e-2 / (1 - gamma)


@pytest.mark.parametrize("options", [{}, {"normaliser": "rows"}, {"is_causal": True}], ids=str)
def test_iteration_where_entries_need_different_numbers_of_hops(options):
    """Two points are solved after few hops, 64 points are not; the first entry then stays unchanged."""
    for seed in range(3):
        torch.manual_seed(seed)
        kernel = InfiniteAttention(16, 2, gamma=0.95, **options)
        for parameter in kernel.parameters():
            torch.nn.init.normal_(parameter)
        mask = torch.arange(64) < torch.tensor([[2], [64], [0]])
        u = torch.randn(3, 64, 16).where(mask[..., None], 0.0).requires_grad_()
        out = HopSeries(Iteration()).integrate(Integral(kernel, u, Sequence(64, mask=mask)))
        (grad,) = torch.autograd.grad(out.sin().sum(), u)
        assert bool(grad.isfinite().all())
        alone = HopSeries(Iteration()).integrate(Integral(kernel, u[:1], Sequence(64, mask=mask[:1])))
        assert torch.equal(out[:1], alone)
        exact = Dense().integrate(Integral(kernel.double(), u.double(), Sequence(64, mask=mask)))
        torch.testing.assert_close(out.double(), exact, atol=2e-5 * exact.abs().max().item(), rtol=0)


def test_points_without_mass_do_not_affect_search_directions():
    """Two of 64 points exist; later search directions come from the rounding errors of their residual."""
    mask = torch.arange(64) < 2
    for seed in range(6):
        torch.manual_seed(seed)
        kernel = InfiniteAttention(16, 2)
        for parameter in kernel.parameters():
            torch.nn.init.normal_(parameter)
        u = torch.randn(1, 64, 16).where(mask[:, None], 0.0)
        try:
            message = HopSeries(Iteration(1e-30, max_hops=40)).integrate(Integral(kernel, u, Sequence(64, mask=mask)))
        except ValueError as error:
            message = str(error)
        assert "nan" not in str(message)


@pytest.mark.parametrize("size", [1e14, 1e18])
@pytest.mark.parametrize("options", [{}, {"activation": "abs", "normaliser": "rows"}, {"form": "hop"}], ids=str)
def test_the_size_of_a_point_without_mass_changes_nothing(options, size):
    made = problem(options, Points(torch.rand(9, 2), weights=(torch.arange(9) != 3).float()), torch.float32)
    kept = made.domain.weights > 0
    for route in (
        (HopSeries(Factorisation()), HopSeries(Iteration())) if options.get("form") != "hop" else (HopTiled(),)
    ):
        small = route.integrate(Integral(made.kernel, made.u, made.domain))
        large = route.integrate(Integral(made.kernel, torch.where(kept[:, None], made.u, size), made.domain))
        torch.testing.assert_close(large[:, kept], small[:, kept], atol=1e-5, rtol=1e-5)


def test_an_iteration_that_does_not_converge_is_an_error():
    made = problem({"gamma": 0.99}, Sequence(7))
    with refused(ValueError, "Iteration: after 3 hops a relative residual of", "above tolerance = 1e-12"):
        HopSeries(Iteration(max_hops=3, restart=1)).integrate(made)


@pytest.mark.parametrize("options", EVERY.values(), ids=EVERY.keys())
def test_zero_scores_everywhere(options):
    made = problem(options | {"bias": False}, Sequence(5))
    u = torch.zeros(2, 5, 8, dtype=torch.float64, requires_grad=True)
    for route in routes_for(options):
        out = route.integrate(Integral(made.kernel, u, made.domain))
        grads = torch.autograd.grad(out.sum(), [u, *made.kernel.parameters()], allow_unused=True)
        assert not out.any()
        assert all(not grad.any() for grad in grads if grad is not None)


@pytest.mark.parametrize("options", EVERY.values(), ids=EVERY.keys())
def test_a_query_without_mass_has_result_zero_and_zero_gradient(options):
    where = Sequence(3).weigh_pairs(torch.tensor([[True] * 3, [False] * 3, [True] * 3]))
    made = problem(options, where)
    made.u.requires_grad_()
    for route in (Dense(), *routes_for(options)):
        out = route.integrate(made)
        assert torch.equal(out[:, 1], torch.zeros(2, 8, dtype=torch.float64))
        grads = torch.autograd.grad(out[:, 1].sum(), [made.u, *made.kernel.parameters()], allow_unused=True)
        assert all(not grad.any() for grad in grads if grad is not None)


@pytest.mark.parametrize("size", [1e-13, 1e10])
@pytest.mark.parametrize("options", [{}, {"normaliser": "rows"}, {"is_causal": True}, {"form": "hop"}], ids=str)
def test_scores_of_any_size(options, size):
    """A hop does not depend on the scale of its scores, even if their squares leave the range of float32."""
    made = problem(options | {"bias": False}, Sequence(6), torch.float32)
    expected = Dense().integrate(made)
    for route in (Dense(), *routes_for(options)):
        if by(route, Iteration):
            route = HopSeries(Iteration())
        out = route.integrate(Integral(made.kernel, size * made.u, made.domain)) / size
        torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("options", EVERY.values(), ids=EVERY.keys())
def test_nan_stays_nan(options):
    made = problem(options, Sequence(5))
    made.u[:, 2] = torch.nan
    for route in (Dense(), *routes_for(options)):
        out = route.integrate(made)
        assert bool(out[:, 2:].isnan().all())


class Applied(torch.nn.Module):
    """A route on a sequence, as a module."""

    def __init__(self, kernel, route):
        super().__init__()
        self.kernel, self.route = kernel, route

    def forward(self, u):
        return self.route.integrate(Integral(self.kernel, u, Sequence(u.shape[1])))


@pytest.mark.parametrize("options", EVERY.values(), ids=EVERY.keys())
def test_gradcheck(options):
    made = problem(options, Sequence(4))
    names = list(dict(made.kernel.named_parameters()))
    for route in routes_for(options):

        def integral(u, *values, route=route):
            named = {f"kernel.{k}": v for k, v in zip(names, values, strict=True)}
            return torch.func.functional_call(Applied(made.kernel, route), named, (u,))

        torch.autograd.gradcheck(integral, (made.u[:1].requires_grad_(), *made.kernel.parameters()), fast_mode=True)


@pytest.mark.parametrize("route", [HopSeries(Factorisation()), HopTiled()], ids=lambda route: route.name)
def test_compiles_in_one_graph(route):
    torch.compiler.reset()
    options: dict[str, Any] = {"form": "hop"} if isinstance(route, HopTiled) else {"learn_gamma": True}
    operator = IntegralOperator(InfiniteAttention(8, 2, **options), evaluation=route).double()
    u = torch.randn(2, 5, 8, dtype=torch.float64)
    compiled = torch.compile(operator, fullgraph=True, backend="aot_eager")
    found = []
    for call in (operator, compiled):
        leaf = u.clone().requires_grad_()
        out = call(leaf, Sequence(5, mask=torch.tensor([True, True, False, True, True])))
        found.append((out, *torch.autograd.grad(out.sin().sum(), [leaf, *operator.parameters()])))
    torch.testing.assert_close(*found)


def test_the_choice_and_its_reasons():
    made = problem({}, Sequence(6))
    assert by(AUTO.choose(made).route, Factorisation)
    many = torch.zeros(1, 2100, 8, dtype=torch.float64)
    choice = AUTO.choose(Integral(made.kernel, many, Sequence(2100)))
    assert by(choice.route, Iteration)
    assert "takes longer than iteration above 2048" in choice.refusals["HopSeries(Factorisation)"][0]
    small = HopSeries(Factorisation(max_bytes=1000))
    assert "above max_bytes" in small.unsupported_reasons(made)[0]
    causal = problem({"is_causal": True}, Sequence(6))
    assert by(AUTO.choose(causal).route, Substitution)
    tied = domain("times that coincide")
    choice = AUTO.choose(Integral(causal.kernel, causal.u[:, :4], tied))
    assert by(choice.route, Factorisation)
    assert choice.refusals["HopSeries(Substitution)"] == ["points that share a time see each other"]
    hop = problem({"form": "hop"}, Sequence(6))
    assert isinstance(AUTO.choose(hop).route, HopTiled)
    assert HopSeries(Factorisation()).unsupported_reasons(hop) == ["the kernel is one hop, not a series"]


@pytest.mark.parametrize("is_causal", [False, True])
def test_takes_factorised_kernels_with_pair_weights(is_causal):
    torch.manual_seed(1)
    kernel = randomise(FactorisedInfiniteAttention(8, 4, is_causal=is_causal).double())
    made = Integral(kernel, torch.randn(2, 7, 8, dtype=torch.float64), domain("pairs weighed"))
    solver = Substitution if is_causal else Factorisation
    assert by(AUTO.choose(made).route, solver)
    check_route(HopSeries(solver(), tile_elements=ROWS), made)
    if is_causal:
        plain = Integral(kernel, made.u, Sequence(7))
        assert "state is not all points" in HopSeries(Substitution()).unsupported_run_reasons(plain)[0]


def test_refusals():
    made = problem({}, Sequence(5).weigh_pairs(torch.zeros(3, 5)))
    query = torch.randn(2, 3, 8, dtype=torch.float64)
    message = HopSeries(Factorisation()).unsupported_reasons(
        Integral(made.kernel, made.u, made.domain, query, Sequence(3))
    )
    assert message == ["pair weights are for other queries than the points, which later hops start from"]
    causal = problem({"is_causal": True}, Sequence(5))
    assert "norm 1 at most" in HopSeries(Truncation()).unsupported_reasons(causal)[0]
    for make, message in (
        (lambda: HopSeries(Iteration(0.0)), "tolerance must be in (0, 1); got 0.0"),
        (lambda: HopSeries(Iteration(restart=0)), "max_hops and restart must be at least 1; got 500 and 0"),
        (lambda: HopSeries(Truncation(2.0)), "tolerance must be in (0, 1); got 2.0"),
        (lambda: HopSeries(Truncation(terms=0)), "terms must be at least 1; got 0"),
        (lambda: HopSeries(Truncation(1e-3, terms=4)), "tolerance=0.001 has no effect with terms=4; leave it at 1e-06"),
    ):
        with refused(ValueError, message):
            make()
    made = problem({}, Sequence(5).weigh_pairs(torch.zeros(2, 3, 5, 5)))
    for route in (HopSeries(Factorisation()), Dense()):
        with refused(ValueError, "pair weights must be for 1 or 4 heads", "for 3"):
            route.integrate(made)
    with refused(ValueError, "keeps neither resets nor masks"):
        HopSeries(Substitution()).run(
            Integral(causal.kernel, causal.u, Sequence(5, mask=torch.tensor([True] * 4 + [False])))
        )


def test_the_order_of_points_is_read_once_per_call(monkeypatch):
    """Reading it for every block of rows would synchronise with the device every time."""
    q, k = torch.randn(2, 2, 4, 12, 2)
    inputs = TileInputs(q, k, seen=torch.arange(1, 13).expand(2, -1))
    read = []
    tolist = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: read.append(self.shape) or tolist(self))
    monkeypatch.setattr(torch.Tensor, "__int__", lambda self: read.append(self.shape) or self.item())
    tiles = PairTiles(inputs, Dot(), ROWS)
    blocks = [(rows.rows, rows.seen, rows.seen_by_all) for rows in tiles.rows_of(slice(0, 4))]
    assert blocks == [(slice(k, k + 3), k + 3, k + 1) for k in range(0, 12, 3)]
    assert read == [(2, 12)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("out_dtype", [torch.float32, torch.float64])
def test_reciprocals_outside_the_range_of_the_dtype_are_zero(dtype, out_dtype):
    """1e-40 has no reciprocal in float32, and 0 has none in any dtype."""
    norm = torch.tensor([0.0, 2.0, torch.nan], dtype=dtype)
    torch.testing.assert_close(
        reciprocal(norm, out_dtype), torch.tensor([0.0, 0.5, torch.nan], dtype=out_dtype), equal_nan=True
    )
    assert reciprocal(torch.tensor(1e-40, dtype=dtype), torch.float32) == 0


@pytest.mark.parametrize(
    "options", [*SERIES.values(), *HOPS.values()], ids=[*SERIES, *(f"hop {name}" for name in HOPS)]
)
def test_masses_count_in_any_unit(options: dict[str, Any]) -> None:
    weights, found = uniform(2, 7).float(), []
    for unit in (1.0, 2.0**-66, 2.0**-120, 2.0**100):
        integral = problem(options, Sequence(7, weights=weights * unit), torch.float32)
        u = integral.u.requires_grad_()
        out = AUTO.integrate(integral)
        found.append((out, torch.autograd.grad(out.square().sum(), u)[0]))
    for scaled in found[1:]:
        torch.testing.assert_close(scaled, found[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "options", [*SERIES.values(), *HOPS.values()], ids=[*SERIES, *(f"hop {name}" for name in HOPS)]
)
def test_masses_may_be_far_apart_in_float32(options: dict[str, Any]) -> None:
    """The gradient of a causal row that sees only the first point is divided by the square of that point's mass."""
    found = []
    for route, dtype in ((AUTO, torch.float32), (Dense(), torch.float64)):
        weights = torch.tensor([1e-15, 2e8, 1.0, 3e15, 5e-14]).to(dtype).requires_grad_()
        integral = problem(options, Sequence(5, weights=weights))
        integral.kernel.to(dtype)
        integral = changed(integral, u=integral.u.to(dtype).requires_grad_())
        out = route.integrate(integral)
        by_u, by_weight = torch.autograd.grad(
            (out * torch.linspace(-1, 2, out.numel()).view_as(out)).sum(), (integral.u, weights)
        )
        found.append([part.double() for part in (out.detach(), by_u, by_weight * weights.detach())])
    for got, expected in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, rtol=2e-3, atol=2e-3 * expected.abs().max().item())
