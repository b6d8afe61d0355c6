import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from fredholm.domains import Domain, Grid, Points, Sequence, Union
from tests.refusals import refused

MASS = (0.25, 0.75)


def masses(domain: Domain, first: int) -> Tensor:
    """Total mass of the first points and of the rest, `(..., 2)`."""
    parts = domain.weights[..., :first], domain.weights[..., first:]
    return torch.stack([part.sum(-1) for part in parts], dim=-1)


def test_points_of_the_first_part_come_before_those_of_the_second() -> None:
    points, grid = Points(torch.rand(3, 2)), Grid(2, 2)
    union = Union(points, grid)
    assert union.pos.dtype == torch.float64
    assert torch.equal(union.pos, torch.cat([points.pos.double(), grid.pos]))
    assert (union.num_points, union.pos_dim, union.mask, union.batch_size) == (7, 2, None, None)
    (block,) = union.grid_blocks
    assert block == grid.grid_blocks[0].shifted(3)
    assert [block.start for block in Union(grid, Union(points, grid)).grid_blocks] == [0, 7]


@given(st.data(), st.integers(1, 4), st.integers(1, 4))
def test_without_a_mass_two_uniform_parts_are_one_uniform_domain(data: st.DataObject, a: int, b: int) -> None:
    mask = torch.tensor(data.draw(st.lists(st.booleans(), min_size=a + b, max_size=a + b)))
    union = Union(Points(torch.rand(a, 1), mask=mask[:a]), Sequence(b, mask=mask[a:]))
    expected = mask.double() / max(int(mask.sum()), 1)
    torch.testing.assert_close(union.weights, expected)
    assert union.mask is not None
    assert torch.equal(union.mask, mask)


@given(st.data(), st.integers(1, 4), st.integers(1, 4))
def test_a_mass_is_spread_over_the_existing_points_of_each_part(data: st.DataObject, a: int, b: int) -> None:
    mask = torch.tensor(data.draw(st.lists(st.booleans(), min_size=2 * (a + b), max_size=2 * (a + b)))).view(2, a + b)
    parts = Points(torch.rand(a, 1)), Sequence(b)
    masked = Union(parts[0].restrict(mask[:, :a]), parts[1].restrict(mask[:, a:]), MASS)
    restricted = Union(*parts, MASS).restrict(mask)
    for union in (masked, restricted):
        for row, weights in zip(mask, union.weights, strict=True):
            for mass, exists, part in ((MASS[0], row[:a], weights[:a]), (MASS[1], row[a:], weights[a:])):
                torch.testing.assert_close(part, exists.double() * mass / max(int(exists.sum()), 1))


def test_given_weights_keep_their_ratios_within_their_part() -> None:
    weighted = Points(torch.rand(3, 1), weights=torch.tensor([1.0, 3.0, 0.0]))
    union = Union(weighted, Sequence(2), mass=(4.0, 1.0))
    assert union.weights.tolist() == pytest.approx([1.0, 3.0, 0.0, 0.5, 0.5])
    assert Union(weighted, Sequence(2)).weights.tolist() == pytest.approx([0.15, 0.45, 0.0, 0.2, 0.2])
    # given weights are kept when points are masked
    kept = union.restrict(torch.tensor([True, False, True, True, True]))
    assert kept.weights.tolist() == pytest.approx([1.0, 0.0, 0.0, 0.5, 0.5])


def test_weights_of_each_batch_entry_beside_a_part_without_a_batch() -> None:
    weights = torch.tensor([[1.0, 1.0], [3.0, 1.0]])
    union = Union(Sequence(1), Points(torch.rand(2, 1), weights=weights), mass=(0.5, 0.5))
    expected = torch.tensor([[0.5, 0.25, 0.25], [0.5, 0.375, 0.125]], dtype=torch.float64)
    torch.testing.assert_close(union.weights, expected)
    assert union.batch_size == 2


def test_a_part_without_existing_points_has_no_mass() -> None:
    gone = torch.zeros(2, dtype=torch.bool)
    weighted = Points(torch.rand(2, 1), weights=torch.ones(2), mask=gone)
    for first in (Sequence(2, mask=gone), weighted):
        union = Union(first, Sequence(2), MASS)
        assert union.weights.tolist() == pytest.approx([0.0, 0.0, 0.375, 0.375])
        assert Union(first, Sequence(2)).weights.tolist() == pytest.approx([0.0, 0.0, 0.5, 0.5])
        assert Union(first, Sequence(2, mask=gone)).weights.tolist() == [0.0] * 4
        assert Union(first, weighted, MASS).weights.tolist() == [0.0] * 4


