"""`BasisTiled`, which sums kernels in a basis over strips of queries on any points, equals the dense oracle."""

import pytest
import torch

from fredholm import IntegralOperator
from fredholm.domains import Domain, Grid, Points, Sequence, trapezoid_weights
from fredholm.evaluation import AUTO, BasisTiled, Dense, Integral, StepLoop
from fredholm.evaluation.convolution.basis_tiled import Strip, reach_of, strips
from fredholm.kernels import MLP, ContinuousConvolution
from tests.contracts.routes import changed, check_route, compare, randomise, results
from tests.contracts.weighed_domains import DOMAINS, PAIRS, domain, keep, uniform
from tests.evaluation.convolution.basis_kernels import Waves

pytestmark = pytest.mark.usefixtures("poisoned_memory")
each_size = pytest.mark.parametrize("elements", [None, 50, 1])
OPTIONS = {
    "full": {},
    "grouped": {"groups": 2},
    "depthwise": {"in_dim": 12, "groups": 12},
    "horizon": {"horizon": 0.25},
    "causal": {"is_causal": True},
    "causal with a horizon": {"is_causal": True, "horizon": 0.25, "groups": 2},
}
each_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())


def make(points: Domain, in_dim: int = 4, query_domain: Domain | None = None, **options) -> Integral:
    if points.pos_dim > 1:
        options["is_causal"] = False
    kernel = Waves(in_dim, 12, points.pos_dim, **options).double()
    u = torch.randn(2, points.num_points, in_dim, dtype=torch.float64)
    if points.mask is not None:
        u = torch.where(points.mask[..., None], u, 0.0)
    return Integral(kernel, u, points, None, query_domain)


@pytest.mark.pairs
@each_size
@each_option
@pytest.mark.parametrize("name", [*DOMAINS, *(name for name in PAIRS if "head" not in name)])
def test_equals_dense(name, options, elements):
    check_route(BasisTiled(elements), make(domain(name), **options))


@pytest.mark.pairs
@each_size
@each_option
@pytest.mark.parametrize("per_entry", [False, True], ids=["shared", "per entry"])
@pytest.mark.parametrize("name", ["sequence", "times", "no point", "of each entry"])
def test_any_queries(name, per_entry, options, elements):
    keys = Points(uniform(2, 9, 1), mask=keep(2, 9)) if name == "of each entry" else domain(name)
    queries = Points(uniform(2, 5, 1)) if per_entry else Points(2 * uniform(5, 1) - 0.5)
    check_route(BasisTiled(elements), make(keys, query_domain=queries, **options))


@each_option
def test_no_query(options):
    found = make(Sequence(7), query_domain=Points(torch.empty(0, 1, dtype=torch.float64)), **options)
    check_route(BasisTiled(), found)
    assert results(BasisTiled(), found)["integral"].shape == (2, 0, 12)


@pytest.mark.parametrize("options", [{}, {"horizon": 0.4}])
@pytest.mark.parametrize(
    "points", [Points(uniform(11, 3)), Points(uniform(2, 11, 2)), Grid(3, 4, periodic=True), Grid(2, 3, 2)]
)
def test_clouds_grids_and_the_torus(points, options):
    check_route(BasisTiled(100), make(points, **options))


def test_pairs_of_unordered_points():
    points = Points(uniform(11, 1)).weigh_pairs(torch.randn(2, 11, 11, dtype=torch.float64))
    check_route(BasisTiled(40), make(points, is_causal=True, horizon=0.5))


def test_gradients_reach_the_network():
    kernel = randomise(ContinuousConvolution(3, 4, width=5, learn_omega_0=True).double(), 0.3)
    times = Sequence(times=uniform(2, 13).sort().values)
    check_route(BasisTiled(60), Integral(kernel, torch.randn(2, 13, 3, dtype=torch.float64), times))


def test_nothing_to_integrate_gives_exactly_zero():
    for options in OPTIONS.values():
        absent = Sequence(times=uniform(9).sort().values, mask=torch.zeros(2, 9, dtype=torch.bool))
        found = results(BasisTiled(30), make(absent, **options))
        assert not any(value.any() for value in found.values())
    before = Points(torch.full((3, 1), -1.0, dtype=torch.float64))
    found = results(BasisTiled(30), make(Sequence(9), query_domain=before, is_causal=True))
    assert not any(value.any() for value in found.values())


