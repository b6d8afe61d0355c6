"""PyTorch's convolution and the FFT equal the dense oracle: masks, weights, and queries on other grids."""

import re

import hypothesis
import hypothesis.strategies as st
import pytest
import torch

from fredholm import IntegralOperator
from fredholm.domains import Domain, Grid, Points, Sequence, Union
from fredholm.evaluation import AUTO, FFT, Dense, Evaluation, Integral, NativeConvolution
from fredholm.kernels import Attention, ContinuousConvolution, Convolution, Stationary
from fredholm.kernels.convolution.stationary import FilterGeometry
from tests.contracts.routes import changed, check_route, compare, randomise, results
from tests.contracts.weighed_domains import keep, uniform
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("poisoned_memory")
ROUTES = [NativeConvolution(), FFT()]
each_route = pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)


def make(domain: Domain, *, natural: bool = True, **options) -> Integral:
    kernel = Convolution(4, 6, options.pop("kernel_size", 3), domain.pos_dim, **options)
    randomise(kernel.double())
    u = torch.randn(2, domain.num_points, 4, dtype=torch.float64)
    if domain.mask is not None:
        u = torch.where(domain.mask[..., None], u, 0.0)
    query_domain = kernel.output_domain(domain) if natural else None
    return Integral(kernel, u, domain, None, None if query_domain is domain else query_domain)


DOMAINS = {
    "sequence": Sequence(7),
    "one point": Sequence(1),
    "plane": Grid(4, 5),
    "space": Grid(3, 2, 4),
    "of one's own": Grid(4, 5, spacing=(3.0, 0.1), origin=(-1.0, 7.0)),
    "masked": Grid(4, 5, mask=keep(20)),
    "masked per entry": Grid(4, 5, mask=keep(2, 20)),
    "weighted": Grid(4, 5, weights=uniform(20)),
    "weighted and masked per entry": Grid(4, 5, weights=uniform(2, 20), mask=keep(2, 20)),
}
OPTIONS = {
    "same": {"padding": "same"},
    "strided": {"padding": 2, "stride": 2},
    "replicate": {"padding": 2, "padding_mode": "replicate", "groups": 2},
    "transposed": {"transposed": True, "stride": 2, "padding": 0},
}


@pytest.mark.sampled
@each_route
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("domain", DOMAINS.values(), ids=DOMAINS.keys())
def test_equals_dense(route, domain, options):
    check_route(route, make(domain, **options))


@each_route
@pytest.mark.parametrize("padding", [0, 1, 3])
@pytest.mark.parametrize("kernel_size", [1, 2, 3, 6])
def test_the_torus(route, kernel_size, padding):
    grid = Grid(4, 6, periodic=True, mask=keep(24))
    if 4 + 2 * padding >= kernel_size:
        check_route(route, make(grid, kernel_size=kernel_size, padding=padding, padding_mode="circular"))


@each_route
def test_zero_padding_is_refused_on_a_torus(route):
    torus = Grid(5, periodic=True)
    problem = changed(make(torus, natural=False, padding=1), query_domain=Grid(5, periodic=True))
    (reason,) = route.unsupported_reasons(problem)
    assert "on a periodic grid the signal continues round the torus; got padding_mode 'zeros'" in reason
    with refused(ValueError, "on a periodic grid the signal continues round the torus"):
        Dense().integrate(problem)


def queries_of(n: int, step: int, first: float) -> Grid:
    return Grid(n, spacing=(step / 9,), origin=((0.5 + first) / 9,))


@each_route
@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize(
    ("n", "step", "first"), [(9, 1, 0), (4, 2, 1), (5, 1, 3), (3, 4, -2), (13, 1, -3), (1, 1, 4), (2, 3, 5), (3, 1, 8)]
)
def test_queries_on_any_grid_of_the_lattice(route, n, step, first, mode):
    problem = make(Grid(9), natural=False, padding_mode=mode, dilation=2)
    problem = changed(problem, query_domain=queries_of(n, step, first))
    check_route(route, problem)


@each_route
@pytest.mark.parametrize(("n", "first"), [(19, -0.5), (8, 3.0), (30, -3.0), (1, 2.5)])
def test_transposed_results_on_any_part_of_the_finer_grid(route, n, first):
    problem = make(Grid(9), natural=False, transposed=True, stride=2)
    problem = changed(problem, query_domain=Grid(n, spacing=(0.5 / 9,), origin=((0.5 + first) / 9,)))
    check_route(route, problem)


