import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fredholm.quadrature.draw import Draw, curve_order, invert, levels

DRAWS: tuple[Draw, ...] = ("independent", "stratified", "quasi_random")


@pytest.mark.parametrize("draw", DRAWS)
def test_levels_are_ascending_and_have_uniform_density(draw: Draw) -> None:
    level = levels(4000, 3, num_samples=5, draw=draw, device=torch.device("cpu"))
    assert level.shape == (4000, 3, 5)
    assert (level >= 0).all()
    assert (level < 1).all()
    assert (level.diff(dim=-1) >= 0).all()
    counts = torch.histc(level, bins=10, min=0, max=1) / level.numel()
    torch.testing.assert_close(counts, torch.full_like(counts, 0.1), atol=4e-3, rtol=0)


def test_one_level_in_each_stratum() -> None:
    level = levels(100, num_samples=7, draw="stratified", device=torch.device("cpu"))
    torch.testing.assert_close((level * 7).floor(), torch.arange(7.0, dtype=torch.float64).expand(100, -1))
    lattice = levels(100, num_samples=7, draw="quasi_random", device=torch.device("cpu"))
    torch.testing.assert_close(lattice.diff(dim=-1), torch.full((100, 6), 1 / 7, dtype=torch.float64))
    assert lattice[:, 0].std() > 0.03


@pytest.mark.parametrize("draw", DRAWS)
def test_points_come_as_often_as_their_mass_says(draw: Draw) -> None:
    mass = torch.tensor([0.0, 0.5, 0.0, 2.0, 1.0, 0.0, 0.25, 0.0], dtype=torch.float64)
    running = mass.cumsum(0).expand(20000, -1)
    level = levels(20000, num_samples=3, draw=draw, device=torch.device("cpu"))
    index = invert(running, level, running[..., -1:])
    counts = torch.bincount(index.flatten(), minlength=8).double() / index.numel()
    torch.testing.assert_close(counts, mass / mass.sum(), atol=6e-3, rtol=0)
    assert (counts[mass == 0] == 0).all()


@given(st.lists(st.sampled_from([0.0, 1e-300, 1e-9, 1.0, 1e9]), min_size=1, max_size=9), st.integers(0, 2**32))
def test_no_level_reaches_a_point_without_mass(masses: list[float], seed: int) -> None:
    mass = torch.tensor(masses, dtype=torch.float64)
    if mass.sum() == 0:
        return
    generator = torch.Generator().manual_seed(seed)
    level = torch.cat([torch.rand(50, generator=generator, dtype=torch.float64), torch.tensor([0.0, 1 - 2**-53])])
    running = mass.cumsum(0)
    assert (mass[invert(running, level, running[-1:])] > 0).all()


def test_a_smaller_total_stops_before_later_points() -> None:
    mass = torch.tensor([1.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    running = mass.cumsum(0)[None]
    level = torch.tensor([0.0, 0.5, 1 - 2**-53], dtype=torch.float64)[None, None].expand(1, 2, 3)
    total = torch.tensor([[[1.0], [2.0]]], dtype=torch.float64)
    assert invert(running, level, total).tolist() == [[[0, 0, 0], [0, 2, 2]]]


def test_the_curve_keeps_neighbours_together() -> None:
    side = torch.arange(8, dtype=torch.float64)
    pos = torch.stack(torch.meshgrid(side, side, indexing="ij"), -1).view(1, 64, 2)
    order = curve_order(pos)
    assert sorted(order[0].tolist()) == list(range(64))
    quarters = pos[0, order[0]].view(4, 16, 2)  # a Morton curve goes through one quarter of the square after the other
    assert (quarters.amax(1) - quarters.amin(1) == 3).all()


@pytest.mark.parametrize("dims", [1, 3, 7, 70])
def test_the_curve_orders_any_dimension_and_coinciding_points(dims: int) -> None:
    pos = torch.rand(2, 11, dims, dtype=torch.float64)
    pos[1] = 0.25
    order = curve_order(pos)
    assert sorted(order[0].tolist()) == list(range(11))
    assert order[1].tolist() == list(range(11))
    if dims == 1:
        assert order[0].tolist() == pos[0, :, 0].argsort().tolist()
