"""What a run will be: its sizes, and how long it takes by two measured steps."""

import time
from typing import NamedTuple, final

import torch

from fredholm.tasks.splits.splits import HeldOut
from fredholm.tasks.task import Task

from .batches import EpochBatches
from .config import TrainingConfig
from .device import move
from .learner import Learner
from .random_state import seed_everything
from .trainer import check_examples

COPIES = 4
"""Of each parameter in a checkpoint: the weight, its average, and two moments of the optimiser."""
CHECKPOINTS = 2
"""That a run folder keeps: the last and the best."""


@final
class Plan(NamedTuple):
    """Of a run that was not begun."""

    model: str
    """Its class."""
    num_parameters: int
    num_train: int
    num_valid: int
    num_test: int
    num_steps: int
    epochs: int
    batch_size: int
    seconds: float
    """Of all steps and evaluations, if no patience ends them."""
    num_bytes: int
    """Of the run folder."""
    advice: tuple[str, ...]
    """See `Task.advice`."""

    def __str__(self) -> str:
        """For people, in lines."""
        held_out = f"{self.num_valid:,} for validation and {self.num_test:,} for testing"
        steps = (
            f"{self.epochs} epochs of {-(-self.num_train // self.batch_size):,} steps on batches of "
            f"{self.batch_size}; at most {_duration(self.seconds)}"
        )
        return (
            f"data: {self.num_train:,} examples to learn from, {held_out}\n"
            f"model: {self.model} with {self.num_parameters:,} parameters\n"
            f"training: {steps if self.num_steps else 'fitted at once'}; "
            f"{max(1, round(self.num_bytes / 1e6)):,} MB on disk" + "".join(f"\n{line}" for line in self.advice)
        )


def plan(task: Task, config: TrainingConfig, seed: int) -> Plan:
    """Measures the second of two optimiser steps, and the evaluation of one batch; nothing is kept.

    Args:
        task: of the run.
        config: how it is trained.
        seed: of the run.

    Raises:
        ValueError: what `train` refuses of data and epochs.
    """
    check_examples(task, config)
    seed_everything(seed)
    batches = EpochBatches(task, config.batch_size, seed, 0)
    num_steps = config.epochs * len(batches)
    learner = Learner(task, config, max(num_steps, 1), is_new=False)
    seconds = 0.0
    if num_steps:
        learner.update(batches[0], 0)
        start = time.perf_counter()
        learner.update(batches[min(1, len(batches) - 1)], 1)
        each_step = time.perf_counter() - start
        num_evaluations = -(-config.epochs // config.evaluate_every)
        seconds = num_steps * each_step + num_evaluations * _evaluation(task, learner, config)
    parameters = sum(p.numel() for p in learner.model.parameters())
    stored = sum(p.numel() * p.element_size() for p in learner.model.parameters())
    return Plan(
        model=type(learner.model).__name__,
        num_parameters=parameters,
        num_train=task.num_train,
        num_valid=task.num_held_out("valid"),
        num_test=task.num_held_out("test"),
        num_steps=num_steps,
        epochs=config.epochs,
        batch_size=config.batch_size,
        seconds=seconds,
        num_bytes=CHECKPOINTS * COPIES * stored,
        advice=task.advice,
    )


@torch.no_grad()
def _evaluation(task: Task, learner: Learner, config: TrainingConfig) -> float:
    """Seconds of one evaluation on the validation split, by those of one batch."""
    split: HeldOut = "valid"
    count = task.num_held_out(split)
    if count == 0:
        return 0.0
    shown, model = min(count, config.evaluation_batch_size), learner.average.model
    metrics = {name: metric.to(learner.device) for name, metric in task.metrics().items()}
    start = time.perf_counter()
    with torch.autocast(learner.device.type, dtype=config.dtype, enabled=config.dtype != torch.float32):
        task.score(model, move(task.held_out_batch(split, torch.arange(shown)), learner.device), metrics)
    return (time.perf_counter() - start) * count / shown


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    if seconds < 5400:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h"