@pytest.mark.parametrize("first", [-20, 30])
@pytest.mark.parametrize("transposed", [False, True])
def test_queries_that_see_no_key(transposed, first):
    problem = make(Grid(9), natural=False, transposed=transposed)
    problem = changed(problem, query_domain=queries_of(3, 1, first))
    check_route(NativeConvolution(), problem)
    assert not results(NativeConvolution(), problem)["integral"].any()
    (reason,) = FFT().unsupported_reasons(problem)
    assert reason.startswith("no window of the filter meets a key")


@each_route
def test_queries_that_do_not_exist_get_zero(route):
    problem = make(Grid(9), natural=False)
    operator = IntegralOperator(problem.kernel, residual=False, evaluation=route).double()
    every = operator(problem.u, problem.domain, query_domain=Grid(9))
    out = operator(problem.u, problem.domain, query_domain=Grid(9, mask=torch.arange(9) % 2 == 0))
    assert not out[:, 1::2].any()
    assert torch.equal(out[:, ::2], every[:, ::2])


@hypothesis.given(
    n=st.integers(1, 23), kernel_size=st.integers(1, 9), stride=st.integers(1, 4), dilation=st.integers(1, 3),
    padding=st.tuples(st.integers(0, 5), st.integers(0, 5)), transposed=st.booleans(), groups=st.sampled_from([1, 2]),
    mode=st.sampled_from(["zeros", "reflect", "replicate", "circular"]),
)  # fmt: skip
def test_any_convolution(n, kernel_size, stride, dilation, padding, transposed, groups, mode):
    options = {"kernel_size": kernel_size, "stride": stride, "dilation": dilation, "padding": (padding,)}
    options |= {"groups": groups, "transposed": transposed, "padding_mode": "zeros" if transposed else mode}
    try:
        problem = make(Grid(n), **options)
    except ValueError:
        hypothesis.reject()
    for route in ROUTES:
        check_route(route, problem)


@each_route
@pytest.mark.parametrize("out_dim", [1, 2])
@pytest.mark.parametrize("shape", [(5,), (3, 4), (1, 5), (2, 3, 2)], ids=str)
def test_a_random_filter_of_few_channels(route, shape, out_dim):
    spacing = tuple(1 / n for n in shape)
    kernel = ContinuousConvolution(3, out_dim, len(shape), spacing=spacing, width=4).double()
    domain = Grid(*shape)
    check_route(route, Integral(kernel, torch.randn(2, domain.num_points, 3, dtype=torch.float64), domain))


@each_route
def test_the_gradient_of_given_weights(route):
    problem = make(Grid(4, 5, weights=uniform(20)), padding=1)
    weights = problem.domain.weights.requires_grad_()
    cotangent = torch.randn(2, 20, 6, dtype=torch.float64)
    expected, found = (torch.autograd.grad(each.integrate(problem), weights, cotangent) for each in (Dense(), route))
    torch.testing.assert_close(found, expected)


def test_a_batch_without_signals():
    for options in OPTIONS.values():
        problem = make(Grid(4, 5, weights=uniform(20)), **options)
        problem = changed(problem, u=problem.u[:0].detach())
        for route in (NativeConvolution(), FFT()):
            check_route(route, problem)


@pytest.mark.parametrize("route", [Dense(), *ROUTES], ids=lambda route: route.name)
def test_nothing_to_integrate_gives_exactly_zero(route: Evaluation):
    for options in OPTIONS.values():
        found = results(route, make(Grid(4, 5, mask=torch.zeros(2, 20, dtype=torch.bool)), **options))
        assert not any(value.any() for value in found.values())


@each_route
def test_low_precision_stays_near_the_float64_oracle(route):
    problem = make(Grid(13, 17), padding=1)
    expected = results(Dense(), problem)
    problem.kernel.float()
    problem = changed(problem, u=problem.u.detach().float())
    compare(results(route, problem), expected, 1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        compare(results(route, problem), expected, 2e-2)


@pytest.mark.parametrize("options", [{"padding": 1}, {"transposed": True, "padding": 1}])
def test_the_signal_passes_to_torch_without_a_copy(options):
    problem, saved = make(Grid(5, 6), **options), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.data_ptr()) or t, lambda t: t):
        out = NativeConvolution().integrate(Integral(problem.kernel, problem.u.requires_grad_(), problem.domain))
    assert problem.u.data_ptr() in saved
    assert out.is_contiguous()


