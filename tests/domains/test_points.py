import pytest
import torch

from fredholm.domains import Grid, Points, Sequence, subset
from tests.refusals import refused

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_positions_are_kept_as_given(dtype: torch.dtype) -> None:
    pos = torch.randn(5, 3, dtype=dtype)
    points = Points(pos)
    assert torch.equal(points.pos, pos)
    assert points.weights.dtype == points.pos.dtype == dtype
    assert (points.num_points, points.pos_dim, points.batch_size) == (5, 3, None)
    assert (points.mask, points.times, points.grid_blocks, points.is_periodic) == (None, None, (), False)


def test_positions_of_each_batch_entry() -> None:
    pos = torch.randn(2, 5, 3)
    points = Points(pos)
    assert torch.equal(points.pos, pos)
    assert (points.num_points, points.pos_dim, points.batch_size) == (5, 3, 2)
    assert points.weights.expand(2, 5).sum(-1).tolist() == pytest.approx([1, 1])


def test_positions_carry_gradients() -> None:
    pos = torch.randn(3, 2, requires_grad=True)
    Points(pos, mask=torch.tensor([True, False, True])).pos.sum().backward()
    assert pos.grad is not None
    assert pos.grad.tolist() == [[1, 1], [0, 0], [1, 1]]


def test_no_points() -> None:
    points = Points(torch.zeros(0, 2))
    assert (points.num_points, points.pos_dim) == (0, 2)
    assert points.weights.shape == (0,)
    assert Points(torch.zeros(0, 2), mask=torch.zeros(3, 0, dtype=torch.bool)).weights.shape == (3, 0)


@pytest.mark.parametrize("shape", [(), (3,), (2, 2, 3, 2)])
def test_positions_of_wrong_rank_are_refused(shape: tuple[int, ...]) -> None:
    with refused(ValueError, "Points", "(N, s) or (B, N, s)", f"got {shape}"):
        Points(torch.zeros(shape))


def test_positions_that_are_not_float_are_refused() -> None:
    with refused(ValueError, "Points", "float", "torch.int64"):
        Points(torch.zeros(3, 2, dtype=torch.int64))
    with refused(TypeError, "Points: pos must be a tensor", "list"):
        Points([[0.0, 1.0]])  # pyright: ignore[reportArgumentType]
    with refused(TypeError, "Points: pos must be a tensor", "ndarray"):
        Points(torch.zeros(3, 2).numpy())  # pyright: ignore[reportArgumentType]


def test_positions_without_coordinates_are_refused() -> None:
    with refused(ValueError, "at least one coordinate", "(3, 0)"):
        Points(torch.zeros(3, 0))


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("shape", [(4, 2), (3, 4, 2)])
def test_positions_that_are_not_finite_are_refused(shape: tuple[int, ...], value: float) -> None:
    pos = torch.zeros(shape)
    pos.view(-1)[-1] = value
    with refused(ValueError, "Points", "NaN or infinite", "remove or mask"):
        Points(pos)
    with refused(ValueError, "Points", "NaN or infinite", "remove or mask"):
        Points(pos, mask=torch.tensor([True, False, True, True]))


def test_shared_points_of_a_subset_stay_shared_and_batched_ones_are_gathered() -> None:
    shared, batched = torch.randn(5, 2), torch.randn(3, 5, 2)
    one, each = torch.tensor([4, 0, 4]), torch.tensor([[1, 2], [0, 0], [4, 3]])
    for pos in (shared, batched):
        for index in (one, each):
            chosen = subset(Points(pos), index, torch.ones(index.shape))
            batched = pos.ndim == 3 or index.ndim == 2
            expected = pos.expand(3, -1, -1).gather(1, index.expand(3, -1)[..., None].expand(-1, -1, 2))
            assert torch.equal(chosen.pos, expected if batched else expected[0])


def test_points_of_a_subset_keep_their_times_and_periodicity() -> None:
    times = torch.tensor([0.0, 1.0, 4.0, 4.5])
    chosen = subset(Sequence(times=times), torch.tensor([[1, 3]]), torch.ones(1, 2), times)
    assert chosen.times is not None
    assert chosen.times.tolist() == [[1.0, 4.5]]
    assert subset(Grid(4, periodic=True), torch.tensor([2]), torch.ones(1)).is_periodic