def test_positions_of_each_batch_entry_beside_shared_ones() -> None:
    points, grid = Points(torch.rand(3, 2, 2)), Grid(2, 2)
    union = Union(grid, points)
    assert (union.pos.shape, union.batch_size) == ((3, 6, 2), 3)
    for entry in range(3):
        assert torch.equal(union.pos[entry], torch.cat([grid.pos, points.pos[entry].double()]))
    mask = torch.tensor([[True, False]] * 3)
    masked = Union(grid, points.restrict(mask))
    assert masked.mask is not None
    assert masked.mask.tolist() == [[True] * 5 + [False]] * 3


def test_nested_unions_share_mass_level_by_level() -> None:
    inner = Union(Sequence(2), Sequence(3), mass=(0.4, 0.6))
    outer = Union(inner, Sequence(5), mass=(0.5, 0.5))
    expected = [0.1] * 2 + [0.1] * 3 + [0.1] * 5
    assert outer.weights.tolist() == pytest.approx(expected)
    assert outer.pos.shape == (10, 1)
    assert [(block.start, block.num_points) for block in outer.grid_blocks] == [(0, 2), (2, 3), (5, 5)]
    # each part keeps its mass when points are masked
    mask = torch.tensor([True, False, True, True, True, True, False, False, False, False])
    assert outer.restrict(mask).weights.tolist() == pytest.approx([0.2, 0, 0.1, 0.1, 0.1, 0.5, 0, 0, 0, 0])
    # masses by numbers of points: the inner union has 5 of 10 points
    by_number = Union(Union(Sequence(2), Sequence(3), mass=(0.1, 0.9)), Sequence(5))
    assert by_number.weights.tolist() == pytest.approx([0.025] * 2 + [0.15] * 3 + [0.1] * 5)
    flat = Union(Union(Sequence(2), Sequence(3)), Sequence(5))
    assert flat.weights.tolist() == pytest.approx([0.1] * 10)
    gone = flat.restrict(torch.tensor([True] * 4 + [False] * 6))
    assert gone.weights.tolist() == pytest.approx([0.25] * 4 + [0.0] * 6)


def test_a_union_of_any_mass_is_scaled_to_its_mass_as_a_part() -> None:
    for inner in ((2.0, 6.0), (0.1, 0.3)):
        outer = Union(Union(Sequence(2), Sequence(3), mass=inner), Sequence(5), mass=(0.5, 0.5))
        assert outer.weights.tolist() == pytest.approx([0.0625] * 2 + [0.125] * 3 + [0.1] * 5)
        kept = outer.restrict(torch.tensor([True, False] + [True] * 8))
        assert kept.weights.tolist() == pytest.approx([0.125, 0] + [0.125] * 3 + [0.1] * 5)
    nothing = Union(Union(Sequence(2), Sequence(3), mass=(0.0, 0.0)), Sequence(5), mass=(0.5, 0.5))
    assert nothing.weights.tolist() == pytest.approx([0.0] * 5 + [0.1] * 5)


def test_masses_of_each_batch_entry() -> None:
    mass = torch.tensor([[0.5, 0.5], [0.0, 1.0], [2.0, 1.0]], dtype=torch.float64)
    exists = torch.tensor([[True, True], [True, True], [True, False]])
    for first in (Sequence(2, mask=exists), Points(torch.rand(2, 1), weights=torch.tensor([1.0, 3.0]), mask=exists)):
        union = Union(first, Sequence(4), mass=mass)
        assert (union.batch_size, union.weights.shape) == (3, (3, 6))
        torch.testing.assert_close(masses(union, 2), mass)
        for entry in range(3):
            alone = Union(first.restrict(exists[entry]), Sequence(4), mass=mass[entry].tolist())
            torch.testing.assert_close(union.weights[entry], alone.weights.expand(3, -1)[entry])
    even = Union(Sequence(2, mask=exists), Sequence(4), mass=mass / mass.sum(-1, keepdim=True))
    assert even.counts.sum(-1).tolist() == pytest.approx([6, 6, 5])
    # the same for the remaining points, whether points are masked before or after
    kept = torch.tensor([[True, True, False, True, True, True]]).expand(3, -1)
    whole = Union(Sequence(2), Sequence(4), mass=torch.full((3, 2), 0.5, dtype=torch.float64))
    for joined, shares in ((even, mass / mass.sum(-1, keepdim=True)), (whole, torch.full((3, 2), 0.5))):
        found = joined.restrict(kept)
        for entry in range(3):
            parts = Sequence(2, mask=None if joined is whole else exists[entry]), Sequence(4)
            alone = Union(*parts, mass=shares[entry].tolist()).restrict(kept[entry])
            torch.testing.assert_close(found.weights[entry], alone.weights)
            torch.testing.assert_close(found.counts[entry], alone.counts)
    # given weights are not rescaled
    weighted = Union(first, Sequence(4), mass=mass)
    torch.testing.assert_close(weighted.counts, weighted.weights)