class Everywhere(Stationary):
    """κ = w(x - y) at every displacement of a line, with total mass 1: `Stationary` without `Convolution`."""

    def __init__(self) -> None:
        super().__init__()
        self.in_dim = self.out_dim = self.groups = 4
        self.pos_dim, self.is_causal, self.reads_query = 1, False, False
        self.rate = torch.nn.Parameter(torch.rand(4, dtype=torch.float64))

    def _w(self, displacement):
        return torch.exp(self.rate[:, None] * torch.sin(displacement))

    def matrix(self, u, domain, query=None, query_domain=None):
        displacement = domain.displacement((domain if query_domain is None else query_domain).pos)[..., 0]
        diagonal = self._w(displacement.reshape(1, -1)).unflatten(1, displacement.shape[-2:])
        return torch.diag_embed(diagonal.movedim(0, -1)).expand(u.shape[0], -1, -1, -1, -1)

    def filter_geometry(self, keys, queries):
        n = keys.shape[0]
        return FilterGeometry((2 * n - 1,), (1,), (1,), ((n - 1, n - 1),), "zeros", False)

    def filter_weight(self, keys, queries):
        n = keys.shape[0]
        steps = torch.arange(n - 1, -n, -1, dtype=torch.float64) * keys.spacing[0]
        return self._w(steps[None])[:, None]


@each_route
@pytest.mark.parametrize("domain", [Sequence(7), Sequence(7, mask=keep(7)), Sequence(7, weights=uniform(7))])
def test_routes_take_every_stationary_kernel(route, domain):
    u = torch.randn(2, 7, 4, dtype=torch.float64)
    check_route(route, Integral(Everywhere(), u if domain.mask is None else u * domain.mask[:, None], domain))


@each_route
@pytest.mark.parametrize(
    ("domain", "queries", "expected"),
    [
        (Points(torch.rand(9, 1)), None, "the points of the signal are not one whole regular grid"),
        (Union(Grid(8), Points(torch.rand(1, 1).double())), None, "are not one whole regular grid"),
        (Grid(9), Points(torch.rand(2, 1)), "the queries are not one whole regular grid"),
        (Grid(9), Grid(3, spacing=(0.15,)), "centres of the filter's windows"),
        (Grid(9), Grid(3, spacing=(1 / 9,), origin=(0.3,)), "centres of the filter's windows"),
        (
            Grid(9),
            Grid(30, spacing=(1 / 9,), origin=(0.5 / 9,)),
            "continued by 22 cells, more than once over its 9",
        ),
    ],
)
def test_refusals(route, domain, queries, expected):
    kernel = Convolution(4, 6, 3, padding_mode="circular")
    (reason,) = route.unsupported_reasons(Integral(kernel, torch.randn(1, 9, 4), domain, None, queries))
    assert expected in reason


@each_route
def test_refuses_other_kernels_and_pair_weights(route):
    (reason,) = route.unsupported_reasons(Integral(Attention(4), torch.randn(1, 9, 4), Sequence(9)))
    assert reason == "Attention is not marked Stationary"
    weighed = Sequence(9).weigh_pairs(torch.ones(9, 9, dtype=torch.bool))
    reasons = route.unsupported_reasons(Integral(Convolution(4, 4, 3, padding=1), torch.randn(1, 9, 4), weighed))
    assert reasons == ["the measure differs from query to query"]


@pytest.mark.parametrize(
    ("options", "fits"),
    [
        ({"kernel_size": 3}, NativeConvolution),
        ({"kernel_size": 3, "groups": 32}, NativeConvolution),
        ({"kernel_size": 7}, NativeConvolution),
        ({"kernel_size": 31}, FFT),
        ({"kernel_size": 31, "groups": 32}, FFT),
        ({"kernel_size": 31, "stride": 16}, NativeConvolution),
        ({"kernel_size": 31, "transposed": True}, FFT),
    ],
)
def test_small_filters_use_a_direct_sum_and_large_ones_the_fft(options, fits):
    kernel, grid = Convolution(32, 32, pos_dim=2, padding=1, **options), Grid(64, 64)
    choice = AUTO.choose(
        Integral(kernel, torch.empty(8, 64 * 64, 32, device="meta"), grid, None, kernel.output_domain(grid))
    )
    assert isinstance(choice.route, fits)
    assert ("FFT" in choice.refusals) == (fits is NativeConvolution)
    if "FFT" in choice.refusals:
        (reason,) = choice.refusals["FFT"]
        assert re.fullmatch(r"the direct sum costs \d+, less than 8.0 times the \d+ of transforms", reason)


def test_integrals_without_a_filter_between_grids_go_to_dense():
    kernel = Convolution(4, 4, 3, 2, padding=1)
    u, grid = torch.randn(1, 16, 4), Grid(4, 4)
    assert isinstance(AUTO.choose(Integral(kernel, u, grid, None, Points(torch.rand(3, 2)))).route, Dense)
    assert isinstance(AUTO.choose(Integral(kernel, u, grid.weigh_pairs(torch.ones(16, 16).bool()))).route, Dense)
