import math
from typing import Any

import numpy as np
import pytest

from fredholm.storage.config_json import to_json
from fredholm.training import TrainingConfig, learning_rate
from tests.refusals import refused


def rate(step: int, warmup_steps: int = 4) -> float:
    return learning_rate(step, num_steps=24, warmup_steps=warmup_steps, peak=0.8, final=0.2)


def test_warm_up_is_linear_and_ends_at_the_peak() -> None:
    assert [rate(step) for step in range(4)] == pytest.approx([0.2, 0.4, 0.6, 0.8])


def test_cosine_decay_from_the_peak_over_half_of_it_to_the_final_rate() -> None:
    assert rate(4) == pytest.approx(0.8)
    assert rate(14) == pytest.approx(0.5)
    assert rate(9) == pytest.approx(0.2 + 0.6 * (1 + 2**-0.5) / 2)  # a quarter of the way: cos(pi / 4)
    assert rate(24) == pytest.approx(0.2)
    assert rate(1000) == pytest.approx(0.2)


def test_without_warm_up_it_starts_at_the_peak() -> None:
    assert rate(0, warmup_steps=0) == pytest.approx(0.8)


def test_linear_decay_ends_at_the_final_rate() -> None:
    rates = [
        learning_rate(step, num_steps=24, warmup_steps=4, peak=0.8, final=0.2, decay="linear")
        for step in (0, 3, 4, 9, 14, 24, 1000)
    ]
    assert rates == pytest.approx([0.2, 0.8, 0.8, 0.65, 0.5, 0.2, 0.2])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"step": -1}, "step must be at least 0; got -1"),
        ({"warmup_steps": 10}, "warmup_steps must be at least 0 and below num_steps=10; got 10"),
        ({"warmup_steps": -1}, "warmup_steps must be at least 0"),
        ({"decay": "exponential"}, "decay must be one of cosine, linear; got 'exponential'"),
    ],
)
def test_bad_schedules_are_refused(changes: dict[str, Any], message: str) -> None:
    with refused(ValueError, f"training.learning_rate: {message}"):
        learning_rate(**{"step": 0, "num_steps": 10, "warmup_steps": 2, "peak": 1.0, **changes})


def test_the_decay_never_rises() -> None:
    rates = [rate(step) for step in range(4, 30)]
    assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize("decay", ["cosine", "linear"])
def test_a_peak_below_the_default_final_rate_gives_a_constant_rate(decay: Any) -> None:
    config = TrainingConfig(learning_rate=1e-6, warmup_fraction=0.0, decay=decay)
    assert [config.rate_at(step, 10) for step in range(10)] == [1e-6] * 10


def test_a_final_rate_above_the_peak_is_refused() -> None:
    with refused(ValueError, "final_learning_rate is 0.01, and the rate falls to it from learning_rate=0.001"):
        TrainingConfig(final_learning_rate=1e-2).check_steps(learns_by_steps=True)


@pytest.mark.parametrize("value", [None, 0.9, "x", (), (0.9,), (0.9, 0.99, 0.999), {0.9, 0.99}])
def test_betas_must_be_two(value: Any) -> None:
    with refused(TypeError, f"training.TrainingConfig: betas must be two numbers; got {value!r}"):
        TrainingConfig(betas=value)


@pytest.mark.parametrize("value", [("0.9", 0.99), (0.9, None)])
def test_betas_must_be_numbers(value: Any) -> None:
    with refused(TypeError, "training.TrainingConfig: each of betas must be a number; got "):
        TrainingConfig(betas=value)


@pytest.mark.parametrize("value", ["1e-3", None])
def test_settings_that_must_be_numbers(value: Any) -> None:
    with refused(TypeError, f"training.TrainingConfig: learning_rate must be a number; got {value!r}"):
        TrainingConfig(learning_rate=value)


COUNTS = (
    *("epochs", "batch_size", "accumulation", "num_workers", "evaluation_batch_size", "evaluate_every", "patience"),
    *("checkpoint_every", "log_every"),
)


@pytest.mark.parametrize("value", [1.5, 256.0, math.nan, math.inf, True, "2"])
@pytest.mark.parametrize("name", COUNTS)
def test_settings_that_must_be_whole_numbers(name: str, value: Any) -> None:
    with refused(TypeError, f"training.TrainingConfig: {name} must be a whole number; got {value!r}"):
        TrainingConfig(**{name: value})


@pytest.mark.parametrize("name", ["learning_rate", "final_learning_rate", "weight_decay", "gradient_clip", "ema_decay"])
def test_settings_that_must_be_finite(name: str) -> None:
    settings: dict[str, Any] = {name: math.nan}
    with refused(ValueError, f"{name} is nan; expected"):
        TrainingConfig(**settings)


def test_numbers_of_numpy_are_accepted() -> None:
    given: dict[str, Any] = {"epochs": np.int64(3), "patience": np.int32(2), "learning_rate": np.float32(0.25)}
    plain: dict[str, Any] = {"epochs": 3, "patience": 2, "learning_rate": 0.25, "betas": (0.5, 0.75)}
    found = TrainingConfig(**given, betas=[np.float32(0.5), np.float64(0.75)])  # pyright: ignore[reportArgumentType]
    assert found == TrainingConfig(**plain)
    assert to_json(found) == to_json(TrainingConfig(**plain))
