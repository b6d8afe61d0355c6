import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from fredholm import IntegralOperator, kernels
from fredholm.domains import Grid, GridBlock, Sequence, is_ordered_by_index, preceding_counts
from tests.refusals import refused

NAN, INF = float("nan"), float("inf")


@given(st.integers(1, 9), st.integers(0, 5), st.integers(-3, 300))
def test_a_longer_sequence_keeps_the_positions_of_its_points(n: int, more: int, first: int) -> None:
    sequence, longer = Sequence(n, first=first), Sequence(n + more, first=first)
    assert torch.equal(sequence.pos, longer.pos[:n])
    assert torch.equal(sequence.pos[:, 0], torch.arange(first, first + n) / 256)
    assert torch.equal(sequence.weights, Grid(n).weights)
    (block,) = sequence.grid_blocks
    assert (block.shape, block.spacing, block.origin) == ((n,), (1 / 256,), (first / 256,))
    assert (sequence.num_points, sequence.pos_dim, sequence.times) == (n, 1, None)


def test_a_first_index_is_refused_where_it_has_no_effect() -> None:
    with refused(ValueError, "first is the integer place of the first point", "first=0.5"):
        Sequence(3, first=0.5)  # pyright: ignore[reportArgumentType]
    with refused(ValueError, "first=2 and spacing=0.1", "give start="):
        Sequence(3, spacing=0.1, first=2)
    with refused(ValueError, "leave spacing, start and first out"):
        Sequence(times=torch.rand(3).cumsum(0), first=1)
    with refused(ValueError, "the times are on cpu", "leave device out"):
        Sequence(times=torch.rand(3).cumsum(0), device="cpu")


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
def test_padded_times_stay_in_order_for_any_values(data: st.DataObject, n: int) -> None:
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


def test_a_mask_per_batch_entry_makes_times_per_entry() -> None:
    mask = torch.tensor([[True, True, False], [True, False, True]])
    sequence = Sequence(times=torch.tensor([1.0, 2.0, 3.0]), mask=mask)
    assert sequence.times is not None
    assert sequence.times.tolist() == [[1, 2, 2], [1, 1, 3]]


def test_length_and_times_together_or_neither_are_refused() -> None:
    with refused(ValueError, "either a length", "times"):
        Sequence()
    with refused(ValueError, "either a length", "times"):
        Sequence(3, times=torch.rand(3))


@pytest.mark.parametrize("length", [-1, 2.5, 3.0, "3", True, False])
def test_bad_lengths_are_refused(length: int) -> None:
    with refused(ValueError, "length must be an integer >= 0", f"got {length!r}"):
        Sequence(length)


@pytest.mark.parametrize("times", [[1.0, 0.0], [[0.0, 1.0], [1.0, 0.0]]])
def test_times_that_decrease_are_refused(times: list[float]) -> None:
    with refused(ValueError, "must not decrease", "sort"):
        Sequence(times=torch.tensor(times))


@pytest.mark.parametrize("step", [1.5, 200.0])
def test_times_too_close_for_float32_are_refused(step: float) -> None:
    times = 1.7e9 + step * torch.arange(12, dtype=torch.float64)
    Sequence(times=times)
    with refused(ValueError, "Sequence: float32 has a resolution of 2e+02 at times near 1.7e+09", "give float64, or"):
        Sequence(times=times.float())
    Sequence(times=times.float(), mask=torch.arange(12) == 3)  # a single sample
    Sequence(times=1.7e9 + 3600 * torch.arange(12.0))
    Sequence(times=torch.rand(2, 2000, generator=torch.Generator().manual_seed(0)).sort().values)
    Sequence(times=torch.full((2, 12), 5.0))
    Sequence(times=torch.tensor([0.0, 1.0, 1.0000001, 2.5, 3.0]))  # only one step is too small
    Sequence(times=8e6 + torch.arange(12.0))  # whole numbers of this size are exact
    Sequence(times=torch.arange(1000).half())
    with refused(ValueError, "Sequence: float32 has a resolution of 0.95 at times near 8e+06"):
        Sequence(times=8e6 + 0.5 + torch.arange(12.0))


def test_times_that_decrease_over_a_masked_sample() -> None:
    with refused(ValueError, "must not decrease"):
        Sequence(times=torch.tensor([2.0, NAN, 1.0]), mask=torch.tensor([True, False, True]))
    assert Sequence(times=torch.tensor([1.0, 5.0, 2.0]), mask=torch.tensor([True, False, True])).num_points == 3


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_times_that_are_not_finite_are_refused(place: int, value: float) -> None:
    times = torch.tensor([0.0, 1.0, 2.0])
    times[place] = value
    with refused(ValueError, "Sequence", "NaN or infinite"):
        Sequence(times=times)
    mask = torch.ones(3, dtype=torch.bool)
    mask[place - 1] = False
    with refused(ValueError, "Sequence", "NaN or infinite"):
        Sequence(times=times, mask=mask)


@pytest.mark.parametrize("shape", [(), (2, 3, 4)])
def test_times_of_wrong_rank_are_refused(shape: tuple[int, ...]) -> None:
    with refused(ValueError, "times must be float of shape (N,) or (B, N)", f"got {shape}"):
        Sequence(times=torch.zeros(shape))


def test_times_that_are_not_float_are_refused() -> None:
    with refused(ValueError, "times must be float", "torch.int64"):
        Sequence(times=torch.arange(3))
    with refused(TypeError, "times must be a tensor", "list"):
        Sequence(times=[0.0, 1.0])  # pyright: ignore[reportArgumentType]


