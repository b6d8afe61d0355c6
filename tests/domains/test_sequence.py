import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from fredholm.domains import Grid, Sequence
from tests.refusals import refused

NAN, INF = float("nan"), float("inf")


@given(st.integers(1, 9))
def test_a_length_is_the_one_dimensional_grid(n: int) -> None:
    sequence, grid = Sequence(n), Grid(n)
    assert torch.equal(sequence.pos, grid.pos)
    assert torch.equal(sequence.weights, grid.weights)
    assert sequence.grid_blocks == grid.grid_blocks
    assert (sequence.num_points, sequence.pos_dim, sequence.times) == (n, 1, None)


def test_length_zero() -> None:
    empty = Sequence(0)
    assert (empty.num_points, empty.pos.shape, empty.weights.shape) == (0, (0, 1), (0,))
    assert empty.grid_blocks == ()
    assert Sequence(times=torch.zeros(0)).num_points == 0


@pytest.mark.parametrize("shape", [(4,), (3, 4)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_times_are_the_positions(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    times = torch.rand(shape, dtype=dtype).cumsum(-1)
    sequence = Sequence(times=times)
    assert torch.equal(sequence.pos[..., 0], times)
    assert sequence.times is not None
    assert torch.equal(sequence.times, times)
    assert sequence.grid_blocks == ()
    assert sequence.batch_size == (3 if len(shape) == 2 else None)


def test_equal_times_are_in_order() -> None:
    assert Sequence(times=torch.tensor([0.0, 1.0, 1.0, 2.0])).num_points == 4


@given(st.data(), st.integers(1, 6))
def test_padded_times_stay_in_order_whatever_they_held(data: st.DataObject, n: int) -> None:
    mask = torch.tensor(data.draw(st.lists(st.booleans(), min_size=2 * n, max_size=2 * n))).view(2, n)
    times = torch.arange(2.0 * n).view(2, n)
    garbage = data.draw(st.sampled_from([NAN, INF, -INF, -1.0, 1e30]))
    sequence = Sequence(times=torch.where(mask, times, garbage), mask=mask)
    kept = sequence.times
    assert kept is not None
    assert torch.isfinite(kept).all()
    assert (kept.diff(dim=-1) >= 0).all()
    assert torch.equal(kept[mask], times[mask])
    for row, exists in zip(kept, mask, strict=True):
        assert not exists.any() or (row.min() >= row[exists].min() and row.max() <= row[exists].max())


def test_a_mask_of_its_own_for_every_batch_entry_gives_every_entry_its_times() -> None:
    mask = torch.tensor([[True, True, False], [True, False, True]])
    sequence = Sequence(times=torch.tensor([1.0, 2.0, 3.0]), mask=mask)
    assert sequence.times is not None
    assert sequence.times.tolist() == [[1, 2, 2], [1, 1, 3]]


def test_both_or_none() -> None:
    with refused(ValueError, "either a length", "times"):
        Sequence()
    with refused(ValueError, "either a length", "times"):
        Sequence(3, times=torch.rand(3))


@pytest.mark.parametrize("length", [-1, 2.5, 3.0, "3", True, False])
def test_lengths_that_are_none(length: int) -> None:
    with refused(ValueError, "length must be an integer >= 0", f"got {length!r}"):
        Sequence(length)


@pytest.mark.parametrize("times", [[1.0, 0.0], [[0.0, 1.0], [1.0, 0.0]]])
def test_times_that_decrease(times: list[float]) -> None:
    with refused(ValueError, "must not decrease", "sort"):
        Sequence(times=torch.tensor(times))


def test_times_that_decrease_over_a_masked_sample() -> None:
    with refused(ValueError, "must not decrease"):
        Sequence(times=torch.tensor([2.0, NAN, 1.0]), mask=torch.tensor([True, False, True]))
    assert Sequence(times=torch.tensor([1.0, 5.0, 2.0]), mask=torch.tensor([True, False, True])).num_points == 3


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_times_that_are_not_finite(place: int, value: float) -> None:
    times = torch.tensor([0.0, 1.0, 2.0])
    times[place] = value
    with refused(ValueError, "Sequence", "NaN or infinite"):
        Sequence(times=times)
    mask = torch.ones(3, dtype=torch.bool)
    mask[place - 1] = False
    with refused(ValueError, "Sequence", "NaN or infinite"):
        Sequence(times=times, mask=mask)


@pytest.mark.parametrize("shape", [(), (2, 3, 4)])
def test_times_of_wrong_rank(shape: tuple[int, ...]) -> None:
    with refused(ValueError, "times must be float of shape (N,) or (B, N)", f"got {shape}"):
        Sequence(times=torch.zeros(shape))


def test_times_that_are_not_float() -> None:
    with refused(ValueError, "times must be float", "torch.int64"):
        Sequence(times=torch.arange(3))
    with refused(TypeError, "times must be a tensor", "list"):
        Sequence(times=[0.0, 1.0])  # pyright: ignore[reportArgumentType]
