import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from fredholm.domains import Sequence, trapezoid_weights
from tests.refusals import refused

NAN = float("nan")
# steps of zero give samples with equal times
STEPS = st.lists(st.one_of(st.just(0.0), st.floats(0.01, 3.0)), min_size=1, max_size=9)


def times_of(steps: list[float], start: float = -1.0) -> Tensor:
    return start + torch.tensor(steps, dtype=torch.float64).cumsum(0)


@given(STEPS)
def test_the_weighted_sum_is_the_trapezoid_rule(steps: list[float]) -> None:
    times = times_of(steps)
    values = torch.randn(len(times), generator=torch.Generator().manual_seed(len(steps)), dtype=torch.float64)
    weights = trapezoid_weights(times, total=None)
    expected = torch.trapezoid(values, times)
    torch.testing.assert_close((values * weights).sum(), expected, rtol=1e-12, atol=1e-12)
    assert (weights >= 0).all()


@given(STEPS, st.sampled_from([1.0, 0.25, 30.0]))
def test_the_total_scales_the_weights(steps: list[float], total: float) -> None:
    times = times_of(steps)
    plain, scaled = trapezoid_weights(times, total=None), trapezoid_weights(times, total=total)
    assert scaled.sum().item() == pytest.approx(total, rel=1e-12)
    length = (times[-1] - times[0]).item()
    if length > 0:
        torch.testing.assert_close(scaled, plain * (total / length))
    else:
        torch.testing.assert_close(scaled, torch.full_like(times, total / len(times)))
        assert (plain == 0).all()


@given(st.data(), STEPS, st.sampled_from([None, 1.0]))
def test_a_masked_sample_has_no_effect(data: st.DataObject, steps: list[float], total: float | None) -> None:
    n = len(steps)
    mask = torch.tensor(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    garbage = data.draw(st.sampled_from([NAN, float("inf"), -50.0, 50.0]))
    times = times_of(steps)
    weights = trapezoid_weights(torch.where(mask, times, garbage), mask, total=total)
    assert (weights[~mask] == 0).all()
    if mask.any():
        torch.testing.assert_close(weights[mask], trapezoid_weights(times[mask], total=total))


def test_batch_entries_are_independent() -> None:
    times = torch.rand(3, 5, dtype=torch.float64).cumsum(-1)
    mask = torch.rand(3, 5) < 0.6
    both = trapezoid_weights(times, mask)
    for row, one, exists in zip(both, times, mask, strict=True):
        assert torch.equal(row, trapezoid_weights(one, exists))
    shared = trapezoid_weights(times[0], mask)
    assert shared.shape == (3, 5)
    assert torch.equal(shared[2], trapezoid_weights(times[0], mask[2]))


def test_a_known_rule() -> None:
    times = torch.tensor([0.0, 1.0, 1.0, 4.0])
    assert trapezoid_weights(times, total=None).tolist() == [0.5, 0.5, 1.5, 1.5]
    assert trapezoid_weights(times).tolist() == [0.125, 0.125, 0.375, 0.375]


def test_one_sample_and_no_sample() -> None:
    one = torch.tensor([7.0])
    assert trapezoid_weights(one).tolist() == [1.0]
    assert trapezoid_weights(one, total=None).tolist() == [0.0]
    assert trapezoid_weights(torch.zeros(0)).shape == (0,)
    assert trapezoid_weights(torch.zeros(0), torch.zeros(3, 0, dtype=torch.bool)).shape == (3, 0)
    assert trapezoid_weights(torch.rand(2).cumsum(0), torch.zeros(2, dtype=torch.bool)).tolist() == [0.0, 0.0]


def test_samples_that_crowd_together_count_less() -> None:
    times = torch.cat([torch.linspace(0, 0.1, 50), torch.linspace(0.15, 1, 10)]).double()
    integral = (times * trapezoid_weights(times)).sum().item()
    assert integral == pytest.approx(0.5, abs=1e-6)
    assert times.mean().item() < 0.2  # the result with equal weights


def test_a_sequence_takes_the_weights() -> None:
    times, mask = torch.tensor([0.0, 0.2, NAN]), torch.tensor([True, True, False])
    domain = Sequence(times=times, mask=mask, weights=trapezoid_weights(times, mask, total=3.0))
    assert domain.weights.tolist() == pytest.approx([1.5, 1.5, 0.0])
    assert domain.restrict(torch.tensor([True, False, True])).weights.tolist() == pytest.approx([1.5, 0.0, 0.0])


def test_bad_times_are_refused() -> None:
    with refused(ValueError, "trapezoid_weights", "must not decrease", "sort"):
        trapezoid_weights(torch.tensor([1.0, 0.0]))
    with refused(ValueError, "trapezoid_weights", "NaN or infinite"):
        trapezoid_weights(torch.tensor([0.0, NAN]))
    with refused(ValueError, "trapezoid_weights", "(N,) or (B, N)", "(2, 3, 4)"):
        trapezoid_weights(torch.zeros(2, 3, 4))
    with refused(ValueError, "trapezoid_weights", "float", "torch.int64"):
        trapezoid_weights(torch.arange(3))
    with refused(TypeError, "trapezoid_weights", "times must be a tensor", "list"):
        trapezoid_weights([0.0, 1.0])  # pyright: ignore[reportArgumentType]


def test_bad_masks_are_refused() -> None:
    times = torch.zeros(2, 3)
    for shape in ((), (4,), (5, 3), (1, 2, 3)):
        with refused(ValueError, "trapezoid_weights", "mask", f"{shape}", "(2, 3)"):
            trapezoid_weights(times, torch.ones(shape, dtype=torch.bool))
    with refused(TypeError, "trapezoid_weights", "mask must be bool", "torch.float32"):
        trapezoid_weights(times, torch.ones(2, 3))
    with refused(ValueError, "trapezoid_weights", "mask is on meta", "cpu"):
        trapezoid_weights(times, torch.ones(2, 3, dtype=torch.bool, device="meta"))
