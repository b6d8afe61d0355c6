import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.interpolate import CubicSpline, RBFInterpolator
from torch import Tensor, nn

from fredholm import fields, models
from fredholm.domains import Points
from fredholm.fields.placed_field import PlacedField
from tests.refusals import refused


def placed(x: Tensor, frame: fields.Frame, out_dim: int = 1, *, is_zero: bool = True) -> PlacedField:
    """Fields in the frames of samples, 0 everywhere or with random parameters."""
    torch.manual_seed(0)
    sizes = models.FieldOperator.Config(embed_dim=8, depth=1, num_heads=2, num_seeds=2, head_dim=8, num_frequencies=2)
    field = fields.SIREN(x.shape[-1] * frame.coordinates_per_axis, out_dim, width=4, depth=2, omega_0=2.0)
    operator = models.FieldOperator(x.shape[-1], field, frame, sizes).double()
    found = operator(torch.ones(*x.shape[:2], out_dim, dtype=x.dtype), Points(x))
    return found.with_parameters(torch.zeros_like(found.parameters)) if is_zero else found


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_for_a_zero_field_it_is_the_spline_of_scipy(axes: int) -> None:
    draw = np.random.default_rng(0)
    x, y, queries = draw.normal(size=(2, 11, axes)), draw.normal(size=(2, 11, 2)), draw.normal(size=(2, 7, axes))
    empty = placed(torch.from_numpy(x), fields.Isotropic(), 2)
    found = fields.splined(empty, torch.from_numpy(x), torch.from_numpy(y))(torch.from_numpy(queries))
    for own, at, values, places in zip(found, x, y, queries, strict=True):
        expected = RBFInterpolator(at, values, kernel="cubic")(places)
        torch.testing.assert_close(own, torch.from_numpy(expected), rtol=1e-5, atol=1e-5)


