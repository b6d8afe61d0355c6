import dataclasses
from typing import Any

import pytest

from fredholm.training import DivergedError, TrainingConfig
from fredholm.training.plan import Plan, epochs_within, first_steps, plan, share_within
from fredholm.training.step_cost import StepCost
from tests.refusals import refused
from tests.training.toy_task import ToyTask, toy_run


def planned(held_out: tuple[str, ...] = ("valid", "test"), learns_by_steps: bool = True, **training: Any) -> Plan:
    config = toy_run()
    changed: Any = {"held_out": held_out, "learns_by_steps": learns_by_steps}
    task = dataclasses.replace(config.task, **changed).build()
    numbers = dataclasses.replace(config.training, **training)
    numbers = numbers if learns_by_steps else numbers.without_steps()
    return plan(task, numbers, first_steps(task, numbers, seed=1))


def test_a_plan_reports_the_sizes_of_the_run() -> None:
    found = planned()
    assert (found.num_train, found.num_valid, found.num_test) == (50, 50, 25)
    assert (found.epochs, found.num_steps, found.batch_size) == (3, 21, 8)
    task = ToyTask.Config().build()
    parameters = sum(p.numel() for p in task.model().parameters())
    assert (found.model, found.num_parameters) == ("Sequential", parameters)
    assert found.num_bytes == 2 * 4 * 4 * parameters
    assert "50 examples to learn from, 50 for validation and 25 for testing" in str(found)
    assert "3 epochs of 7 steps on batches of 8; at most 1 s; 1 MB on disk" in str(found)
    assert "1 epoch of 1 step on batches of 50" in str(planned(epochs=1, batch_size=50))


def test_more_epochs_take_longer_and_zero_epochs_are_fitted_in_closed_form() -> None:
    few, many = planned(epochs=10), planned(epochs=10_000)
    assert many.seconds > 50 * few.seconds > 0
    none = planned(learns_by_steps=False)
    assert (none.num_steps, none.seconds) == (0, 0.0)
    assert "training: fitted in closed form" in str(none)
    assert planned(held_out=("test",)).num_valid == 0


def test_a_loss_that_is_not_finite_is_reported_before_the_run() -> None:
    with refused(DivergedError, "the loss is nan in the first steps, which were measured; try a lower learning_rate"):
        planned(learning_rate=1e30)


@pytest.mark.parametrize(("seconds", "message"), [(0.2, "1 s"), (42.4, "42 s"), (1250, "21 min"), (9000, "2.5 h")])
def test_durations_are_readable(seconds: float, message: str) -> None:
    assert f"at most {message};" in str(planned()._replace(seconds=seconds))


COST = StepCost(
    model="Linear",
    num_parameters=2,
    num_parameter_bytes=8,
    num_buffer_bytes=0,
    steps_per_epoch=10,
    seconds=0.1,
    evaluation_seconds=0.5,
    memory_bytes=None,
)
"""An epoch takes a second, and an evaluation half of one."""


@pytest.mark.parametrize(
    ("minutes", "evaluate_every", "epochs"), [(1.0, 1, 40), (1.0, 4, 53), (100.0, 1, 90), (0.025, 1, 1)]
)
def test_the_largest_number_of_epochs_that_fits_is_chosen(minutes: float, evaluate_every: int, epochs: int) -> None:
    def with_epochs(epochs: int) -> TrainingConfig:
        return TrainingConfig(epochs=epochs, evaluate_every=evaluate_every)

    assert epochs_within(minutes, 90, with_epochs, COST) == epochs


def test_an_error_reports_if_no_epoch_fits() -> None:
    with refused(ValueError, "0.01 minutes a run are too few: one epoch takes about 0.1 here; pass more"):
        epochs_within(0.01, 90, lambda epochs: TrainingConfig(epochs=epochs), COST)


@pytest.mark.parametrize(
    ("minutes", "num_train", "share"),
    [(11.0, 9000, 1.0), (9.0, 9000, 0.5), (1.5, 9000, 0.125), (0.1, 9000, 0.125), (0.1, 1999, 1.0), (0.1, 30, 1.0)],
)
def test_the_largest_share_of_the_data_that_fits_is_chosen(minutes: float, num_train: int, share: float) -> None:
    def with_share(share: float) -> tuple[TrainingConfig, StepCost]:
        return TrainingConfig(epochs=1), COST._replace(seconds=60 * share, evaluation_seconds=0.0)

    assert share_within(minutes, num_train, with_share) == share
