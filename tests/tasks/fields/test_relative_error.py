"""Relative errors and moments; `test_operator_learning.py` has the other tests."""

import math

import pytest
import torch

from fredholm.domains import Grid, Points
from fredholm.tasks.fields.batches import Scale, moments
from fredholm.tasks.fields.field_set import Samples
from fredholm.tasks.fields.relative_error import relative_errors, slope_squares
from tests.refusals import refused


def test_slopes_on_a_circle_and_off_a_grid() -> None:
    grid = Grid(64, periodic=True)
    wave = torch.sin(2 * math.pi * grid.pos)[None]
    assert float(slope_squares(wave, grid)) == pytest.approx(64 * (2 * math.pi) ** 2 / 2, rel=0.01)
    with refused(ValueError, "loss='h1' takes differences", "which is no grid"):
        slope_squares(torch.rand(1, 5, 1), Points(torch.rand(5, 2)))


@pytest.mark.parametrize("steps", [1, 2])
def test_channels_of_zeros_are_measured_relative_to_the_deviation(steps: int) -> None:
    mean, deviation = (5.1, -0.3), (0.37, 0.7)
    scale = Scale(mean, deviation)
    drawn = torch.Generator().manual_seed(0)
    truth, change = (torch.randn(3, 5, 2 * steps, generator=drawn).double() for _ in range(2))
    truth[0], truth[1, :, 0] = 0.0, 0.0
    exists = torch.arange(5) < torch.tensor([[5], [3], [1]])
    targets = scale.standardised(truth)
    found = relative_errors(targets + change.float(), targets, exists, scale, None)
    for i, n in enumerate((5, 3, 1)):
        each = []
        for c in range(2 * steps):
            u, d = truth[i, :n, c], deviation[c % 2]
            each.append(d * change[i, :n, c].norm() / (u.norm() if u.any() else d * n**0.5))
        assert float(found[i]) == pytest.approx(float(sum(each)) / len(each), rel=1e-4)


def test_moments_in_small_units_and_of_constants() -> None:
    drawn = torch.Generator().manual_seed(0)
    values = torch.rand(7, 11, 2, generator=drawn, dtype=torch.float64) * torch.tensor([1e-15, 0.0])
    values[..., 1] += 1e5 + 0.1
    mask = torch.rand(7, 11, generator=drawn) < 0.8
    samples = Samples(torch.rand(7, 11, 1, generator=drawn).double(), values, mask)
    found = moments(lambda: [samples])
    known = values[mask][:, 0]
    assert found.mean == pytest.approx((float(known.mean()), 1e5 + 0.1), rel=1e-9, abs=0)
    assert found.deviation == pytest.approx((float(known.std(correction=0)), 1.0), rel=1e-9, abs=0)