@given(st.integers(1, 9), st.sampled_from([0.25, 3, 1e-9]), st.sampled_from([None, 0, -7.5, 1e6]))
def test_regular_samples_in_a_unit_of_time(n: int, spacing: float, start: float | None) -> None:
    if start == 1e6:
        spacing = max(spacing, 0.25)
    sequence = Sequence(n, spacing=spacing, start=start)
    expected = [(start or 0) + k * spacing for k in range(n)]
    assert sequence.pos.dtype == torch.float64
    assert sequence.pos[:, 0].tolist() == expected
    assert sequence.times is not None
    assert sequence.times.tolist() == expected
    assert sequence.grid_blocks == (GridBlock(0, (n,), (float(spacing),), (float(start or 0),), False),)
    assert torch.equal(sequence.weights, Sequence(n).weights)
    assert torch.equal(sequence.counts, torch.ones(n))
    assert sequence.is_generated


def test_regular_samples_keep_their_lattice_and_times_under_a_mask() -> None:
    mask = torch.tensor([[True, True, False], [False, True, False]])
    sequence = Sequence(3, spacing=0.5, start=1.0).restrict(mask)
    masked = Sequence(3, spacing=0.5, start=1.0, mask=mask)
    for made in (sequence, masked):
        assert made.pos[:, 0].tolist() == [1.0, 1.5, 2.0]
        assert made.times is not None
        assert made.times.tolist() == [1.0, 1.5, 2.0]
        assert made.weights.tolist() == [[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]]
        assert made.batch_size == 2
    moved = Sequence(3, spacing=0.5).to("meta")
    assert moved.times is not None
    assert moved.device.type == moved.times.device.type == "meta"


def test_no_regular_samples() -> None:
    empty = Sequence(0, spacing=0.5)
    assert (empty.num_points, empty.grid_blocks) == (0, ())
    assert empty.times is not None
    assert empty.times.shape == (0,)


def test_weights_account_for_another_sampling_rate() -> None:
    sequence = Sequence(4, spacing=0.5, weights=torch.full((4,), 0.5))
    assert sequence.counts.tolist() == [0.5] * 4


REGULAR = {
    "rotary attention": lambda: kernels.YatAttention(4, 2, is_causal=True, rotary=kernels.Rotary(100.0)),
    "linear system": lambda: kernels.LinearSystem(4, 3),
    "linear RNN": lambda: kernels.LinearRNN(4, 3),
    "MLP": lambda: kernels.MLP(4, 2, 1, is_causal=True, sigma=0.3),
    "low rank": lambda: kernels.LowRankMLP(4, 2, 1, rank=3, is_causal=True, sigma=0.3),
}


@pytest.mark.parametrize("name", REGULAR)
def test_kernels_treat_regular_samples_like_the_same_times(name: str) -> None:
    op = IntegralOperator(REGULAR[name]()).double()
    u = torch.randn(2, 7, 4, dtype=torch.float64)
    regular = Sequence(7, spacing=0.3, start=2.0)
    assert regular.times is not None
    irregular = Sequence(times=regular.times)
    torch.testing.assert_close(op(u, regular), op(u, irregular), rtol=1e-10, atol=1e-12)
    assert not torch.allclose(op(u, regular), op(u, Sequence(7)), rtol=1e-7, atol=0) or name == "linear RNN"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "MLP" else pytest.mark.long) for name in REGULAR]
)
def test_regular_samples_compile_in_one_graph(name: str) -> None:
    op, u = IntegralOperator(REGULAR[name]()).double(), torch.randn(2, 7, 4, dtype=torch.float64)
    compiled = torch.compile(op, fullgraph=True, backend="eager")
    regular = Sequence(7, spacing=0.3, start=2.0)
    torch.testing.assert_close(compiled(u, regular), op(u, regular))


def test_regular_samples_are_ordered_by_index() -> None:
    regular = Sequence(5, spacing=0.1)
    assert is_ordered_by_index(regular)
    assert preceding_counts(regular, regular).tolist() == [[1, 2, 3, 4, 5]]
    assert preceding_counts(Sequence(2, spacing=0.1, start=0.05), regular).tolist() == [[1, 2]]


@pytest.mark.parametrize("spacing", [0, -1.0, NAN, INF, "1", True, torch.tensor(1.0)])
def test_bad_spacings_are_refused(spacing: float) -> None:
    with refused(ValueError, "Sequence: spacing must be a finite number > 0", f"got {spacing!r}"):
        Sequence(3, spacing=spacing)


@pytest.mark.parametrize("start", [NAN, INF, "0", False])
def test_bad_starts_are_refused(start: float) -> None:
    with refused(ValueError, "Sequence: start must be a finite number", f"got {start!r}"):
        Sequence(3, spacing=1.0, start=start)


def test_a_spacing_without_a_length_is_refused() -> None:
    with refused(ValueError, "times say where the samples are", "leave spacing, start and first out"):
        Sequence(times=torch.rand(3).cumsum(0), spacing=1.0)
    with refused(ValueError, "start needs a spacing", "start=2.0"):
        Sequence(3, start=2.0)


@pytest.mark.parametrize(("spacing", "start"), [(1.0, 1e17), (1e-300, 1.0), (1e308, 1e308)])
def test_samples_too_close_for_float64_are_refused(spacing: float, start: float) -> None:
    with refused(ValueError, "float64 cannot distinguish 3 samples", "another unit of time"):
        Sequence(3, spacing=spacing, start=start)


def test_times_in_place_of_a_length_are_refused() -> None:
    with refused(TypeError, "length must be an integer >= 0; got a tensor", "Sequence(times=t)"):
        Sequence(torch.rand(5))  # pyright: ignore[reportArgumentType]
