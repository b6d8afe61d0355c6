"""Sampled functions as signals, and their values between samples."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from fredholm.domains import Domain, Grid, Points
from fredholm.encoders import Function, FunctionBatch
from fredholm.encoders.function import interpolate
from fredholm.models import ITNet, SpectralConfig
from tests.refusals import refused


def encoder(pos_dim: int = 2, **settings: Any) -> Function:
    torch.manual_seed(0)
    config = Function.Config(**{"num_channels": 3, "pos_dim": pos_dim, "num_frequencies": 4, **settings})
    return Function(config, 6).double()


def random_values(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def interpolated_by_loop(pos: Tensor, values: Tensor, at: Tensor, count: int, wraps: bool) -> Tensor:
    """The formula, one query of one function at a time."""
    out = torch.zeros(len(at), values.shape[-1], dtype=torch.float64)
    for q, x in enumerate(at):
        offset = x - pos
        offset = offset - (offset + 0.5).floor() if wraps else offset
        distance = offset.norm(dim=-1)
        order = distance.argsort()
        taken, rest = order[:count], order[count:]
        border = distance[rest[0]] if len(rest) else torch.tensor(math.inf)
        if distance[order[0]] < 1e-12:
            out[q] = values[order[0]]
            continue
        share = 1 / distance[taken] if border.isinf() else (border - distance[taken]) / (border * distance[taken])
        weight = share.square()
        out[q] = (weight[:, None] * values[taken]).sum(0) / weight.sum()
    return out


@pytest.mark.parametrize("wraps", [False, True])
@pytest.mark.parametrize(("points", "count"), [(13, 4), (13, 1), (3, 4), (1, 4)])
def test_values_between_samples_equal_the_formula(points: int, count: int, wraps: bool) -> None:
    pos, values = torch.rand(2, points, 2, dtype=torch.float64), random_values(2, points, 3)
    at = torch.cat([torch.rand(6, 2, dtype=torch.float64), pos[0, :1]])
    found = interpolate(FunctionBatch(values, Points(pos, periodic=wraps)), Points(at, periodic=wraps), count)
    for entry in range(2):
        expected = interpolated_by_loop(pos[entry], values[entry], at, count, wraps)
        torch.testing.assert_close(found[entry], expected, rtol=1e-6, atol=1e-7)


def test_masked_samples_have_no_effect() -> None:
    pos, values, at = (
        torch.rand(9, 2, dtype=torch.float64),
        random_values(1, 9, 3),
        torch.rand(5, 2, dtype=torch.float64),
    )
    mask = torch.arange(9) < 6
    hidden = interpolate(FunctionBatch(values, Points(pos, mask=mask)), Points(at))
    torch.testing.assert_close(hidden, interpolate(FunctionBatch(values[:, :6], Points(pos[:6])), Points(at)))
    nothing = interpolate(FunctionBatch(values[:, :0], Points(pos[:0])), Points(at))
    assert nothing.shape == (1, 5, 3)
    assert not nothing.any()


def test_values_are_continuous_where_neighbours_change() -> None:
    pos, values = torch.rand(20, 2, dtype=torch.float64), random_values(1, 20, 1)
    line = torch.linspace(0, 1, 4001, dtype=torch.float64)[:, None].expand(-1, 2)
    along = interpolate(FunctionBatch(values, Points(pos)), Points(line))[0, :, 0]
    assert float(along.diff().abs().max()) < 0.02


def test_gradients_reach_values_and_positions() -> None:
    pos, values = torch.rand(7, 2, dtype=torch.float64), random_values(2, 7, 2).requires_grad_()
    at = torch.rand(4, 2, dtype=torch.float64, requires_grad=True)

    def interpolated(values: Tensor, at: Tensor) -> Tensor:
        return interpolate(FunctionBatch(values, Points(pos)), Points(at))

    assert torch.autograd.gradcheck(interpolated, (values, at))


def test_coincident_samples_have_finite_gradients() -> None:
    pos = torch.tensor([[0.1], [0.5], [0.5], [0.5], [0.9]], dtype=torch.float64, requires_grad=True)
    at = torch.tensor([[0.5], [0.3]], dtype=torch.float64, requires_grad=True)
    found = interpolate(FunctionBatch(torch.ones(1, 5, 1, dtype=torch.float64), Points(pos)), Points(at))
    torch.testing.assert_close(found, torch.ones_like(found))
    for slope in torch.autograd.grad(found.sum(), (pos, at)):
        torch.testing.assert_close(slope, torch.zeros_like(slope))


@pytest.mark.parametrize("is_periodic", [False, True])
@pytest.mark.parametrize("domain", [Grid(3, 4), Points(torch.rand(12, 2, dtype=torch.float64))], ids=["grid", "points"])
def test_equals_its_samples_at_their_positions(domain: Domain, is_periodic: bool) -> None:
    if is_periodic:
        domain = Grid(3, 4, periodic=True) if domain.grid_blocks else Points(domain.pos, periodic=True)
    built, values = encoder(is_periodic=is_periodic), random_values(2, 12, 3)
    signal, where = built(FunctionBatch(values, domain))
    assert where.has_points_of(domain)
    position = 2 * math.pi * domain.pos @ built.frequencies.T
    joined = torch.cat([values, torch.cat([position.sin(), position.cos()], -1).expand(2, -1, -1)], -1)
    expected = built.projection(torch.nn.functional.gelu(built.lift(joined)))
    torch.testing.assert_close(signal, expected)
    torch.testing.assert_close(built.at(FunctionBatch(values, domain), domain), signal)


def test_on_a_torus_the_signal_is_periodic() -> None:
    built, values = encoder(is_periodic=True, num_frequencies=9), random_values(1, 12, 3)
    batch, pos = FunctionBatch(values, Grid(3, 4, periodic=True)), torch.rand(5, 2, dtype=torch.float64)
    torch.testing.assert_close(*(built.at(batch, Points(pos + shift, periodic=True)) for shift in (0, 1)))
    lengths = built.frequencies.square().sum(-1)
    assert lengths.tolist() == sorted(lengths.tolist())
    assert len(torch.cat([built.frequencies, -built.frequencies]).unique(dim=0)) == 18


def test_other_shapes_are_refused() -> None:
    built = encoder()
    with refused(ValueError, "expected float values (batch, points, 3)", "(2, 12, 2)"):
        built(FunctionBatch(random_values(2, 12, 2), Grid(3, 4)))
    with refused(ValueError, "do not fit their domain", "Grid(3, 3)"):
        built(FunctionBatch(random_values(2, 12, 3), Grid(3, 3)))
    with refused(ValueError, "is_periodic is False"):
        built(FunctionBatch(random_values(2, 12, 3), Grid(3, 4, periodic=True)))
    with refused(ValueError, "places must have 2 coordinates"):
        built.at(FunctionBatch(random_values(2, 12, 3), Grid(3, 4)), Grid(5))
    with refused(ValueError, "num_frequencies=0"):
        Function.Config(num_channels=1, pos_dim=1, num_frequencies=0, sigma=2.0)
    with refused(ValueError, "is_periodic"):
        Function.Config(num_channels=1, pos_dim=1, is_periodic=True, sigma=2.0)


def test_second_derivatives_equal_finite_differences() -> None:
    torch.manual_seed(0)
    config = ITNet.Config(embed_dim=6, depth=2, kernel=SpectralConfig(num_waves_per_axis=2), pool="none", dropout=0.0)
    net = ITNet(encoder(), 1, config).double().eval()
    batch, pos = (
        FunctionBatch(random_values(1, 12, 3), Grid(3, 4)),
        torch.rand(5, 2, dtype=torch.float64, requires_grad=True),
    )
    (slope,) = torch.autograd.grad(net(batch, at=Points(pos)).sum(), pos, create_graph=True)
    step = 1e-4
    for axis in range(2):
        bend = torch.autograd.grad(slope[:, axis].sum(), pos, retain_graph=True)[0][:, axis]
        aside = torch.eye(2, dtype=torch.float64)[axis] * step
        before, at, after = (net(batch, at=Points(pos.detach() + n * aside))[0, :, 0] for n in (-1, 0, 1))
        torch.testing.assert_close(bend, (before - 2 * at + after) / step**2, rtol=1e-4, atol=1e-4)


def test_values_without_their_domain_are_refused() -> None:
    for values in (
        random_values(2, 4, 3),
        random_values(3, 4, 3),
    ):  # two entries could be taken for values and a domain
        with refused(TypeError, "expected a FunctionBatch(values, domain)", "got Tensor"):
            encoder()(values)  # pyright: ignore[reportArgumentType]