def test_on_a_line_it_is_the_natural_cubic_spline() -> None:
    x = torch.tensor([0.0, 0.3, 1.0, 1.2, 2.0], dtype=torch.float64)
    y, queries = x.sin(), torch.linspace(0, 2, 9, dtype=torch.float64)
    empty = placed(x[None, :, None], fields.Isotropic())
    found = fields.splined(empty, x[None, :, None], y[None, :, None])(queries[None, :, None])
    expected = CubicSpline(x.numpy(), y.numpy(), bc_type="natural")(queries.numpy())
    torch.testing.assert_close(found.flatten(), torch.from_numpy(expected), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("frame", [fields.Isotropic(), fields.Rotational(average=True), fields.Periodic()])
def test_for_any_field_it_interpolates_the_valid_samples(frame: fields.Frame) -> None:
    torch.manual_seed(1)
    x, y = torch.rand(2, 9, 2, dtype=torch.float64), torch.randn(2, 9, 3, dtype=torch.float64)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[1, 6:] = False
    field = placed(x, frame, 3, is_zero=False)
    poisoned = torch.where(mask[..., None], y, torch.nan)
    found = fields.splined(field, x, poisoned, mask)(x)
    torch.testing.assert_close(found[mask], y[mask], rtol=1e-6, atol=1e-6)
    fewer = fields.splined(
        PlacedField(
            field=field.field,
            parameters=field.parameters[1:],
            coordinates=field.coordinates._replace(
                origin=field.coordinates.origin[1:],
                matrix=field.coordinates.matrix[1:],
                inverse=field.coordinates.inverse[1:],
            ),
            reach=field.reach[1:],
        ),
        x[1:, :6],
        y[1:, :6],
    )
    queries = torch.rand(1, 5, 2, dtype=torch.float64)
    both = fields.splined(field, x, poisoned, mask)(queries.expand(2, -1, -1))
    torch.testing.assert_close(both[1:], fewer(queries), rtol=1e-8, atol=1e-8)


COVARIANCES: dict[str, Any] = {
    "exponential": lambda t: np.exp(-t),
    "matern32": lambda t: (1 + 3**0.5 * t) * np.exp(-(3**0.5) * t),
    "matern52": lambda t: (1 + 5**0.5 * t + 5 / 3 * t**2) * np.exp(-(5**0.5) * t),
    "gaussian": lambda t: np.exp(-(t**2) / 2),
}


@pytest.mark.parametrize("name", COVARIANCES)
def test_with_a_covariance_it_is_universal_kriging(name: Any) -> None:
    draw = np.random.default_rng(0)
    x, y, queries = draw.normal(size=(11, 2)), draw.normal(size=(11, 3)), draw.normal(size=(7, 2))
    empty, radial = placed(torch.from_numpy(x)[None], fields.Isotropic(), 3), fields.Radial(name=name, length=0.7)
    given = [torch.from_numpy(each)[None] for each in (x, y, queries)]
    found = fields.splined(empty, *given[:2], smoothing=0.1, radial=radial)(given[2])
    size = np.sqrt(((x - x.mean(0)) ** 2).sum(1).mean())

    def covariance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return COVARIANCES[name](np.linalg.norm(a[:, None] - b, axis=-1) / size / 0.7)

    trend = [np.concatenate([each, np.ones((len(each), 1))], 1) for each in (x, queries)]
    inverse = np.linalg.inv(covariance(x, x) + 0.1 * np.eye(11))
    slope = np.linalg.solve(trend[0].T @ inverse @ trend[0], trend[0].T @ inverse @ y)  # generalised least squares
    expected = trend[1] @ slope + covariance(queries, x) @ inverse @ (y - trend[0] @ slope)
    torch.testing.assert_close(found[0], torch.from_numpy(expected), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", ["cubic", *COVARIANCES])
def test_derivatives_at_its_own_nodes(name: Any) -> None:
    """For covariances near the nodes, since some have no derivative at them."""
    torch.manual_seed(2)
    x = torch.rand(1, 6, 2, dtype=torch.float64)
    radial = fields.Radial(name=name, length=None if name == "cubic" else 0.8)
    found = fields.splined(placed(x, fields.Isotropic(), is_zero=False), x, x[..., :1].sin(), radial=radial)
    theta = found.parameters.detach().requires_grad_()
    at = (x if name == "cubic" else x + 0.03).clone().requires_grad_()
    jet = found.with_parameters(theta).jet(at)
    (slope,) = torch.autograd.grad(found(at).sum(), at, create_graph=True)
    torch.testing.assert_close(jet.gradient[..., 0].flatten(), slope.flatten(), rtol=1e-8, atol=1e-8)
    second = [torch.autograd.grad(slope[..., axis].sum(), at, retain_graph=True)[0][..., axis] for axis in (0, 1)]
    torch.testing.assert_close(jet.laplacian.flatten(), torch.stack(second).sum(0).flatten(), rtol=1e-8, atol=1e-8)
    for part in (jet.value, jet.gradient, jet.laplacian):
        for leaf in (theta, at):
            (own,) = torch.autograd.grad(part.sum(), leaf, retain_graph=True)
            direction = torch.randn_like(leaf)
            step = 1e-6 * direction

            def compute(sign: float, leaf: Tensor = leaf, step: Tensor = step) -> tuple[Tensor, ...]:
                moved = {"theta": theta.detach(), "at": at.detach()}
                moved["theta" if leaf is theta else "at"] = leaf.detach() + sign * step
                return tuple(found.with_parameters(moved["theta"]).jet(moved["at"]))

            place = next(i for i, each in enumerate(jet) if each is part)
            expected = (compute(1.0)[place].sum() - compute(-1.0)[place].sum()) / 2e-6
            torch.testing.assert_close((own * direction).sum(), expected, rtol=1e-4, atol=1e-5)


def test_smoothing_leads_to_the_least_squares_plane() -> None:
    torch.manual_seed(2)
    x = torch.rand(1, 20, 2, dtype=torch.float64)
    y = x @ torch.tensor([[2.0], [-1.0]], dtype=torch.float64) + 0.5 + 0.1 * torch.randn(1, 20, 1, dtype=torch.float64)
    empty, queries = placed(x, fields.Isotropic()), torch.rand(1, 6, 2, dtype=torch.float64)
    errors = [float((fields.splined(empty, x, y, smoothing=s)(x) - y).norm()) for s in (0.0, 1e-3, 1.0, 1e6)]
    assert errors == sorted(errors)
    sides = torch.cat([x[0], torch.ones(20, 1, dtype=torch.float64)], 1)
    plane = torch.linalg.lstsq(sides, y[0]).solution
    expected = torch.cat([queries[0], torch.ones(6, 1, dtype=torch.float64)], 1) @ plane
    torch.testing.assert_close(fields.splined(empty, x, y, smoothing=1e6)(queries)[0], expected, rtol=1e-4, atol=1e-4)


def test_samples_at_one_point_or_on_one_line_are_interpolated() -> None:
    line = torch.linspace(0, 1, 6, dtype=torch.float64)[:, None] * torch.ones(1, 2, dtype=torch.float64)
    for x in (line, torch.cat([line, line]), line[:1]):
        empty = placed(x[None], fields.Identity())
        found = fields.splined(empty, x[None], x[None, :, :1])
        torch.testing.assert_close(found(x[None])[0], x[:, :1], rtol=1e-5, atol=1e-5)


def test_it_is_differentiable_in_the_field_and_equivariant() -> None:
    torch.manual_seed(3)
    x, y = torch.rand(2, 9, 2, dtype=torch.float64), torch.randn(2, 9, 1, dtype=torch.float64)
    field = placed(x, fields.Isotropic(), is_zero=False)
    theta = field.parameters.detach().requires_grad_()
    queries = torch.rand(2, 4, 2, dtype=torch.float64)

    def compute(theta: Tensor) -> Tensor:
        return fields.splined(field.with_parameters(theta), x, y)(queries)

    assert torch.autograd.gradcheck(compute, theta, atol=1e-5)
    angle = torch.tensor(0.7, dtype=torch.float64)
    turn = torch.stack([torch.stack([angle.cos(), -angle.sin()]), torch.stack([angle.sin(), angle.cos()])])
    empty, turned = placed(x, fields.Isotropic()), placed(3 * x @ turn.mT + 1, fields.Isotropic())
    one, other = (
        fields.splined(empty, x, y)(queries),
        fields.splined(turned, 3 * x @ turn.mT + 1, y)(3 * queries @ turn.mT + 1),
    )
    torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


def test_a_graph_takes_any_number_of_samples_and_queries() -> None:
    class Splined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            field = fields.SIREN(2, 1, width=4, depth=2, omega_0=2.0)
            sizes = models.FieldOperator.Config(embed_dim=8, depth=1, num_heads=2, num_seeds=2, head_dim=8)
            self.operator = models.FieldOperator(2, field, fields.Isotropic(), sizes)

        def forward(self, x: Tensor, y: Tensor, queries: Tensor) -> Tensor:
            return fields.splined(self.operator(y, Points(x)), x, y)(queries)

    torch.manual_seed(0)
    model, many = Splined().eval(), torch.export.Dim.DYNAMIC
    shapes = ({0: many, 1: many}, {0: many, 1: many}, {0: many, 1: many})
    given, other = (
        (torch.rand(b, n, 2), torch.rand(b, n, 1), torch.rand(b, p, 2)) for b, n, p in ((2, 9, 5), (3, 4, 7))
    )
    program = torch.export.export(model, given, dynamic_shapes=shapes)
    torch.testing.assert_close(program.module()(*other), model(*other))


def test_bad_arguments_are_refused() -> None:
    x = torch.rand(1, 5, 2, dtype=torch.float64)
    for smoothing in (-1.0, math.inf):
        with refused(ValueError, "smoothing", str(smoothing)):
            fields.splined(placed(x, fields.Isotropic()), x, x[..., :1], smoothing=smoothing)
    with refused(ValueError, "num_nodes"):
        fields.SplinedField(fields.SIREN(2), 0)
    with refused(ValueError, "fields.Radial: length is None, and name 'gaussian'; expected a finite length above 0"):
        fields.Radial(name="gaussian")
    with refused(ValueError, "fields.Radial: length is 0.5, and name 'cubic', which has none; leave it out"):
        fields.Radial(length=0.5)
