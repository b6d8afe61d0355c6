"""How long to train, in what steps, and how wide a model: numbers that follow from the size of the data."""

import math
from dataclasses import dataclass, replace
from typing import Literal, final

Preset = Literal["small", "base"]
"""How much to spend: what two cores train in minutes, or what a GPU trains in as long."""

STEPS: dict[Preset, int] = {"small": 150, "base": 600}
"""Optimiser steps of a run on n examples, in units of n^0.4."""
DEPTH: dict[Preset, int] = {"small": 4, "base": 8}
"""Blocks of a model, where a task asks for no others."""
EVALUATIONS = 40
"""Of the validation split in a run, at most."""


@final
@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Numbers of `TrainingConfig` by name; see there."""

    epochs: int
    batch_size: int
    learning_rate: float
    warmup_fraction: float
    weight_decay: float
    ema_decay: float
    evaluate_every: int
    patience: int | None


def schedule_of(epochs: int, schedule: Schedule, num_train: int) -> Schedule:
    """A schedule with other epochs, and what follows from their number: averaging, evaluations, patience."""
    evaluate_every = math.ceil(epochs / EVALUATIONS)
    return replace(
        schedule,
        epochs=epochs,
        ema_decay=_ema_decay(epochs * math.ceil(num_train / schedule.batch_size)),
        evaluate_every=evaluate_every,
        patience=None if schedule.patience is None else _patience(epochs, evaluate_every),
    )


def _ema_decay(steps: int) -> float:
    """Of a moving average over the last fiftieth of a run."""
    return round(min(max(1 - 50 / steps, 0.5), 0.9999), 4)


def _patience(epochs: int, evaluate_every: int) -> int:
    return max(5, math.ceil(epochs / evaluate_every) // 4)


def width_for(amount: float, preset: Preset, *, least: int, up_to: float) -> int:
    """Channels of a model for so much data: half as many more with each factor of 10, twice as many for `base`.

    Args:
        amount: of what there is to learn from: examples, or tokens.
        preset: how much to spend.
        least: channels for a small amount, a multiple of 16.
        up_to: the largest small amount.
    """
    return 16 * round(least / 16 * 1.5 ** max(0.0, math.log10(amount / up_to))) * (1 if preset == "small" else 2)


def schedule_for(
    num_train: int,
    preset: Preset,
    *,
    has_valid: bool,
    length: float = 1.0,
    learning_rate: float = 2e-3,
    weight_decay: float = 0.05,
    batch_size: int | None = None,
    least_steps: int = 1,
) -> Schedule:
    """A schedule for so many examples.

    A batch is the power of two nearest to a twentieth of the examples, from 8 to 128. There are enough epochs for
    STEPS n^0.4 steps: few data are seen more often, but a run on many is longer. The moving average reaches over the
    last fiftieth of a run. A run ends where a quarter of its evaluations, at least 5 in a row, were no better than the
    best one.

    Args:
        num_train: examples in the training split, at least 1.
        preset: how much to spend.
        has_valid: whether there is a validation split, without which patience has nothing to go by.
        length: share of these steps that the task takes.
        learning_rate, weight_decay: of the task's default models.
        batch_size: another one.
        least_steps: steps that a run has at least, however few the examples.
    """
    size = batch_size or int(2 ** round(math.log2(min(max(num_train / 20, 8), 128))))
    steps_per_epoch = math.ceil(num_train / size)
    steps = max(length * STEPS[preset] * num_train**0.4, least_steps)
    epochs = max(1, round(steps / steps_per_epoch))
    evaluate_every = math.ceil(epochs / EVALUATIONS)
    return Schedule(
        epochs=epochs,
        batch_size=size,
        learning_rate=learning_rate,
        warmup_fraction=0.1,
        weight_decay=weight_decay,
        ema_decay=_ema_decay(epochs * steps_per_epoch),
        evaluate_every=evaluate_every,
        patience=_patience(epochs, evaluate_every) if has_valid else None,
    )
