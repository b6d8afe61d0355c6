import itertools
import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from fredholm.domains import Grid, Points, Sequence, Union, domain_of, whole_grid
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


@given(st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple), st.booleans())
def test_the_block_has_the_displacement_of_every_pair(shape: tuple[int, ...], periodic: bool) -> None:
    grid = Grid(*shape, periodic=periodic)
    found = grid.grid_blocks[0].displacements(grid.device)
    assert found.shape == (*(2 * n - 1 for n in shape), len(shape))
    assert not periodic or found.abs().max() <= 0.5
    cells = list(itertools.product(*map(range, shape)))
    between = grid.displacement(grid.pos)
    for (i, x), (j, y) in itertools.product(enumerate(cells), repeat=2):
        entry = tuple(b - a + n - 1 for a, b, n in zip(x, y, shape, strict=True))
        apart = found[entry] - between[i, j]
        # half a period has the same distance in both directions
        torch.testing.assert_close(apart - apart.round() if periodic else apart, torch.zeros_like(apart))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple), st.booleans())
def test_the_block_has_the_position_of_every_point(shape: tuple[int, ...], periodic: bool) -> None:
    grid = Grid(*shape, periodic=periodic)
    (block,) = grid.grid_blocks
    assert (block.start, block.num_points, block.periodic) == (0, grid.num_points, periodic)
    cells = torch.tensor(list(itertools.product(*map(range, block.shape))), dtype=torch.float64)
    pos = torch.tensor(block.origin, dtype=torch.float64) + cells * torch.tensor(block.spacing, dtype=torch.float64)
    torch.testing.assert_close(pos, grid.pos, rtol=0, atol=1e-15)


def test_blocks_are_compared_by_geometry_and_not_by_their_index() -> None:
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
def test_shapes_that_are_no_grid_are_refused(shape: tuple[int, ...]) -> None:
    with refused(ValueError, "Grid", "at least one cell", f"got {shape}"):
        Grid(*shape)
    with refused(ValueError, "Grid", "at least one cell"):
        Grid(*shape, periodic=True)


def test_a_given_lattice() -> None:
    grid = Grid(2, 3, spacing=(0.5, 0.1), origin=(-1.0, 2.0))
    expected = [[-1 + 0.5 * i, 2 + 0.1 * j] for i in range(2) for j in range(3)]
    torch.testing.assert_close(grid.pos, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-15)
    (block,) = grid.grid_blocks
    assert (block.spacing, block.origin) == (grid.spacing, grid.origin) == ((0.5, 0.1), (-1.0, 2.0))
    assert grid.weights.sum().item() == pytest.approx(1, abs=1e-15)


def test_a_spacing_alone_starts_half_a_cell_in_and_an_origin_alone_keeps_the_cells() -> None:
    torch.testing.assert_close(Grid(3, spacing=(1.0,)).pos[:, 0].tolist(), [0.5, 1.5, 2.5])
    torch.testing.assert_close(Grid(4, origin=(0.0,)).pos[:, 0].tolist(), [0.0, 0.25, 0.5, 0.75])
    torch.testing.assert_close(Grid(4, spacing=(0.25,), periodic=True).pos, Grid(4, periodic=True).pos)


@pytest.mark.parametrize("wrong", [(0.1,), (0.1, 0.0), (0.1, -1.0), (0.1, math.inf), (0.1, math.nan)])
def test_bad_spacings_are_refused(wrong: tuple[float, ...]) -> None:
    with refused(ValueError, "Grid: spacing is a finite number > 0 for each of the 2 axes", str(wrong)):
        Grid(2, 3, spacing=wrong)


@pytest.mark.parametrize("wrong", [(0.1,), (0.1, math.inf), (0.1, math.nan), ()])
def test_bad_origins_are_refused(wrong: tuple[float, ...]) -> None:
    with refused(ValueError, "Grid: origin is a finite number for each of the 2 axes", str(wrong)):
        Grid(2, 3, origin=wrong)


def test_a_torus_that_is_not_tiled_by_its_cells_is_refused() -> None:
    with refused(ValueError, "periodic grid tile the unit box", "(0.3,)"):
        Grid(3, spacing=(0.3,), periodic=True)


def test_the_grid_that_all_points_form() -> None:
    assert whole_grid(Grid(2, 3)) == Grid(2, 3).grid_blocks[0]
    assert whole_grid(Sequence(4)) == Sequence(4).grid_blocks[0]
    assert whole_grid(Points(torch.rand(3, 1))) is None
    assert whole_grid(Union(Grid(3), Points(torch.rand(1, 1).double()))) is None
    assert whole_grid(Union(Grid(3), Grid(3))) is None


def test_positions_of_a_grid_are_recognised() -> None:
    for grid in (Grid(4, 6), Grid(5), Grid(1, 7, spacing=(1.0, 0.25), origin=(2.0, -1.0)), Grid(3, 2, periodic=True)):
        found = domain_of(grid.pos, periodic=grid.is_periodic)
        assert isinstance(found, Grid)
        assert found.shape == grid.shape
        assert found.has_points_of(grid)
        assert found.is_periodic == grid.is_periodic
    assert isinstance(domain_of(Grid(4, 6).pos.expand(3, -1, -1).float()), Grid)


def test_other_positions_are_points() -> None:
    pos = Grid(4, 6).pos
    scattered = pos.clone()
    scattered[3, 0] += 1e-3
    batched = torch.stack([pos, scattered])
    for positions, batch in ((scattered, None), (pos.flip(0), None), (batched, 2), (pos[:-1].expand(2, -1, -1), None)):
        found = domain_of(positions)
        assert isinstance(found, Points)
        assert found.batch_size == batch
        assert torch.equal(found.pos, positions if batch else positions.reshape(-1, *pos.shape[1:])[: found.num_points])
    # a grid that leaves a gap is no torus
    assert isinstance(domain_of(Grid(4, spacing=(0.2,)).pos, periodic=True), Points)
    assert domain_of(pos[:0]).num_points == 0
    assert domain_of(pos, torch.arange(24) < 5).mask is not None


def test_positions_are_created_on_the_given_device() -> None:
    for domain in (Grid(2, 3, device="meta"), Sequence(5, device="meta"), Sequence(5, spacing=0.1, device="meta")):
        assert (domain.device.type, domain.weights.device.type) == ("meta", "meta")
        assert domain.is_generated
    assert Grid(2, mask=torch.ones(2, dtype=torch.bool, device="meta")).device.type == "meta"


def test_axes_and_spacings_of_another_form_are_refused() -> None:
    with refused(ValueError, "as in Grid(14, 14); got ((2, 3),)"):
        Grid((2, 3))  # pyright: ignore[reportArgumentType]
    with refused(TypeError, "spacing is a number for each axis, spacing=(0.1, 0.1); got 0.1"):
        Grid(2, 3, spacing=0.1)  # pyright: ignore[reportArgumentType]
    with refused(TypeError, "origin is a number for each axis, origin=(0, 0); got 0"):
        Grid(2, 3, origin=0)  # pyright: ignore[reportArgumentType]
