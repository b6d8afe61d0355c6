"""Refining placed fields: they approach their samples, each independently, and bad arguments are refused."""

import pytest
import torch
from torch import Tensor

from fredholm import fields, models
from fredholm.domains import Points
from tests.refusals import refused


def placed(batch: int = 3) -> tuple[fields.PlacedField, Tensor, Tensor]:
    """Fields of an untrained operator, with positions and values `(batch, 9, 2)` and `(batch, 9, 1)`."""
    torch.manual_seed(0)
    config = models.FieldOperator.Config(embed_dim=8, depth=1, num_heads=2, num_seeds=2, head_dim=8, num_frequencies=3)
    op = models.FieldOperator(2, fields.SIREN(2, width=8, omega_0=5.0), fields.Isotropic(), config).double()
    x, y = torch.rand(batch, 9, 2).double(), torch.randn(batch, 9, 1).double()
    with torch.no_grad():
        return op(y, Points(x)), x, y


def errors(field: fields.PlacedField, x: Tensor, y: Tensor) -> Tensor:
    return (field(x) - y).square().mean((1, 2))


def test_errors_decrease_and_frames_and_operator_stay_unchanged() -> None:
    start, x, y = placed()
    before = start.parameters.clone()
    found = fields.refine(start, x, y, steps=150, rate=0.05)
    assert bool((errors(found, x, y) < 0.1 * errors(start, x, y)).all())
    assert torch.equal(start.parameters, before)
    assert found.coordinates is start.coordinates
    assert not found.parameters.requires_grad


def test_zero_steps_change_nothing() -> None:
    start, x, y = placed()
    assert torch.equal(fields.refine(start, x, y, steps=0).parameters, start.parameters)


def test_refining_is_equivariant() -> None:
    start, x, y = placed()
    origin, matrix, inverse, _ = start.coordinates
    moved = fields.PlacedField(
        field=start.field,
        parameters=start.parameters,
        coordinates=fields.Coordinates(2 * origin + 1, 2 * matrix, inverse / 2),
        reach=start.reach,
    )
    a, b = fields.refine(start, x, y, steps=20), fields.refine(moved, 2 * x + 1, y, steps=20)
    torch.testing.assert_close(a(x), b(2 * x + 1), rtol=1e-9, atol=1e-9)


def test_each_field_is_fitted_independently_and_to_valid_samples() -> None:
    start, x, y = placed()
    mask = torch.ones(3, 9, dtype=torch.bool)
    mask[1, 5:] = False
    broken = torch.where(mask[..., None], y, torch.nan)
    together = fields.refine(start, x, broken, mask, steps=20)
    for i in range(3):
        one = fields.PlacedField(
            field=start.field,
            parameters=start.parameters[i : i + 1],
            coordinates=fields.Coordinates(
                start.coordinates.origin[i : i + 1],
                start.coordinates.matrix[i : i + 1],
                start.coordinates.inverse[i : i + 1],
            ),
            reach=start.reach[i : i + 1],
        )
        kept = mask[i]
        alone = fields.refine(one, x[i : i + 1, kept], y[i : i + 1, kept], steps=20)
        torch.testing.assert_close(together.parameters[i], alone.parameters[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("settings", "message"), [({"steps": -1}, "steps >= 0"), ({"steps": 1, "rate": 0.0}, "rate > 0; got 1 and 0.0")]
)
def test_bad_settings_are_refused(settings: dict[str, float], message: str) -> None:
    start, x, y = placed()
    with refused(ValueError, message):
        fields.refine(start, x, y, **settings)  # pyright: ignore[reportArgumentType]


def test_values_of_the_wrong_shape_are_refused() -> None:
    start, x, y = placed()
    with refused(ValueError, "y must be (3, 9, 1), a value a sample; got (3, 8, 1)"):
        fields.refine(start, x, y[:, :8], steps=1)
