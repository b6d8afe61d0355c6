import pytest

from fredholm.training import TrainingConfig, learning_rate
from tests.refusals import refused


def rate(step: int, warmup_steps: int = 4) -> float:
    return learning_rate(step, num_steps=24, warmup_steps=warmup_steps, peak=0.8, final=0.2)


def test_warm_up_is_linear_and_ends_at_the_peak() -> None:
    assert [rate(step) for step in range(4)] == pytest.approx([0.2, 0.4, 0.6, 0.8])


def test_cosine_starts_at_the_peak_halves_in_the_middle_and_ends_at_the_final_rate() -> None:
    assert rate(4) == pytest.approx(0.8)
    assert rate(14) == pytest.approx(0.5)
    assert rate(9) == pytest.approx(0.2 + 0.6 * (1 + 2**-0.5) / 2)  # a quarter of the way: cos(pi / 4)
    assert rate(24) == pytest.approx(0.2)
    assert rate(1000) == pytest.approx(0.2)


def test_without_warm_up_it_starts_at_the_peak() -> None:
    assert rate(0, warmup_steps=0) == pytest.approx(0.8)


def test_a_line_ends_at_the_final_rate() -> None:
    rates = [
        learning_rate(step, num_steps=24, warmup_steps=4, peak=0.8, final=0.2, decay="linear")
        for step in (0, 3, 4, 9, 14, 24, 1000)
    ]
    assert rates == pytest.approx([0.2, 0.8, 0.8, 0.65, 0.5, 0.2, 0.2])


def test_the_decay_never_rises() -> None:
    rates = [rate(step) for step in range(4, 30)]
    assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize(("name", "value"), [("learning_rate", "1e-3"), ("epochs", None), ("batch_size", True)])
def test_numbers_that_are_none(name: str, value: object) -> None:
    with refused(TypeError, f"training.TrainingConfig: {name} must be a number; got {value!r}"):
        TrainingConfig(**{name: value})  # pyright: ignore[reportArgumentType]