def strips_of(kernel: Waves, points: Domain, queries: Domain, elements: int) -> list[Strip]:
    reach = reach_of(kernel, points, queries)
    return list(strips(queries.num_points, points.num_points, reach, 3, 1, elements))


@pytest.mark.parametrize("shuffled", [False, True])
def test_keys_out_of_reach_are_skipped(shuffled):
    n = 200
    times = uniform(n).sort().values
    points = Points(times[torch.randperm(n)][:, None]) if shuffled else Sequence(times=times)
    everything = strips_of(Waves(2, 2), points, points, 600)
    assert [len(range(n)[strip.keys]) for strip in everything] == [n] * n
    causal = strips_of(Waves(2, 2, is_causal=True), points, points, 600)
    short = strips_of(Waves(2, 2, is_causal=True, horizon=0.1), points, points, 600)
    pairs = [sum(len(range(n)[s.queries]) * len(range(n)[s.keys]) for s in found) for found in (causal, short)]
    assert pairs[0] < 0.55 * n * n
    assert pairs[1] < 0.15 * n * n
    for found in (causal, short):
        assert [query for strip in found for query in range(n)[strip.queries]] == list(range(n))
        assert all(3 * len(range(n)[s.queries]) * len(range(n)[s.keys]) <= 600 for s in found)


@pytest.mark.parametrize(("num_queries", "num_keys"), [(0, 5), (5, 0), (0, 0), (7, 3)])
def test_there_is_always_at_least_one_strip(num_queries, num_keys):
    found = list(strips(num_queries, num_keys, None, 3, 1, 10))
    assert [query for strip in found for query in range(num_queries)[strip.queries]] == list(range(num_queries))
    assert found
    assert all(strip.keys == slice(0, num_keys) for strip in found)


def test_only_inputs_are_saved_for_the_backward_pass():
    problem, saved = make(Sequence(times=uniform(60).sort().values)), {}
    problem.u.requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: saved.setdefault(t.untyped_storage().data_ptr(), t.untyped_storage().nbytes()) and t, lambda t: t
    ):
        BasisTiled(600).integrate(problem)
    assert sum(saved.values()) < 3 * 8 * (problem.u.numel() + 60 + 3 * 48)


