import itertools
import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from fredholm.domains import Grid
from tests.refusals import refused


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple), st.booleans())
def test_cell_centres_in_row_major_order(shape: tuple[int, ...], periodic: bool) -> None:
    grid = Grid(*shape, periodic=periodic)
    expected = [
        [(i + 0.5) / n for i, n in zip(cell, shape, strict=True)]
        for cell in itertools.product(*map(range, shape))  # the last axis runs fastest
    ]
    assert grid.pos.dtype == torch.float64
    torch.testing.assert_close(grid.pos, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-15)
    assert grid.shape == shape
    assert (grid.num_points, grid.pos_dim, grid.batch_size) == (math.prod(shape), len(shape), None)
    assert grid.is_periodic == periodic
    assert grid.spacing == pytest.approx([1 / n for n in shape])


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple), st.booleans())
def test_the_block_says_where_every_point_lies(shape: tuple[int, ...], periodic: bool) -> None:
    grid = Grid(*shape, periodic=periodic)
    (block,) = grid.grid_blocks
    assert (block.start, block.num_points, block.periodic) == (0, grid.num_points, periodic)
    cells = torch.tensor(list(itertools.product(*map(range, block.shape))), dtype=torch.float64)
    pos = torch.tensor(block.origin, dtype=torch.float64) + cells * torch.tensor(block.spacing, dtype=torch.float64)
    torch.testing.assert_close(pos, grid.pos, rtol=0, atol=1e-15)


def test_blocks_are_compared_by_geometry_not_by_place() -> None:
    (block,), (other,) = Grid(2, 3).grid_blocks, Grid(3, 2).grid_blocks
    (torus,) = Grid(2, 3, periodic=True).grid_blocks
    assert block.same_geometry(block.shifted(5))
    assert block.shifted(5).start == 5
    assert not block.same_geometry(other)
    assert not block.same_geometry(torus)


def test_the_default_measure_is_the_midpoint_rule() -> None:
    for n in (4, 8):
        grid = Grid(n, n)
        x, y = grid.pos.unbind(-1)
        exact, error = 1 / 12, ((x**2 * y**3) * grid.weights).sum().item() - 1 / 12
        assert 0 < abs(error) < exact / n**2
    assert Grid(5, 7).weights.sum().item() == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (-1,), (2.0,), ("3",), (True, 3), (None,)])
def test_shapes_that_are_no_grid(shape: tuple[int, ...]) -> None:
    with refused(ValueError, "Grid", "at least one cell", f"got {shape}"):
        Grid(*shape)
    with refused(ValueError, "Grid", "at least one cell"):
        Grid(*shape, periodic=True)
