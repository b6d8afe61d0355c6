"""`BasisFFT`, which transforms only the basis of a filter, equals the dense oracle."""

import re

import hypothesis
import hypothesis.strategies as st
import pytest
import torch

from fredholm import IntegralOperator
from fredholm.domains import Domain, Grid, Points, Sequence
from fredholm.evaluation import AUTO, FFT, BasisFFT, BasisTiled, Integral, NativeConvolution
from fredholm.evaluation.convolution.basis_fft import Axis, Plan, filtered
from fredholm.evaluation.convolution.filtering import Filtering, as_filtering
from fredholm.evaluation.convolution.spectra import FilterInputs, basis_convolution
from fredholm.kernels import ContinuousConvolution, Convolution
from tests.contracts.routes import changed, check_route, compare, randomise, results
from tests.contracts.weighed_domains import keep, uniform
from tests.evaluation.convolution.basis_kernels import Waves

pytestmark = pytest.mark.usefixtures("poisoned_memory")
ROUTE = BasisFFT(chunk_elements=50)


def make(domain: Domain, in_dim: int = 4, batch: int = 2, **options) -> Integral:
    kernel = Waves(in_dim, 12, domain.pos_dim, **options).double()
    u = torch.randn(batch, domain.num_points, in_dim, dtype=torch.float64)
    if domain.mask is not None:
        u = torch.where(domain.mask[..., None], u, 0.0)
    return Integral(kernel, u, domain)


def spaced(n: int, **more) -> Sequence:
    return Sequence(n, spacing=0.1, start=-0.7, **more)


DOMAINS = {
    "sequence": Sequence(7),
    "one point": Sequence(1),
    "spaced": spaced(31),
    "plane": Grid(4, 5),
    "space": Grid(3, 2, 4),
    "of one's own": Grid(4, 5, spacing=(3.0, 0.1), origin=(-1.0, 7.0)),
    "masked": spaced(31, mask=keep(31)),
    "masked per entry": Grid(4, 5, mask=keep(2, 20)),
    "weighted": Grid(4, 5, weights=uniform(20)),
    "weighted and masked per entry": spaced(31, weights=uniform(2, 31), mask=keep(2, 31)),
}
OPTIONS = {
    "full": {},
    "grouped": {"groups": 2},
    "one channel a group": {"groups": 4},
    "depthwise": {"in_dim": 12, "groups": 12},
    "horizon": {"horizon": 0.35},
    "causal": {"is_causal": True},
    "causal with a horizon": {"is_causal": True, "horizon": 0.35, "groups": 2},
}


@pytest.mark.pairs
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("domain", DOMAINS.values(), ids=DOMAINS.keys())
def test_equals_dense(domain, options):
    if domain.pos_dim == 1 or not options.get("is_causal"):
        check_route(ROUTE, make(domain, **options))


@pytest.mark.pairs
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize(
    ("n", "step", "first"),
    [(9, 1, 0), (4, 2, 1), (5, 1, 3), (3, 4, -2), (13, 1, -3), (1, 1, 4), (2, 3, 5), (4, 1, 0.3)],
)
def test_queries_on_any_grid_of_the_lattice(options, n, step, first):
    problem = make(Grid(9), **options)
    problem = changed(problem, query_domain=Grid(n, spacing=(step / 9,), origin=((0.5 + first) / 9,)))
    check_route(ROUTE, problem)


@pytest.mark.parametrize("first", [-20, 40])
def test_queries_that_see_no_key_get_exactly_zero(first):
    problem = make(Grid(9), horizon=0.3)
    problem = changed(problem, query_domain=Grid(3, spacing=(1 / 9,), origin=((0.5 + first) / 9,)))
    check_route(ROUTE, problem)
    assert not results(ROUTE, problem)["integral"].any()


def test_queries_coarser_along_one_axis():
    problem = make(Grid(6, 5), horizon=0.6)
    problem = changed(problem, query_domain=Grid(2, 5, spacing=(0.5, 0.2), origin=(1 / 12, 0.1)))
    check_route(ROUTE, problem)


