import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from fredholm.domains import Domain, Grid, Points, Sequence, Union, preceding_counts
from tests.refusals import refused


@given(st.integers(0, 8), st.integers(0, 8))
def test_indices_are_aligned_at_the_end(num_queries: int, num_points: int) -> None:
    counts = preceding_counts(Sequence(num_queries), Sequence(num_points))
    assert counts.dtype == torch.int64
    assert counts.shape == (1, num_queries)
    for i, count in enumerate(counts[0].tolist()):
        after = num_queries - 1 - i  # queries after this one
        assert count == max(0, num_points - after)


@pytest.mark.parametrize(
    ("num_queries", "num_points", "expected"),
    [(4, 4, [1, 2, 3, 4]), (2, 5, [4, 5]), (1, 3, [3]), (5, 2, [0, 0, 0, 1, 2]), (3, 0, [0, 0, 0]), (0, 3, [])],
)
def test_different_numbers_of_queries_and_points(num_queries: int, num_points: int, expected: list[int]) -> None:
    assert preceding_counts(Sequence(num_queries), Sequence(num_points))[0].tolist() == expected


TIMES = Sequence(times=torch.tensor([0.0, 1.0, 1.0, 3.0]))


@pytest.mark.parametrize("other", [Sequence(4), Grid(2, 2), Points(torch.rand(4, 1)), Union(Grid(1), Sequence(3))])
def test_without_times_on_both_sides_indices_count(other: Domain) -> None:
    assert preceding_counts(other, other)[0].tolist() == [1, 2, 3, 4]
    assert preceding_counts(TIMES, other)[0].tolist() == [1, 2, 3, 4]
    assert preceding_counts(other, TIMES)[0].tolist() == [1, 2, 3, 4]


def test_a_query_sees_the_points_that_are_not_later() -> None:
    queries = Sequence(times=torch.tensor([-1.0, 0.0, 0.5, 1.0, 2.9, 3.0, 9.0]))
    assert preceding_counts(queries, TIMES)[0].tolist() == [0, 1, 1, 3, 3, 4, 4]
    assert preceding_counts(TIMES, TIMES)[0].tolist() == [1, 3, 3, 4]  # equal times see each other


def test_times_of_two_precisions() -> None:
    queries = Sequence(times=torch.tensor([1.0, 3.0], dtype=torch.float64))
    assert preceding_counts(queries, TIMES)[0].tolist() == [3, 4]


@given(st.data(), st.sampled_from([None, 2]), st.sampled_from([None, 2]), st.integers(1, 5), st.integers(1, 5))
def test_times_of_each_batch_entry(
    data: st.DataObject, query_batch: int | None, batch: int | None, num_queries: int, num_points: int
) -> None:
    ticks = st.integers(0, 4).map(float)

    def times(batch: int | None, n: int) -> torch.Tensor:
        shape = (n,) if batch is None else (batch, n)
        values = torch.tensor(data.draw(st.lists(ticks, min_size=(batch or 1) * n, max_size=(batch or 1) * n)))
        return values.view(shape).sort(-1).values

    query_times, key_times = times(query_batch, num_queries), times(batch, num_points)
    counts = preceding_counts(Sequence(times=query_times), Sequence(times=key_times))
    expected = (key_times[..., None, :] <= query_times[..., :, None]).sum(-1)
    assert torch.equal(counts, expected if expected.ndim == 2 else expected[None])


def test_padding_does_not_disturb_the_order() -> None:
    nan = float("nan")
    mask = torch.tensor([[True, True, False], [False, True, True]])
    padded = Sequence(times=torch.tensor([[0.0, 1.0, nan], [nan, 5.0, 6.0]]), mask=mask)
    assert padded.times is not None
    leading = torch.arange(3) < preceding_counts(padded, padded)[..., None]
    earlier = padded.times[:, None, :] <= padded.times[:, :, None]
    pairs = mask[:, None, :] & mask[:, :, None]
    assert torch.equal(leading & pairs, earlier & pairs)
    assert (leading & pairs).sum() == 6


def test_other_queries_of_padded_points_without_times_are_refused() -> None:
    padded = Sequence(4, mask=torch.tensor([True, False, True, True]))
    with refused(ValueError, "3 queries and 4 points", "some points do not exist", "give both times"):
        preceding_counts(Sequence(3), padded)
