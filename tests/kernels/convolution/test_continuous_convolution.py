"""The continuous convolution: formula, initialisation, other sampling rates and times, refusals."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from fredholm import IntegralOperator, quadrature
from fredholm.domains import Domain, Grid, Points, Sequence, trapezoid_weights
from fredholm.evaluation import FFT, BasisFFT, BasisTiled, Dense, Integral, NativeConvolution
from fredholm.kernels import ContinuousConvolution
from fredholm.kernels.convolution.kernel_network import KernelActivation
from tests.contracts.routes import check_route, compare, results
from tests.refusals import refused


def literal(kernel: ContinuousConvolution, u: Tensor, domain: Domain, at: Domain) -> Tensor:
    """The sum of eq. 4, one pair of points and one pair of channels at a time."""
    out = u.new_zeros(len(u), at.num_points, kernel.out_dim)
    layer, per_group = kernel.output_layer, kernel.in_dim // kernel.groups
    for i, j in itertools.product(range(at.num_points), range(domain.num_points)):
        apart = at.pos[i] - domain.pos[j]
        if kernel.is_causal and apart < -1e-9 * kernel.scale:
            continue
        if kernel.horizon is not None and bool((apart.abs() >= kernel.horizon - 1e-9).any()):
            continue
        place = apart / kernel.scale
        hidden = kernel.network((2 * place - 1 if kernel.is_causal else place).to(u.dtype))
        psi = (layer.weight @ hidden + layer.bias).view(kernel.out_dim, per_group)
        for o, c in itertools.product(range(kernel.out_dim), range(per_group)):
            group = o // (kernel.out_dim // kernel.groups)
            out[:, i, o] += psi[o, c] * u[:, j, group * per_group + c] * domain.counts.expand(len(u), -1)[:, j]
    return out


LINE = Sequence(6, spacing=0.2)
CASES = {
    "causal": ({}, LINE, LINE),
    "centred": ({"is_causal": False}, LINE, LINE),
    "grouped": ({"groups": 2}, LINE, LINE),
    "depthwise": ({"groups": 4, "out_dim": 8}, LINE, LINE),
    "horizon": ({"horizon": 0.6}, LINE, LINE),
    "centred horizon": ({"horizon": 0.6, "is_causal": False}, LINE, LINE),
    "irregular times, weighed": ({}, Sequence(times=torch.rand(5).cumsum(0), weights=torch.rand(5)), LINE),
    "coarser queries": ({}, LINE, Sequence(3, spacing=0.4, start=0.1)),
    "plane": ({"pos_dim": 2, "horizon": 0.4}, Grid(2, 3), Grid(3, 1)),
    "space": ({"pos_dim": 3}, Grid(2, 1, 2), Grid(1, 2, 1)),
}


@pytest.mark.parametrize(("options", "domain", "at"), CASES.values(), ids=CASES)
def test_matrix_is_the_formula(options, domain, at):
    out_dim = options.get("out_dim", 2)
    rest = {name: value for name, value in options.items() if name != "out_dim"}
    kernel = ContinuousConvolution(4, out_dim, width=5, omega_0=7.0, scale=1.3, **rest).double()
    with torch.no_grad():
        kernel.output_layer.bias.normal_()
        expected = literal(kernel, u := torch.randn(2, domain.num_points, 4).double(), domain, at)
        got = Dense().integrate(Integral(kernel, u, domain, None, at))
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)


def test_each_axis_has_its_own_length():
    kernel = ContinuousConvolution(1, 1, 2, width=5, scale=(2.0, 0.5)).double()
    apart = torch.tensor([[0.6, -0.1]], dtype=torch.float64)
    expected = kernel.network(torch.tensor([[0.3, -0.2]], dtype=torch.float64))
    torch.testing.assert_close(kernel.basis(apart)[..., :5], expected)


DOMAINS = {
    "one point": Sequence(1),
    "none": Sequence(0),
    "sequence": Sequence(11),
    "spaced": Sequence(11, spacing=0.09, start=-3.0),
    "weighed": Sequence(11, weights=torch.rand(11)),
    "masked": Sequence(11, mask=torch.rand(2, 11) > 0.4),
    "nothing exists": Sequence(5, mask=torch.zeros(5, dtype=torch.bool)),
    "plane": Grid(4, 5),
    "space": Grid(3, 2, 4, mask=torch.rand(24) > 0.3),
}


@pytest.mark.sampled
@pytest.mark.parametrize("options", [{}, {"horizon": 0.3}, {"smoothing": True, "spacing": 0.3}], ids=str)
@pytest.mark.parametrize(
    "domain", [d for d in DOMAINS.values() if d.num_points], ids=[n for n in DOMAINS if n != "none"]
)
def test_on_a_grid_it_is_one_filter(domain, options):
    kernel = ContinuousConvolution(4, 6, domain.pos_dim, groups=2, width=5, omega_0=5.0, **options).double()
    u = torch.randn(2, domain.num_points, 4, dtype=torch.float64)
    for route in (NativeConvolution(), FFT(), BasisFFT(), BasisTiled()):
        check_route(route, Integral(kernel, u, domain))


@pytest.mark.parametrize("activation", ["sine", "relu", "leaky_relu", "swish"])
def test_in_float32_every_gradient_is_that_of_the_formula(activation: KernelActivation):
    sines: dict[str, Any] = {"omega_0": 5.0} if activation == "sine" else {}
    kernel = ContinuousConvolution(4, 6, groups=2, activation=activation, width=5, **sines)
    check_route(NativeConvolution(), Integral(kernel, torch.randn(2, 11, 4), Sequence(11)), tolerance=5e-5)


def test_in_bfloat16_the_basis_and_sums_keep_float32():
    kernel = ContinuousConvolution(4, 6, scale=60.0, spacing=1.0, omega_0=20.0).bfloat16()
    u = torch.randn(2, 61, 4).bfloat16()
    domain = Sequence(61, spacing=1.0)
    wide = ContinuousConvolution(4, 6, scale=60.0, spacing=1.0, omega_0=20.0)
    wide.load_state_dict(kernel.state_dict())
    expected = Dense().integrate(Integral(wide, u.float(), domain))
    for route in (Dense(), NativeConvolution()):
        got = route.integrate(Integral(kernel, u, domain))
        assert got.dtype == torch.bfloat16
        assert (got.float() - expected).abs().max() < 2e-2 * expected.abs().max()
    assert kernel.basis(domain.displacement(domain.pos)).dtype == torch.float32


def test_under_autocast_phases_are_those_of_float32():
    kernel, apart = ContinuousConvolution(4, 6, omega_0=300.0), torch.linspace(0, 1, 50)[:, None]
    expected = kernel.basis(apart), kernel.values(apart)
    with torch.autocast("cpu", torch.bfloat16):
        got = kernel.basis(apart), kernel.values(apart)
        op = IntegralOperator(kernel, residual=False)
        assert op(torch.randn(2, 50, 4)).isfinite().all()
    assert torch.equal(got[0], expected[0])
    assert torch.equal(got[1], expected[1])


@pytest.mark.parametrize("domain", DOMAINS.values(), ids=DOMAINS)
def test_points_that_do_not_exist_have_no_effect(domain):
    op = IntegralOperator(ContinuousConvolution(4, 4, domain.pos_dim, width=5), residual=False, bias=False).double()
    u = torch.randn(2, domain.num_points, 4, dtype=torch.float64, requires_grad=True)
    out = op(u, domain)
    assert out.shape == u.shape
    (gradient,) = torch.autograd.grad(out.sum(), u)
    if domain.mask is not None:
        gone = ~domain.mask.expand(2, -1)
        assert not out[gone].any()
        assert not gradient[gone].any()
    assert out.isfinite().all()


def test_later_points_do_not_reach_earlier_ones():
    kernel = ContinuousConvolution(2, 3, width=5).double()
    u = torch.randn(1, 9, 2, dtype=torch.float64, requires_grad=True)
    for domain in (Sequence(9), Sequence(9, spacing=0.3), Sequence(times=torch.rand(9).cumsum(0))):
        out = Dense().integrate(Integral(kernel, u, domain))
        (gradient,) = torch.autograd.grad(out[:, :5].sum(), u)
        assert not gradient[:, 5:].any()
        assert gradient[:, :5].any(-1).all()
    tied = Sequence(times=torch.tensor([0.0, 0.5, 0.5, 1.0]))
    out = Dense().integrate(Integral(kernel, u[:, :4], tied))
    (gradient,) = torch.autograd.grad(out[:, 1].sum(), u)
    assert gradient[:, :3].any(-1).all()  # two points at one time see each other
    assert not gradient[:, 3:].any()


SEEN = {
    "causal": ({"num_samples": 60}, Sequence(60), 59),
    "causal, given a spacing": ({"scale": 59.0, "spacing": 1.0}, Sequence(60, spacing=1.0), 59),
    "horizon": ({"horizon": 5.0, "spacing": 0.25}, Sequence(60, spacing=0.25), 59),
    "centred horizon": ({"horizon": 5.0, "spacing": 0.25, "is_causal": False}, Sequence(60, spacing=0.25), 30),
    "centred": ({"num_samples": 60, "is_causal": False}, Sequence(60), 30),
    "depthwise": ({"num_samples": 60, "groups": 40}, Sequence(60), 59),
    "plane": ({"num_samples": 9, "pos_dim": 2}, Grid(9, 9), 40),
}


@pytest.mark.parametrize("activation", ["sine", "relu", "leaky_relu", "swish"])
@pytest.mark.parametrize(("options", "domain", "at"), SEEN.values(), ids=SEEN)
def test_the_integral_of_white_noise_starts_with_variance_one(options, domain, at, activation):
    variances = []
    for seed in range(4):
        torch.manual_seed(seed)
        kernel = ContinuousConvolution(40, 40, activation=activation, **options)
        with torch.no_grad():
            kappa = kernel.values(domain.displacement(domain.pos[at : at + 1]))[0]
        variances.append(kappa.square().sum((0, 2)).mean().item())  # variance of Σ_j κ u over white u
    assert 0.7 < sum(variances) / 4 < 1.4


def smooth(t: Tensor) -> Tensor:
    return torch.stack([torch.sin(3 * t) + 0.3 * t, torch.cos(5 * t)], dim=-1)[None]


@pytest.mark.parametrize("smoothing", [False, True])
def test_results_converge_over_sampling_rates_by_the_weights_alone(smoothing):
    kernel = ContinuousConvolution(2, 3, scale=1.0, spacing=0.05, omega_0=4.0, smoothing=smoothing).double()

    def at_rate(n: int) -> Tensor:
        h = 1 / (n - 1)
        weights = torch.full((n,), h / 0.05, dtype=torch.float64)
        weights[[0, -1]] *= 0.5
        domain = Sequence(n, spacing=h, weights=weights)
        assert domain.times is not None
        return Dense().integrate(
            Integral(kernel, smooth(domain.times), domain, None, Sequence(1, spacing=1.0, start=1.0))
        )

    with torch.no_grad():
        exact = at_rate(321)
        errors = [(at_rate(n) - exact).abs().max().item() / exact.abs().max().item() for n in (6, 11, 21)]
        assert errors[0] > 2 * errors[1] > 4 * errors[2]
        assert errors[2] < 0.02
        assert at_rate(81).sub(exact).abs().max() < errors[2]


def test_irregular_times_converge_by_trapezoid_weights():
    kernel = ContinuousConvolution(2, 3, scale=1.0, omega_0=4.0).double()
    end = Sequence(1, spacing=1.0, start=1.0)
    generator = torch.Generator().manual_seed(2)

    def at(n: int) -> Tensor:
        inner = torch.rand(n - 2, generator=generator, dtype=torch.float64).sort().values
        times = torch.cat([torch.zeros(1).double(), inner, torch.ones(1).double()])
        weights = trapezoid_weights(times, total=None) / kernel.spacing[0]
        return Dense().integrate(Integral(kernel, smooth(times), Sequence(times=times, weights=weights), None, end))

    with torch.no_grad():
        exact = at(4000)
        errors = [(at(n) - exact).abs().max().item() for n in (20, 80, 320)]
    assert errors[0] > 3 * errors[1] > 9 * errors[2]


@pytest.mark.parametrize("n", [2, 3, 7, 8])
def test_subsampling_keeps_times_and_with_them_the_kernel(n):
    # 182 samples, of which every 8th ends at 177: the last time changes, the kernel must not
    kernel = ContinuousConvolution(1, 2, scale=181.0, spacing=1.0, width=5).double()
    whole, part = Sequence(182, spacing=1.0), Sequence(len(range(0, 182, n)), spacing=float(n))
    u = torch.zeros(1, 182, 1, dtype=torch.float64)
    every, some = kernel.matrix(u, whole)[:, ::n, ::n], kernel.matrix(u[:, ::n], part)
    torch.testing.assert_close(some, every, rtol=1e-12, atol=1e-13)
    taps, kept = (
        kernel.filter_weight(d.grid_blocks[0], d.grid_blocks[0]).flip(-1) for d in (whole, part)
    )  # displacements from 0 on
    torch.testing.assert_close(kept, taps[..., ::n], rtol=1e-12, atol=1e-13)


def test_smoothing_averages_the_kernel_between_samples_of_training():
    kernel = ContinuousConvolution(1, 1, spacing=0.1, width=5, omega_0=5.0, smoothing=True).double()
    fine = Sequence(41, spacing=0.025)
    got = kernel.matrix(torch.zeros(1, 41, 1).double(), fine)[0, -1, :, 0, 0].flip(0)
    offsets = torch.arange(-4, 5, dtype=torch.float64) * 0.025
    gauss = torch.exp(-((offsets / 0.1) ** 2) / (2 * 0.5**2))
    apart = torch.arange(41, dtype=torch.float64) * 0.025
    hidden = kernel.network((2 * (apart[:, None] + offsets) - 1)[..., None])
    layer = kernel.output_layer
    expected = (hidden @ layer.weight[0] + layer.bias) @ (gauss / gauss.sum())
    torch.testing.assert_close(got, expected)


def test_smoothing_removes_waves_that_training_could_not_see():
    options: dict[str, Any] = {"spacing": 0.1, "width": 1, "omega_0": 1.0}
    kernel = ContinuousConvolution(1, 1, smoothing=True, **options).double()
    plain = ContinuousConvolution(1, 1, **options).double()
    plain.load_state_dict(kernel.state_dict())
    first, second = kernel.network.layers
    with torch.no_grad():
        # a wave with one period per spacing of training is constant on the samples
        for layer in (first, second):
            layer.get_parameter("bias").zero_()
            layer.get_parameter("magnitude").fill_(1.0)
        first.get_parameter("magnitude").fill_(2 * math.pi / (2 * 0.1))
        second.get_parameter("magnitude").fill_(1e-3)
    plain.load_state_dict(kernel.state_dict())
    u = torch.zeros(1, 21, 1, dtype=torch.float64)
    fine, coarse = Sequence(21, spacing=0.025), Sequence(21, spacing=0.1)

    def swing(kernel: ContinuousConvolution, domain: Domain) -> float:
        return kernel.matrix(u, domain)[0, -1].sub(kernel.output_layer.bias).abs().max().item()

    assert swing(plain, coarse) < 1e-8
    assert swing(kernel, fine) < 0.2 * swing(plain, fine)


def test_smoothing_leaves_constants_the_rate_of_training_and_irregular_times_alone():
    kernel = ContinuousConvolution(1, 1, spacing=0.1, smoothing=True).double()
    plain = ContinuousConvolution(1, 1, spacing=0.1).double()
    plain.load_state_dict(kernel.state_dict())
    u = torch.randn(1, 9, 1, dtype=torch.float64)
    for domain in (
        Sequence(9, spacing=0.1),
        Sequence(9, spacing=0.25),
        Sequence(times=torch.arange(9).double() * 0.01),
    ):
        assert torch.equal(kernel.matrix(u, domain), plain.matrix(u, domain))
    fine = Sequence(9, spacing=0.03)
    assert not torch.allclose(kernel.matrix(u, fine), plain.matrix(u, fine))
    assert not kernel.is_pairwise
    with torch.no_grad():
        kernel.output_layer.magnitude.zero_()
        kernel.output_layer.bias.fill_(0.7)
        torch.testing.assert_close(kernel.matrix(u, fine)[0, ..., 0, 0], torch.tril(torch.full((9, 9), 0.7)).double())


def test_a_checkpoint_keeps_the_scale():
    kernel, other = ContinuousConvolution(2, 2, scale=7.0), ContinuousConvolution(2, 2, scale=1.0)
    other.load_state_dict(kernel.state_dict())
    assert other.scale.tolist() == [7.0]
    apart = torch.linspace(0, 5, 9)[:, None]
    assert torch.equal(kernel.values(apart), other.values(apart))


def test_lengths_keep_their_precision_when_weights_are_rounded():
    kernel = ContinuousConvolution(2, 2, scale=123457.0)
    for convert in (kernel.half, kernel.bfloat16):
        assert convert().scale.tolist() == [123457.0]
    assert kernel.double().scale.dtype == torch.float64


def test_dropped_weights_depend_only_on_the_seed_and_not_on_the_route():
    kernel = ContinuousConvolution(4, 6, groups=2, width=200, weight_dropout=0.25).double()
    problem = Integral(kernel, torch.randn(2, 11, 4, dtype=torch.float64), Sequence(11))
    found = []
    for route in (Dense(), NativeConvolution()):
        torch.manual_seed(7)
        found.append(results(route, problem))
    compare(found[1], found[0], 1e-10)
    full = kernel.eval().basis_weight()
    torch.manual_seed(7)
    kept = kernel.train().basis_weight()
    dropped = kept == 0
    assert abs(dropped[:-1].double().mean().item() - 0.25) < 0.03
    torch.testing.assert_close(kept[~dropped], full[~dropped] / 0.75)
    assert torch.equal(kernel.eval().basis_weight(), full)


def test_integrates_at_the_nodes_of_a_quadrature():
    op = IntegralOperator(ContinuousConvolution(4, 4, width=5)).double()
    u = torch.randn(2, 9, 4, dtype=torch.float64)
    for domain in (Sequence(9), Sequence(times=torch.rand(9).cumsum(0), weights=torch.rand(9))):
        every = op.with_quadrature(quadrature.Neighbourhood(radius=1e9))
        torch.testing.assert_close(every(u, domain), op(u, domain))


@pytest.mark.slow
@pytest.mark.parametrize(
    "domain",
    [
        *(Sequence(6, spacing=0.1), Points(torch.rand(2, 6, 1).double())),
        pytest.param(Sequence(6), marks=pytest.mark.long),
    ],
)
def test_compiles_in_one_graph(domain):
    torch.compiler.reset()
    op = IntegralOperator(ContinuousConvolution(4, 4, width=5, horizon=0.5, learn_omega_0=True)).double()
    u = torch.randn(2, 6, 4, dtype=torch.float64, requires_grad=True)
    compiled = torch.compile(op, fullgraph=True, backend="aot_eager")
    leaves = [u, *op.parameters()]
    grads = [torch.autograd.grad(call(u, domain).square().sum(), leaves) for call in (op, compiled)]
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)


def test_bad_input_is_refused():
    cases: list[tuple[dict[str, Any], str]] = [
        ({"groups": 3}, "groups must divide both channel counts; got 3 groups for 4 in and 6 out"),
        ({"pos_dim": 4}, "pos_dim must be 1, 2 or 3; got 4"),
        ({"pos_dim": 2, "is_causal": True}, "only a line has a past"),
        ({"horizon": 0.0}, "horizon must be a finite number > 0; got 0.0"),
        ({"horizon": math.nan}, "got nan"),
        ({"scale": -1.0}, "scale must be a finite number > 0; got -1.0"),
        ({"scale": (1.0, 2.0)}, "scale must be a finite number > 0; got (1.0, 2.0)"),
        ({"pos_dim": 2, "scale": (1.0, 0.0)}, "or one for each of the 2 axes; got (1.0, 0.0)"),
        ({"spacing": math.inf}, "spacing must be a finite number > 0; got inf"),
        ({"spacing": True}, "got True"),
        ({"num_samples": 0}, "num_samples must be an integer >= 1; got 0"),
        ({"horizon": 1.0, "spacing": 0.1, "num_samples": 5}, "10 samples (0.1,) apart lie within (1.0,)"),
        ({"weight_dropout": 1.0}, "weight_dropout must be in [0, 1); got 1.0"),
    ]
    for options, message in cases:
        with refused(ValueError, "kernels.ContinuousConvolution", message):
            ContinuousConvolution(4, 6, **options)
    with refused(ValueError, "omega_0 must be positive", "-1.0"):
        ContinuousConvolution(4, 6, omega_0=-1.0)
    op = IntegralOperator(ContinuousConvolution(4, 4))
    with refused(ValueError, "the kernel reads positions with 1 coordinates; Grid(2, 3) has 2", "with pos_dim=2"):
        op(torch.randn(1, 6, 4), Grid(2, 3))
