"""The plan of a run: its sizes, and its duration estimated from two measured steps."""

import bisect
import math
from collections.abc import Callable
from typing import NamedTuple, final

from fredholm.tasks.files.terminal_text import counted
from fredholm.tasks.task import Task

from .config import TrainingConfig
from .learner import NonFiniteError
from .step_cost import StepCost, step_cost
from .trainer import DivergedError

COPIES = 4
"""Copies of each parameter in a checkpoint: the weight, its average, and two moments of the optimiser."""
MODELS = 2
"""Copies of each buffer in a checkpoint: that of the last step and that of the average."""
CHECKPOINTS = 2
"""Checkpoints in a run folder: the last and the best."""
LEAST_EXAMPLES = 1000
"""Smallest number of examples that a run of few minutes is sized for; models are no narrower below it."""


@final
class Plan(NamedTuple):
    """Sizes and estimated duration of a run that has not begun."""

    model: str
    """Class name of the model."""
    num_parameters: int
    num_train: int
    num_valid: int
    num_test: int
    num_steps: int
    epochs: int
    batch_size: int
    seconds: float
    """Duration of all steps and evaluations, if no patience ends them early."""
    num_bytes: int
    """Size of the run folder."""
    advice: tuple[str, ...]
    """See `Task.advice`."""

    def __str__(self) -> str:
        """Returns a readable summary, one fact a line."""
        held_out = f"{self.num_valid:,} for validation and {self.num_test:,} for testing"
        each = f"{counted(-(-self.num_train // self.batch_size), 'step')} on batches of {self.batch_size}"
        steps = f"{counted(self.epochs, 'epoch')} of {each}; at most {duration(self.seconds)}"
        return (
            f"data: {self.num_train:,} examples to learn from, {held_out}\n"
            f"model: {self.model} with {self.num_parameters:,} parameters\n"
            f"training: {steps if self.num_steps else 'fitted in closed form'}; "
            f"{max(1, round(self.num_bytes / 1e6)):,} MB on disk" + "".join(f"\n{line}" for line in self.advice)
        )


def first_steps(task: Task, config: TrainingConfig, seed: int, num_processes: int = 1) -> StepCost:
    """Measures the second of two optimiser steps and the evaluation of one batch; nothing is kept.

    Args:
        task: task of the run.
        config: its training settings.
        seed: its seed.
        num_processes: processes that share each batch; their communication is not measured.

    Raises:
        ValueError: as raised by `train` for unusable data or epochs.
        DivergedError: the loss of the first steps is not finite.
    """
    try:
        return step_cost(task, config, seed, num_processes=num_processes)
    except NonFiniteError as error:
        raise DivergedError(
            f"{error} in the first steps, which were measured; try a lower learning_rate, a longer warm-up or "
            "precision float32"
        ) from error


def plan(task: Task, config: TrainingConfig, cost: StepCost) -> Plan:
    """Returns the plan of a run from the cost of its `first_steps`."""
    return Plan(
        model=cost.model,
        num_parameters=cost.num_parameters,
        num_train=task.num_train,
        num_valid=task.num_held_out("valid"),
        num_test=task.num_held_out("test"),
        num_steps=config.epochs * cost.steps_per_epoch,
        epochs=config.epochs,
        batch_size=config.batch_size,
        seconds=_seconds(config, cost),
        num_bytes=CHECKPOINTS * (COPIES * cost.num_parameter_bytes + MODELS * cost.num_buffer_bytes),
        advice=task.advice,
    )


def share_within(
    minutes: float, num_train: int, with_share: Callable[[float], tuple[TrainingConfig, StepCost]]
) -> float:
    """Returns the largest share of the examples with which a run takes at most ``minutes``; see `Effort`.

    Shares are 1, 1/2, 1/4 and so on, down to LEAST_EXAMPLES; the smallest of them where none is fast enough.

    Args:
        minutes: as in `epochs_within`.
        num_train: examples in the training split.
        with_share: returns the training settings and the step cost of a run that is sized for a share.
    """
    halvings = max(0, math.floor(math.log2(num_train / LEAST_EXAMPLES)))
    shares = [0.5**count for count in range(halvings + 1)]

    def fits(share: float) -> bool:
        return _seconds(*with_share(share)) <= 60 * minutes

    # a run for a smaller share is shorter
    return shares[min(bisect.bisect_left(shares, True, key=fits), halvings)]


def epochs_within(minutes: float, most: int, with_epochs: Callable[[int], TrainingConfig], cost: StepCost) -> int:
    """Returns the largest number of epochs that take at most ``minutes``.

    Args:
        minutes: time for steps and evaluations as they were measured; reading the data and the final evaluation on the
            test split are extra.
        most: number of epochs that suits the data, at least 1.
        with_epochs: returns the training settings for a number of epochs.
        cost: result of `first_steps`.

    Raises:
        ValueError: not even one epoch fits.
    """
    for epochs in range(most, 0, -1):
        if _seconds(with_epochs(epochs), cost) <= 60 * minutes:
            return epochs
    one = math.ceil(_seconds(with_epochs(1), cost) / 6) / 10
    raise ValueError(
        f"{minutes:.4g} minutes a run are too few: one epoch takes about {one:g} here; pass more, a smaller model, or "
        "fewer examples"
    )


def _seconds(config: TrainingConfig, cost: StepCost) -> float:
    """Duration of all steps and evaluations, if no patience ends them early."""
    num_evaluations = math.ceil(config.epochs / config.evaluate_every)
    return config.epochs * cost.steps_per_epoch * cost.seconds + num_evaluations * cost.evaluation_seconds


def duration(seconds: float) -> str:
    """Formats a duration, such as 40 s or 2.5 h."""
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    if seconds < 5400:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h"
