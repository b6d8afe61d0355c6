import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fredholm import fields
from fredholm.domains import Points
from tests.refusals import refused


def literal(theta: Tensor, x: Tensor, sizes: list[int], omega_0: float) -> Tensor:
    """One SIREN written out: weights and biases one after the other, by rows of outputs."""
    for layer, (inputs, outputs) in enumerate(itertools.pairwise(sizes), start=1):
        weight, bias, theta = theta.split([inputs * outputs, outputs, len(theta) - (inputs + 1) * outputs])
        x = x @ weight.view(outputs, inputs).T + bias
        x = torch.sin(omega_0 * x) if layer < len(sizes) - 1 else x
    return x


def drawn(field: fields.Field, *batch: int) -> Tensor:
    """Parameters of several fields, in float64."""
    count = math.prod(batch)
    theta = torch.stack([field.draw() for _ in range(count)]) if count else torch.empty(0, field.num_parameters)
    return theta.double().unflatten(0, batch) if len(batch) > 1 else theta.double()


FIELDS: dict[str, Callable[[], fields.Field]] = {
    "siren": lambda: fields.SIREN(2, 3, width=7, depth=4, omega_0=5.0),
    "two layers": lambda: fields.SIREN(2, 1, width=5, depth=2, omega_0=3.0),
    "fixed frequencies": lambda: fields.SinusoidalField(2, 3, num_terms=5).double(),
    "free frequencies": lambda: fields.FreeSinusoidalField(2, 3, num_terms=5),
    "with a spline": lambda: fields.SplinedField(fields.SIREN(2, 3, width=4, depth=2, omega_0=2.0), 5),
}