def as_tensors(problem: Integral) -> tuple[list[torch.Tensor], Plan]:
    """The signal as an image, the basis and the matrices, all leaves, and the route's plan of blocks."""
    kernel = problem.kernel
    assert isinstance(kernel, Waves)
    found = as_filtering(problem)
    assert isinstance(found, Filtering)
    image = problem.u.unflatten(1, found.keys.shape).movedim(-1, 1)
    basis = kernel.lattice_basis(found.keys, found.queries).movedim(-1, 0)
    parts = image, basis, kernel.basis_weight()
    return [part.detach().clone().requires_grad_() for part in parts], Plan.of(found, len(problem.u))


@pytest.mark.parametrize(
    ("domain", "horizon", "lengths"),
    [
        (spaced(31), 0.35, (14,)),
        (spaced(31), 0.35, (20,)),
        (spaced(30), 0.15, (7,)),
        (spaced(31), 0.05, (4,)),
        (Grid(9, 8, spacing=(0.1, 0.1)), 0.25, (10, 0)),
        (Grid(9, 8, spacing=(0.1, 0.1)), 0.25, (0, 12)),
        (Grid(9, 8, spacing=(0.1, 0.1)), 0.25, (12, 10)),
        (Grid(5, 4, 6, spacing=(0.1,) * 3), 0.15, (8, 6, 6)),
    ],
)
@pytest.mark.parametrize("shift", [0.0, 0.2, -0.4])
def test_blocks_give_the_result_of_the_whole(domain, horizon, lengths, shift):
    problem = make(domain, groups=2, horizon=horizon)
    (keys,) = domain.grid_blocks
    problem = changed(
        problem, query_domain=Grid(*keys.shape, spacing=keys.spacing, origin=[x + shift for x in keys.origin])
    )
    tensors, plan = as_tensors(problem)
    plan = plan._replace(blocks=plan.axes)
    blocks = tuple(axis.block(length) if length else axis for axis, length in zip(plan.axes, lengths, strict=True))
    image, basis, weight = tensors
    whole, cut = (filtered(image, basis, weight, each, 50) for each in (plan, plan._replace(blocks=blocks)))
    torch.testing.assert_close(cut, whole)
    cotangent = torch.randn_like(whole)
    for a, b in zip(*(torch.autograd.grad(out, tensors, cotangent) for out in (cut, whole)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("horizon", "is_cut"), [(40.0, True), (2000.0, False), (None, False)])
def test_long_signals_with_a_short_filter_are_computed_in_blocks(horizon, is_cut):
    problem = make(Sequence(3001, spacing=1.0), batch=1, horizon=horizon, is_causal=True)
    assert as_tensors(problem)[1].is_cut == is_cut
    compare(results(BasisFFT(), problem), results(NativeConvolution(), problem), 1e-10)


def test_the_cost_of_a_plan_is_that_of_its_transforms_and_products():
    axis = Axis(signal=100, taps=20, first=-19, results=100)
    whole = Plan(2, 3, 5, 1, 4, (axis,), (axis,))
    assert axis.length == 120
    expected = (2 * 8 + 4) * 2.5 * 120 * (torch.tensor(120.0).log2().item() + 10) + (16 + 16) * 15 * 60
    assert whole.cost == pytest.approx(expected)
    block = axis.block(64)
    assert (block.signal, block.first, block.results, block.length) == (45, -19, 64, 64)


@hypothesis.given(
    n=st.integers(1, 23), taps=st.integers(1, 9), first=st.integers(-12, 25), count=st.integers(1, 30),
    groups=st.sampled_from([1, 2, 4]), elements=st.sampled_from([1, 40, 10_000]),
)  # fmt: skip
def test_any_window_equals_the_direct_sum(n, taps, first, count, groups, elements):
    u, phi = torch.randn(2, 4, n, dtype=torch.float64), torch.randn(3, taps, dtype=torch.float64)
    weight = torch.randn(3, 8, 4 // groups, dtype=torch.float64)
    axis = Axis(n, taps, first, count)
    (got,) = basis_convolution(FilterInputs(u, phi, weight), [first], [count], [axis.length], elements)
    beyond = torch.nn.functional.pad(u, (60, 60))[..., 60 + first : 60 + first + count + taps - 1]
    expected = torch.nn.functional.conv1d(beyond, torch.einsum("koi,kt->oit", weight, phi), groups=groups)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("wanted", [(True, True, True), *torch.eye(3).bool().tolist()])
@pytest.mark.parametrize("groups", [1, 2])
def test_gradcheck(groups, wanted):
    shapes = ((1, 2, 3), (2, 2), (2, 2, 2 // groups))
    tensors = [
        torch.randn(shape, dtype=torch.float64).requires_grad_(wants)
        for shape, wants in zip(shapes, wanted, strict=True)
    ]

    def convolve(*tensors):
        return basis_convolution(FilterInputs(*tensors), [-1], [3], [5], 3).out

    assert torch.autograd.gradcheck(convolve, tensors, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(convolve, tensors, check_fwd_over_rev=True)


def test_the_operator_passes_opcheck():
    u, phi, weight = (torch.randn(s).requires_grad_() for s in ((2, 4, 5), (3, 4), (3, 6, 4)))
    torch.library.opcheck(torch.ops.fredholm.basis_convolution.default, ([u, phi, weight], [-3], [7], [9], 20))


def test_no_spectrum_of_the_filter_is_kept_and_only_inputs_are_saved():
    problem, saved = make(Grid(50)), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
        ROUTE.integrate(Integral(problem.kernel, problem.u.requires_grad_(), problem.domain))
    assert max(saved) <= max(problem.u.numel(), 99 * 3, 3 * 48)


def test_nothing_to_integrate_gives_exactly_zero():
    for options in OPTIONS.values():
        found = results(ROUTE, make(Grid(20, mask=torch.zeros(2, 20, dtype=torch.bool)), **options))
        assert not any(value.any() for value in found.values())


@pytest.mark.parametrize("options", [{}, {"groups": 4}, {"is_causal": True, "horizon": 0.3}])
def test_low_precision_stays_near_the_float64_oracle(options):
    problem = make(Grid(211), **options)
    expected = results(NativeConvolution(), problem)
    problem.kernel.float()
    problem = changed(problem, u=problem.u.detach().float())
    compare(results(BasisFFT(), problem), expected, 1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        # computed in float32: only the result and its gradient are rounded to 16 bits, by at most 2^-8
        compare(results(BasisFFT(), problem), expected, 2**-7)


def test_a_bfloat16_operator_computes_in_float32():
    problem = make(Grid(211))
    problem.kernel.bfloat16()
    problem = changed(problem, u=problem.u.detach().bfloat16())
    found = results(BasisFFT(), problem)
    assert {value.dtype for value in found.values()} == {torch.bfloat16}
    problem.kernel.double()
    problem = changed(problem, u=problem.u.detach().double())
    compare(found, results(NativeConvolution(), problem), 2e-2)


@pytest.mark.parametrize(("in_dim", "out_dim", "groups"), [(4, 2, 2), (4, 1, 1), (1, 4, 1), (6, 4, 2), (1, 1, 1)])
def test_groups_of_one_channel_on_either_side(in_dim, out_dim, groups):
    kernel = randomise(ContinuousConvolution(in_dim, out_dim, groups=groups).double())
    check_route(ROUTE, Integral(kernel, torch.randn(3, 13, in_dim, dtype=torch.float64), Grid(13)))


def test_equals_direct_convolution_on_a_long_sequence():
    kernel = ContinuousConvolution(5, 7)
    problem = Integral(kernel, torch.randn(1, 4001, 5), Grid(4001))
    compare(results(BasisFFT(), problem), results(NativeConvolution(), problem), 1e-5)


def test_float32_is_close_to_the_direct_sum_over_16_000_samples():
    n, channels, places = 16_000, 30, [0, 1, 997, 8191, 15_999]
    kernel = ContinuousConvolution(channels, channels, omega_0=30.0, scale=n - 1.0, spacing=1.0)
    u = torch.randn(1, n, channels)
    out = BasisFFT().integrate(Integral(kernel, u, Sequence(n, spacing=1.0)))[0, places].double()
    kernel.double()
    rows = []
    for place in places:
        before = torch.arange(place + 1, dtype=torch.float64)
        basis = kernel.basis((place - before)[:, None])
        rows.append(torch.einsum("nw,woi,ni->o", basis, kernel.basis_weight(), u[0, : place + 1].double()))
    expected = torch.stack(rows)
    assert (out - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_a_smoothed_kernel_is_the_same_on_every_route():
    kernel = randomise(ContinuousConvolution(3, 4, spacing=0.1, scale=3.1, smoothing=True).double())
    problem = Integral(kernel, torch.randn(2, 31, 3, dtype=torch.float64), Sequence(31, spacing=0.05))
    check_route(BasisFFT(), problem)
    check_route(BasisTiled(), problem)


@pytest.mark.long
def test_compiles_in_one_graph_for_any_length():
    torch.compiler.reset()
    operator = IntegralOperator(Waves(4, 4, horizon=0.3, is_causal=True), evaluation=BasisFFT())
    compiled = torch.compile(operator, fullgraph=True, backend="aot_eager")
    for length in (5, 9):
        u = torch.randn(2, length, 4, requires_grad=True)
        outputs = [call(u) for call in (compiled, operator)]
        grads = [torch.autograd.grad(out.square().sum(), [u, *operator.parameters()]) for out in outputs]
        for a, b in zip((outputs[0], *grads[0]), (outputs[1], *grads[1]), strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("domain", "queries", "expected"),
    [
        (Points(torch.rand(9, 1)), None, "the points of the signal are not one whole regular grid"),
        (Grid(9), Points(torch.rand(2, 1)), "the queries are not one whole regular grid"),
        (Grid(9), Grid(18), "not spaced by whole cells"),
        (Grid(9, periodic=True), None, "on a torus the filter does not end"),
    ],
)
def test_refusals(domain, queries, expected):
    (reason,) = ROUTE.unsupported_reasons(
        Integral(Waves(4, 4, horizon=0.3), torch.randn(1, 9, 4), domain, None, queries)
    )
    assert expected in reason


def test_refuses_other_kernels_and_pair_weights():
    u = torch.randn(1, 9, 4)
    (reason,) = ROUTE.unsupported_reasons(Integral(Convolution(4, 4, 3, padding=1), u, Sequence(9)))
    assert reason == "Convolution is not marked BasisFilter"
    weighed = Sequence(9).weigh_pairs(torch.ones(9, 9, dtype=torch.bool))
    assert ROUTE.unsupported_reasons(Integral(Waves(4, 4), u, weighed)) == ["the measure differs from query to query"]


def test_a_batch_without_signals():
    check_route(ROUTE, Integral(Waves(4, 4), torch.randn(0, 9, 4), Sequence(9)))


@pytest.mark.parametrize(
    ("options", "fits"),
    [
        ({"horizon": 8.0}, NativeConvolution),
        ({"horizon": 300.0}, BasisFFT),
        ({}, BasisFFT),
        ({"groups": 32}, FFT),
        ({"groups": 32, "horizon": 8.0}, NativeConvolution),
        ({"groups": 32, "horizon": 100.0}, BasisFFT),
    ],
)
def test_the_cheapest_route_is_taken(options, fits):
    kernel, domain = Waves(32, 32, width=9, is_causal=True, **options), Sequence(20_000, spacing=1.0)
    choice = AUTO.choose(Integral(kernel, torch.empty(4, 20_000, 32, device="meta"), domain))
    assert isinstance(choice.route, fits)
    if fits is NativeConvolution:
        (reason,) = choice.refusals["BasisFFT"]
        assert re.fullmatch(r"the direct sum costs \d+, less than 3.0 times the \d+ of transforms", reason)
    if fits is FFT:
        (reason,) = choice.refusals["BasisFFT"]
        assert "each group has one channel" in reason