def test_masses_have_gradients() -> None:
    mass = torch.tensor([[0.25, 0.75]], dtype=torch.float64, requires_grad=True)
    Union(Sequence(2), Sequence(3), mass=mass).weights[0, 2].backward()
    assert mass.grad is not None
    assert mass.grad.tolist() == [[0.0, pytest.approx(1 / 3)]]


@pytest.mark.parametrize("mass", [(0.0, 1.0), (2.0, 3.0), [0.5, 0.5], (1, 0)])
def test_masses_of_any_size(mass: tuple[float, float]) -> None:
    assert masses(Union(Sequence(3), Sequence(4), mass), 3).tolist() == pytest.approx(list(mass))


def test_positions_of_another_dimension_are_refused() -> None:
    with refused(ValueError, "one dimension", "1 and 2"):
        Union(Sequence(3), Grid(2, 2))


def test_another_device_is_refused() -> None:
    with refused(ValueError, "one device", "cpu and meta"):
        Union(Sequence(3), Sequence(3).to("meta"))


def test_periodic_parts() -> None:
    for parts in ((Grid(3, periodic=True), Grid(3)), (Grid(3), Grid(3, periodic=True))):
        with refused(ValueError, "periodic"):
            Union(*parts)


@pytest.mark.parametrize(
    "mass",
    [(1.0,), (0.2, 0.3, 0.5), (-0.1, 1.1), (1.1, -0.1), (float("nan"), 1.0), (1.0, float("nan")), (1.0, float("inf"))],
)
def test_bad_masses_are_refused(mass: tuple[float, float]) -> None:
    with refused(ValueError, "one finite number >= 0 for each of the two parts", f"got {mass}"):
        Union(Sequence(2), Sequence(3), mass)


def test_one_mass_for_two_parts_is_refused() -> None:
    with refused(TypeError, "one finite number >= 0 for each of the two parts", "got 1.0"):
        Union(Sequence(2), Sequence(3), 1.0)  # pyright: ignore[reportArgumentType]


def test_bad_tensors_of_masses_are_refused() -> None:
    parts = Sequence(3), Points(torch.rand(2, 4, 1))
    for shape in ((2,), (2, 3), (3, 2)):
        with refused(ValueError, "a tensor of masses is (2, 2)", f"got {shape}"):
            Union(*parts, mass=torch.ones(shape))
    with refused(TypeError, "masses must be floats; got torch.int64"):
        Union(*parts, mass=torch.ones(2, 2, dtype=torch.int64))
    for wrong in (-0.5, float("nan"), float("inf")):
        with refused(ValueError, "not finite or below 0"):
            Union(*parts, mass=torch.tensor([[1.0, wrong], [0.5, 0.5]]))


@pytest.mark.parametrize("mass", [None, MASS])
def test_a_part_that_counts_each_point_keeps_its_count_in_a_union(mass: tuple[float, float] | None) -> None:
    shares = torch.tensor([[0.2, 0.3, 0.5], [1.0, 1.0, 0.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, True], [True, True, False]])
    even = Points(torch.rand(3, 1).double(), shares, mask).counting_each()
    assert torch.equal(even.counts.sum(-1), torch.tensor([3.0, 2.0]).double())
    union = Union(Points(torch.rand(2, 1).double()), even, mass)
    torch.testing.assert_close(union.weights.sum(-1), torch.ones(2).double())
    torch.testing.assert_close(union.counts.sum(-1), torch.tensor([5.0, 4.0]).double())
    alike = Points(even.pos, torch.full((3,), 1 / 3).double()).counting_each()
    both = (Union(Points(torch.rand(2, 1).double()), part, mass).counts for part in (alike, Points(even.pos)))
    torch.testing.assert_close(*both)


def test_a_part_that_is_no_domain_is_refused() -> None:
    for parts in ((Sequence(2), torch.rand(2, 1)), (torch.rand(2, 1), Sequence(2))):
        with refused(TypeError, "Union", "domain", "got Tensor"):
            Union(*parts)  # pyright: ignore[reportArgumentType]


def test_parts_of_different_batch_sizes_are_refused() -> None:
    two, four = Points(torch.rand(2, 3, 1)), torch.ones(4, 3)
    for other in (Points(torch.rand(4, 3, 1)), Sequence(3, mask=four.bool()), Sequence(3, weights=four)):
        for mass in (None, MASS):
            with refused(ValueError, "batch sizes", "2", "4"):
                Union(two, other, mass)


def test_three_parts_are_refused() -> None:
    with refused(TypeError, "joins two domains", "Union(Union(a, b), c)"):
        Union(Grid(2), Grid(2), Grid(2))  # pyright: ignore[reportArgumentType]
