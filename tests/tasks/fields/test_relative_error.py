"""Relative errors: first derivatives are those of a grid; `test_operator_learning.py` tells the rest."""

import math

import pytest
import torch

from fredholm.domains import Grid, Points
from fredholm.tasks.fields.relative_error import slope_squares
from tests.refusals import refused


def test_slopes_on_a_circle_and_on_no_grid() -> None:
    grid = Grid(64, periodic=True)
    wave = torch.sin(2 * math.pi * grid.pos)[None]
    assert float(slope_squares(wave, grid)) == pytest.approx(64 * (2 * math.pi) ** 2 / 2, rel=0.01)
    with refused(ValueError, "loss='h1' takes differences", "which is no grid"):
        slope_squares(torch.rand(1, 5, 1), Points(torch.rand(5, 2)))