@pytest.mark.parametrize("options", [{}, {"is_causal": True, "horizon": 0.3}])
def test_low_precision_stays_near_the_float64_oracle(options):
    times = Sequence(times=uniform(2, 83).sort().values)
    problem = make(times, **options)
    expected = results(Dense(), problem)
    problem.kernel.float()
    problem = changed(problem, u=problem.u.detach().float())
    compare(results(BasisTiled(5000), problem), expected, 1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        compare(results(BasisTiled(5000), problem), expected, 2e-2)
        out = BasisTiled(5000).integrate(Integral(problem.kernel, problem.u, times))
    # computed in float32: only the result is rounded to 16 bits, by at most 2^-8
    torch.testing.assert_close(out.double(), expected["integral"], rtol=2**-8, atol=1e-4)
    problem.kernel.bfloat16()
    problem = changed(problem, u=problem.u.detach().bfloat16())
    found = results(BasisTiled(5000), problem)
    assert {value.dtype for value in found.values()} == {torch.bfloat16}
    problem.kernel.double()
    problem = changed(problem, u=problem.u.detach().double())
    compare(found, results(Dense(), problem), 2e-2)


@pytest.mark.slow
@pytest.mark.parametrize("elements", [None, pytest.param(40, marks=pytest.mark.long)])
def test_compiles_in_one_graph(elements):
    torch.compiler.reset()
    operator = IntegralOperator(Waves(4, 4, horizon=0.3, is_causal=True), evaluation=BasisTiled(elements))
    compiled = torch.compile(operator, fullgraph=True, backend="aot_eager")
    times = Sequence(times=uniform(2, 7).sort().values)
    u = torch.randn(2, 7, 4, requires_grad=True)
    outputs = [call(u, times) for call in (compiled, operator)]
    grads = [torch.autograd.grad(out.square().sum(), [u, *operator.parameters()]) for out in outputs]
    for a, b in zip((outputs[0], *grads[0]), (outputs[1], *grads[1]), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_refusals():
    u, route = torch.randn(2, 7, 4), BasisTiled()
    assert route.unsupported_reasons(Integral(MLP(4), u, Sequence(7))) == ["MLP is not marked BasisFilter"]
    (reason,) = route.unsupported_reasons(Integral(Waves(4, 4), u, domain("pairs weighed per head")))
    assert "from head to head" in reason


def test_is_the_chosen_route_where_points_are_no_grid():
    kernel, u = ContinuousConvolution(4, 4), torch.randn(2, 7, 4)
    for points in (Sequence(times=uniform(7).sort().values), domain("pairs kept")):
        assert isinstance(AUTO.choose(Integral(kernel, u, points)).route, BasisTiled)
    assert isinstance(AUTO.choose(Integral(kernel, u, Sequence(7), None, Grid(14))).route, BasisTiled)


def test_equals_single_steps():
    kernel = randomise(ContinuousConvolution(3, 4, width=5).double(), 0.3)
    problem = Integral(kernel, torch.randn(2, 13, 3, dtype=torch.float64), Sequence(times=uniform(2, 13).sort().values))
    compare(results(BasisTiled(), problem), results(StepLoop(), problem), 1e-10)


def wave(times: torch.Tensor) -> torch.Tensor:
    """A smooth signal of three channels."""
    return torch.stack([torch.sin(7 * times), torch.cos(11 * times + 1), torch.exp(-times)], dim=-1)


def irregular(n: int, generator: torch.Generator) -> torch.Tensor:
    """n times from 0 to 1 whose spacings are 0.4 to 1.6 times their mean."""
    steps = 0.4 + 1.2 * torch.rand(n - 1, dtype=torch.float64, generator=generator)
    return torch.nn.functional.pad(steps.cumsum(0) / steps.sum(), (1, 0))


def at_the_end(kernel: ContinuousConvolution, times: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The integral over all samples, as the last query of a causal kernel sees it."""
    samples = Sequence(times=times, weights=weights)
    last = Sequence(times=times.new_ones(1))
    return BasisTiled().integrate(Integral(kernel, wave(times)[None], samples, None, last))[0, 0]


def smooth_kernel() -> ContinuousConvolution:
    torch.manual_seed(1)
    return ContinuousConvolution(3, 5, omega_0=5.0).double()


def test_halved_spacings_converge_at_the_order_of_the_trapezoid_rule():
    kernel, generator = smooth_kernel(), torch.Generator().manual_seed(0)
    with torch.no_grad():
        times = torch.linspace(0, 1, 20_001, dtype=torch.float64)
        exact = at_the_end(kernel, times, trapezoid_weights(times))
        sizes, errors = (20, 40, 80, 160, 320), []
        for n in sizes:
            draws = [irregular(n, generator) for _ in range(20)]
            apart = [(at_the_end(kernel, t, trapezoid_weights(t)) - exact).square().mean() for t in draws]
            errors.append(torch.stack(apart).mean().sqrt())
    orders = torch.stack(errors).log2().diff().neg()
    assert (orders > 1).all()
    assert orders.mean() > 1.9


@pytest.mark.parametrize("dropped", [0.3, 0.5, 0.7])
def test_dropped_samples_change_less_with_trapezoid_weights_than_without(dropped):
    kernel, generator, n = smooth_kernel(), torch.Generator().manual_seed(0), 200
    times = torch.linspace(0, 1, n, dtype=torch.float64)
    changes = {}
    with torch.no_grad():
        whole = {
            "trapezoid": at_the_end(kernel, times, (n - 1) * trapezoid_weights(times)),
            "counted": at_the_end(kernel, times, torch.ones_like(times)),
        }
        for _ in range(20):
            stay = torch.rand(n, generator=generator) >= dropped
            kept = times[stay]
            weights = {"trapezoid": (n - 1) * trapezoid_weights(kept, total=None), "counted": torch.ones_like(kept)}
            # the remaining samples are rescaled to the total mass, which favours the sum without weights
            weights["rescaled"] = weights["counted"] * n / len(kept)
            for name, weight in weights.items():
                difference = at_the_end(kernel, kept, weight) - whole.get(name, whole["counted"])
                changes.setdefault(name, []).append(difference.square().mean())
    apart = {name: torch.stack(values).mean().sqrt() for name, values in changes.items()}
    assert apart["trapezoid"] < 0.5 * apart["rescaled"]
    assert apart["rescaled"] < apart["counted"]