@pytest.mark.parametrize("n", [0, 1, 13])
def test_a_siren_is_a_perceptron_with_sines(n: int) -> None:
    field = fields.SIREN(3, 2, width=5, depth=3, omega_0=7.0)
    theta, x = drawn(field, 4), torch.randn(4, n, 3, dtype=torch.float64)
    theta.requires_grad_()
    x.requires_grad_()
    rows = [literal(own, points, [3, 5, 5, 2], 7.0) for own, points in zip(theta, x, strict=True)]
    expected, got = torch.stack(rows), field(theta, x)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
    cotangent = torch.randn_like(expected)
    for a, b in zip(*(torch.autograd.grad(out, (theta, x), cotangent) for out in (got, expected)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("kind", ["fixed frequencies", "free frequencies"])
def test_sinusoidal_fields_are_sums_of_sines(kind: str) -> None:
    field = FIELDS[kind]()
    theta, x = drawn(field, 1)[0], torch.randn(6, 2, dtype=torch.float64)
    if isinstance(field, fields.SinusoidalField):
        c, w, b = theta.view(5, 3), field.frequencies, field.phases
    else:
        c, w, b = theta[:15].view(5, 3), theta[15:25].view(5, 2), theta[25:]
    expected = sum(torch.sin(x @ w[k] + b[k])[:, None] * c[k] for k in range(5))
    torch.testing.assert_close(field(theta, x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", FIELDS)
def test_a_field_is_linear_in_its_amplitudes_alone(kind: str) -> None:
    field = FIELDS[kind]()
    theta, x, some = drawn(field, 1)[0], torch.randn(6, 2, dtype=torch.float64), field.amplitudes()
    assert some.shape == theta.shape
    value = field(theta, x)
    torch.testing.assert_close(field(torch.where(some, 2 * theta, theta), x), 2 * value)
    assert not field(torch.where(some, 0.0, theta), x).any()
    for index in (~some).nonzero()[:, 0].tolist():
        other = theta.clone()
        other[index] *= 2
        assert not torch.allclose(field(other, x), value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", FIELDS)
def test_derivatives_match_autograd(kind: str) -> None:
    field = FIELDS[kind]()
    theta, x = drawn(field, 2), torch.randn(2, 5, 2, dtype=torch.float64, requires_grad=True)
    jet = field.jet_at(theta, x)
    value = field(theta, x)
    torch.testing.assert_close(jet.value, value, rtol=1e-12, atol=1e-12)
    for channel in range(field.out_dim):
        (slope,) = torch.autograd.grad(value[..., channel].sum(), x, create_graph=True)
        torch.testing.assert_close(jet.gradient[..., channel], slope, rtol=1e-11, atol=1e-11)
        second = sum(torch.autograd.grad(slope[..., k].sum(), x, retain_graph=True)[0][..., k] for k in range(2))
        torch.testing.assert_close(jet.laplacian[..., channel], second, rtol=1e-10, atol=1e-10)


def test_derivatives_match_finite_differences() -> None:
    field = FIELDS["siren"]()
    theta, x, h = drawn(field, 2), torch.randn(2, 5, 2, dtype=torch.float64), 1e-4
    jet = field.jet_at(theta, x)
    laplacian = torch.zeros_like(jet.laplacian)
    for k in range(2):
        by = h * torch.eye(2, dtype=torch.float64)[k]
        up, down = field(theta, x + by), field(theta, x - by)
        torch.testing.assert_close(jet.gradient[..., k, :], (up - down) / (2 * h), rtol=1e-5, atol=1e-4)
        laplacian += (up + down - 2 * jet.value) / h**2
    torch.testing.assert_close(jet.laplacian, laplacian, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kind", FIELDS)
def test_gradcheck_of_values_and_laplacian(kind: str) -> None:
    field = FIELDS[kind]()
    theta = drawn(field, 1).requires_grad_()
    x = torch.randn(1, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda theta, x: field.jet_at(theta, x).laplacian, (theta, x), fast_mode=True)


@pytest.mark.parametrize("kind", FIELDS)
def test_initial_parameters_have_the_stated_sizes(kind: str) -> None:
    field = FIELDS[kind]()
    theta = drawn(field, 400)
    assert theta.shape[-1] == field.num_parameters
    spread, found = theta.std(0), field.sizes().double()
    some = spread > 0  # biases of a last layer start at 0
    assert float((spread[some] / found[some] - 1).abs().max()) < 0.25


def test_initial_parameters_match_the_paper() -> None:
    field = fields.SIREN(2, 1)
    (first, phase), (second, _), (_, last) = field.layers(drawn(field, 50))
    assert 0.49 < first.abs().max().item() <= 0.5
    assert 0.99 < second.abs().max().item() / (math.sqrt(6 / 64) / 30) <= 1
    assert 0.98 < phase.abs().max().item() * 30 / math.pi <= 1
    assert not last.any()
    assert field.num_parameters == 4417


@pytest.mark.parametrize("frame", [fields.Isotropic(), fields.Affine(), fields.Rotational(average=True)])
@pytest.mark.parametrize("kind", FIELDS)
def test_placed_derivatives(kind: str, frame: fields.Frame) -> None:
    check_placed(FIELDS[kind](), frame, torch.randn(2, 9, 2, dtype=torch.float64))


def test_placed_derivatives_on_a_torus() -> None:
    check_placed(fields.SIREN(4, 2, width=5, omega_0=2.0), fields.Periodic(), torch.rand(2, 9, 2, dtype=torch.float64))


def check_placed(field: fields.Field, frame: fields.Frame, samples: Tensor) -> None:
    coordinates = frame.coordinates(Points(samples))
    frames = coordinates.origin.shape[1]
    reach = samples.new_ones(2, frames)
    placed = fields.PlacedField(field=field, parameters=drawn(field, 2, frames), coordinates=coordinates, reach=reach)
    x = torch.randn(2, 4, 2, dtype=torch.float64, requires_grad=True)
    jet = placed.jet(x)
    torch.testing.assert_close(jet.value, placed(x), rtol=1e-12, atol=1e-12)
    (slope,) = torch.autograd.grad(placed(x)[..., 0].sum(), x, create_graph=True)
    torch.testing.assert_close(jet.gradient[..., 0], slope, rtol=1e-10, atol=1e-10)
    second = sum(torch.autograd.grad(slope[..., k].sum(), x, retain_graph=True)[0][..., k] for k in range(2))
    torch.testing.assert_close(jet.laplacian[..., 0], second, rtol=1e-9, atol=1e-9)


def test_a_placed_field_is_the_field_in_its_frame() -> None:
    field = FIELDS["siren"]()
    frame = fields.Isotropic().coordinates(Points(3 + 2 * torch.randn(2, 9, 2, dtype=torch.float64)))
    placed = fields.PlacedField(
        field=field, parameters=drawn(field, 2, 1), coordinates=frame, reach=torch.tensor([[1.0], [2.0]])
    )
    x = torch.randn(5, 2, dtype=torch.float64)
    for entry in range(2):
        z = (x - frame.origin[entry, 0]) / frame.matrix[entry, 0, 0, 0]
        torch.testing.assert_close(placed(x)[entry], field(placed.parameters[entry, 0], z), rtol=1e-12, atol=1e-12)
        far = z.norm(dim=-1) > 1.5 * (entry + 1)
        assert torch.equal(placed.sample(x).is_far[entry], far)
    back = frame.denormalise(frame.normalise(x[None]))
    torch.testing.assert_close(back, x.expand(2, 1, -1, -1), rtol=1e-12, atol=1e-12)


def test_waves_in_a_frame_are_waves_in_space() -> None:
    field = fields.FreeSinusoidalField(2, 1, num_terms=5)
    frame = fields.Affine().coordinates(Points(torch.randn(2, 9, 2, dtype=torch.float64)))
    theta, x = drawn(field, 2, 1), torch.randn(2, 4, 2, dtype=torch.float64)
    placed = fields.PlacedField(field=field, parameters=theta, coordinates=frame, reach=torch.ones(2, 1))
    c, w, b = field.waves(theta)
    w, b = frame.waves(w, b)
    expected = torch.sin(x @ w[:, 0].mT + b[:, 0, None]) @ c[:, 0]
    torch.testing.assert_close(placed(x), expected, rtol=1e-11, atol=1e-11)


def test_low_precision_computes_in_float32() -> None:
    field = fields.SIREN(2, 1)
    theta, x = drawn(field, 1).float(), torch.rand(1, 9, 2)
    expected = field(theta, x)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(field(theta, x), expected)
    got = field(theta.bfloat16(), x.bfloat16())
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, field(theta.bfloat16().float(), x.bfloat16().float()))


def test_bad_arguments_are_refused() -> None:
    field = fields.SIREN(2, 1, width=4)
    with refused(ValueError, "37 parameters", "(3,)"):
        field(torch.zeros(3), torch.zeros(5, 2))
    with refused(ValueError, "(..., points, 2)", "(5, 3)"):
        field(torch.zeros(37), torch.zeros(5, 3))
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({"width": 0}, ["width", "got 0"]),
        ({"depth": 1}, ["depth", "got 1"]),
        ({"omega_0": math.inf}, ["omega_0", "inf"]),
    ]
    for settings, message in cases:
        with refused(ValueError, *message):
            fields.SIREN(2, **settings)
    with refused(ValueError, "sigma", "got 0.0"):
        fields.FreeSinusoidalField(2, sigma=0.0)
    frame = fields.Isotropic().coordinates(Points(torch.randn(2, 9, 2)))
    placed = fields.PlacedField(
        field=field, parameters=torch.zeros(2, 1, 37), coordinates=frame, reach=torch.ones(2, 1)
    )
    with refused(ValueError, "(points, 2)", "(2, points, 2)", "(3, 4, 2)"):
        placed(torch.zeros(3, 4, 2))
    with refused(ValueError, "NaN or infinite"):
        placed(torch.full((4, 2), math.nan))
    for call in (placed, placed.sample, placed.jet):
        with refused(ValueError, "x lies ", "e+36 sizes", "no digits"):
            call(torch.tensor([[0.0, -1e37]]))
    with refused(ValueError, "(2, 1, 37)", "(2, 37)"):
        placed.with_parameters(torch.zeros(2, 37))
    torus = fields.Periodic().coordinates(Points(torch.rand(9, 2)))
    with refused(ValueError, "no single position"):
        torus.denormalise(torch.zeros(1, 1, 3, 2))
    with refused(ValueError, "not linear in x"):
        torus.waves(torch.zeros(1, 1, 3, 2), torch.zeros(1, 1, 3))
