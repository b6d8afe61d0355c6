import math
from dataclasses import replace
from typing import Any

import pytest

from fredholm.tasks.schedule import EVALUATIONS, FEW_STEPS, STEPS, Effort, Preset, Schedule, schedule_for, width_for


@pytest.mark.parametrize("num_train", [1, 7, 36, 320, 1437, 60_000, 2_000_000])
@pytest.mark.parametrize("preset", ["small", "base"])
def test_the_rules_hold_for_few_and_many_examples(num_train: int, preset: Preset) -> None:
    found = schedule_for(num_train, Effort(preset), has_valid=True)
    assert 8 <= found.batch_size <= 128
    assert math.log2(found.batch_size).is_integer()
    steps = found.epochs * math.ceil(num_train / found.batch_size)
    assert found.epochs == 1 or steps == pytest.approx(STEPS[preset] * num_train**0.4, rel=0.5)
    assert math.ceil(found.epochs / found.evaluate_every) <= EVALUATIONS
    assert 0.5 <= found.ema_decay <= 0.9999
    assert found.patience is not None
    assert found.patience >= 5


def test_settings_of_a_task_and_the_lack_of_validation_data_change_the_schedule() -> None:
    assert schedule_for(100, Effort("small"), has_valid=False).patience is None
    schedule = schedule_for(6400, Effort("small"), has_valid=True, batch_size=5, learning_rate=0.1, weight_decay=0.3)
    assert (schedule.batch_size, schedule.learning_rate, schedule.weight_decay) == (5, 0.1, 0.3)
    assert schedule_for(2000, Effort("small"), has_valid=True).batch_size == 128
    assert schedule_for(640, Effort("small"), has_valid=True).batch_size == 32


def test_a_task_may_take_a_fraction_of_the_steps() -> None:
    whole, fifth = (schedule_for(1000, Effort("small"), has_valid=True, batch_size=10, length=n) for n in (1.0, 0.2))
    assert (whole.epochs, fifth.epochs) == (24, 5)


def test_a_task_may_require_a_minimum_of_steps() -> None:
    few, many = (schedule_for(n, Effort("small"), has_valid=True, batch_size=10, min_steps=3000) for n in (100, 20_000))
    assert few.epochs == 300
    assert many.epochs == schedule_for(20_000, Effort("small"), has_valid=True, batch_size=10).epochs


def test_averaging_evaluations_and_patience_follow_the_number_of_epochs() -> None:
    usual = schedule_for(1000, Effort("small"), has_valid=True, min_steps=5000)
    assert usual.adjusted(epochs=usual.epochs) == usual
    few = usual.adjusted(epochs=8)
    assert (few.epochs, few.evaluate_every, few.patience) == (8, 1, 5)
    assert few.ema_decay == pytest.approx(1 - 50 / (8 * 16), abs=1e-4)
    assert (few.batch_size, few.learning_rate) == (usual.batch_size, usual.learning_rate)
    assert schedule_for(1000, Effort("small"), has_valid=False).adjusted(epochs=90).patience is None
    at_once = replace(usual, epochs=0)
    assert at_once.adjusted(epochs=8, batch_size=4).settings == at_once.settings == {"epochs": 0}


def test_averaging_follows_the_batch_size_and_epochs_stay() -> None:
    usual = schedule_for(1000, Effort("small"), has_valid=True, min_steps=5000)
    assert usual.adjusted(batch_size=usual.batch_size) == usual.adjusted() == usual
    small = usual.adjusted(batch_size=10)
    assert small == replace(usual, batch_size=10, ema_decay=small.ema_decay)
    assert small.ema_decay == pytest.approx(1 - 50 / (usual.epochs * 100), abs=1e-4)
    both = usual.adjusted(epochs=8, batch_size=10)
    assert both == replace(usual.adjusted(epochs=8), batch_size=10, ema_decay=both.ema_decay)
    assert both.ema_decay == pytest.approx(1 - 50 / (8 * 100), abs=1e-4)


@pytest.mark.parametrize(
    ("num_train", "epochs", "size"),
    [(5000, 8, 32), (5000, 1, 8), (5000, 40, 128), (20_000, 2, 32), (900, 5, 8), (900, 300, 32), (60_000, 2, 128)],
)
def test_few_epochs_get_smaller_batches_so_that_there_are_enough_steps(num_train: int, epochs: int, size: int) -> None:
    def found(**settings: Any) -> Schedule:
        return schedule_for(num_train, Effort("small", epochs=epochs), has_valid=True, **settings).adjusted(
            epochs=epochs
        )

    usual = schedule_for(num_train, Effort("small"), has_valid=True).batch_size
    assert found().batch_size == size
    assert found(batch_size=48).batch_size == 48
    assert size in (8, usual) or FEW_STEPS <= epochs * math.ceil(num_train / size) < 2.1 * FEW_STEPS
    # no more steps than the task needs
    assert found(length=0.001).batch_size == usual


def test_width_grows_by_half_with_each_factor_of_ten() -> None:
    found = [width_for(n, Effort("small"), least=64, up_to=1000) for n in (1, 1000, 10_000, 100_000)]
    assert found == [64, 64, 96, 144]
    assert [width_for(n, Effort("base"), least=64, up_to=1000) for n in (1, 10_000)] == [128, 192]


def test_a_share_of_the_data_is_treated_as_fewer_examples() -> None:
    """Except for the number of epochs, which are over all examples."""
    part, fewer = (schedule_for(n, Effort("small", share), has_valid=True) for n, share in ((8000, 0.1), (800, 1.0)))
    assert part.batch_size == fewer.batch_size == 32
    assert part.epochs == round(fewer.epochs / 10)
    assert width_for(40_000, Effort("small", 0.25), least=64, up_to=1000) == 96
