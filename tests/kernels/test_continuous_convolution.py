"""The continuous convolution: its formula point by point."""

import itertools

import pytest
import torch
from torch import Tensor

from fredholm.domains import Domain, Grid, Sequence
from fredholm.evaluation import Dense, NativeConvolution, StepLoop
from fredholm.kernels import ContinuousConvolution
from tests.contracts.routes import Problem, check_route


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
        got = Dense().integrate(kernel, u, domain, None, at)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)


QUERIES = {
    "its own points": None,
    "coarser, between its points": Sequence(4, spacing=0.3, start=-0.07),
    "longer": Sequence(14, spacing=0.1, start=-0.2),
    "all after": Sequence(3, spacing=0.1, start=3.0),
    "all before": Sequence(3, spacing=0.1, start=-3.0),
}


@pytest.mark.parametrize("horizon", [None, 0.3])
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("queries", QUERIES.values(), ids=QUERIES)
def test_between_regular_grids_it_is_one_filter(queries, is_causal, horizon):
    kernel = ContinuousConvolution(4, 6, groups=2, is_causal=is_causal, horizon=horizon, width=5, omega_0=5.0).double()
    u = torch.randn(2, 11, 4, dtype=torch.float64)
    check_route(NativeConvolution(), Problem(kernel, u, Sequence(11, spacing=0.1), None, queries))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("horizon", [None, 0.3])
def test_step_by_step_is_the_whole_sequence(horizon, dtype):
    kernel = ContinuousConvolution(4, 6, groups=2, horizon=horizon, num_samples=3, width=5).to(dtype)
    domain = Sequence(11, spacing=kernel.spacing[0], start=-0.4)
    check_route(StepLoop(), Problem(kernel, torch.randn(2, 11, 4, dtype=dtype), domain))
