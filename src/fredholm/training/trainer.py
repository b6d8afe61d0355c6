"""The training loop: epochs, evaluation, logs and checkpoints round a learner."""

import dataclasses
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from torch import Tensor

from fredholm.tasks.task import Batch, Task
from fredholm.training.atomic import write_file
from fredholm.training.batches import EpochBatches, iterate
from fredholm.training.checkpoint import AVERAGE, WEIGHTS, model_tensors, tensor_bytes
from fredholm.training.config import TrainingConfig
from fredholm.training.interruption import InterruptedRunError, Interruption
from fredholm.training.learner import Learner, NonFiniteError, StepReport
from fredholm.training.metrics_log import MetricsLog
from fredholm.training.progress import print_line, progress_bar
from fredholm.training.random_state import random_state, restore_random_state, seed_everything
from fredholm.training.run_folder import RunFolder
from fredholm.training.scoring import score_test_split


@final
class DivergedError(ArithmeticError):
    """Training stopped because the loss or its gradient is no longer finite."""


@final
@dataclass(kw_only=True)
class Progress:
    """How far a run is, between two optimiser steps; a checkpoint holds it."""

    epoch: int = 0
    batch: int = 0
    step: int = 0
    loss_sum: float = 0.0
    num_losses: int = 0
    best_step: int = -1
    best_value: float | None = None
    num_lines: int = 0
    metrics: dict[str, float] = field(default_factory=dict)


@final
class Trainer:
    """Trains a task's model in a run folder.

    Equal task, config, seed and machine give equal weights, interrupted or not.

    Args:
        task: data, loss and metric.
        config: the numbers.
        seed: of the weights, the data order, augmentation and dropout.
        folder: an existing run folder; if it has a checkpoint the run goes on from the last.
        start: tensors of the model by name, in place of its own first ones; not read where there is a checkpoint.

    Raises:
        ValueError: an empty split, or a checkpoint that is damaged or of another run.
    """

    def __init__(
        self,
        task: Task,
        config: TrainingConfig,
        seed: int,
        folder: RunFolder,
        start: Mapping[str, Tensor] | None = None,
    ) -> None:
        check_examples(task)
        seed_everything(seed)
        self.num_steps = config.epochs * math.ceil(task.num_train / config.batch_size)
        self.learner = Learner(task, config, self.num_steps, start)
        self.progress = Progress()
        self._task, self._config, self._seed, self._folder = task, config, seed, folder
        folder.checkpoints.clear_partial()
        if (step := folder.checkpoints.last_step()) is not None:
            self._restore(step)

    def fit(self) -> dict[str, float]:
        """Trains to the end.

        Returns:
            The averaged model's metrics on the test split after the last epoch.

        Raises:
            DivergedError: the loss is not finite; the batch is saved in the run folder.
            InterruptedRunError: on SIGINT or SIGTERM, after saving a checkpoint.
            OSError: a full disk; earlier checkpoints are intact.
        """
        progress, config = self.progress, self._config
        if progress.epoch == config.epochs:
            return progress.metrics
        self._log = MetricsLog(
            self._folder.path, num_lines=progress.num_lines, step=progress.step, tensorboard=config.tensorboard
        )
        bar = progress_bar("train", self.num_steps, unit="step", initial=progress.step)
        workers, pinned = config.num_workers, self.learner.device.type == "cuda"
        try:
            with Interruption() as interruption, bar:
                while progress.epoch < config.epochs:
                    self._clock, self._examples = time.perf_counter(), 0
                    batches = EpochBatches(self._task, config.batch_size, self._seed, progress.epoch)
                    for batch in iterate(batches, progress.batch, num_workers=workers, pin_memory=pinned):
                        self._step(batch, batches.indices[progress.batch])
                        bar.update()
                        self._save_between(interruption, is_last=progress.batch == len(batches))
                    self._finish_epoch()
        finally:
            self._log.close()
        return progress.metrics

    def _step(self, batch: Batch, indices: Tensor) -> None:
        progress = self.progress
        try:
            report = self.learner.update(batch, progress.step)
        except NonFiniteError as error:
            self._dump(batch, indices)
            raise DivergedError(
                f"{error} at step {progress.step} (epoch {progress.epoch}); the batch is saved in {self._dump_file}; "
                "try a lower learning_rate, a longer warm-up or precision float32"
            ) from error
        progress.step += 1
        progress.batch += 1
        progress.loss_sum += report.loss
        progress.num_losses += 1
        self._examples += len(indices)
        if progress.step % self._config.log_every == 0 or progress.step == self.num_steps:
            self._log_training(report)

    def _log_training(self, report: StepReport) -> None:
        progress, now = self.progress, time.perf_counter()
        values = {
            "epoch": progress.epoch,
            "loss": progress.loss_sum / progress.num_losses,
            "learning_rate": report.learning_rate,
            "gradient_norm": report.gradient_norm,
            "examples_per_second": self._examples / (now - self._clock),
        }
        self._log.write("train", progress.step, values)
        progress.loss_sum, progress.num_losses = 0.0, 0
        self._clock, self._examples = now, 0

    def _finish_epoch(self) -> None:
        progress, config, task = self.progress, self._config, self._task
        progress.epoch += 1
        progress.batch = 0
        if progress.epoch % config.evaluate_every and progress.epoch < config.epochs:
            return
        start = time.perf_counter()
        progress.metrics = score_test_split(
            task,
            self.learner.average.model,
            batch_size=config.test_batch_size,
            device=self.learner.device,
            dtype=config.dtype,
        )
        seconds = time.perf_counter() - start
        values = {"epoch": progress.epoch, **progress.metrics, "examples_per_second": task.num_test / seconds}
        self._log.write("test", progress.step, values)
        objective = task.objective
        value = progress.metrics[objective.metric]
        if objective.is_better(value, progress.best_value):
            progress.best_step, progress.best_value = progress.step, value
        epochs = f"epoch {progress.epoch}/{config.epochs}"
        print_line(f"{epochs}  step {progress.step}  {task.measured} {objective.metric} {objective.format(value)}")
        self._save()

    def _save_between(self, interruption: Interruption, *, is_last: bool) -> None:
        every, step = self._config.checkpoint_every, self.progress.step
        if interruption.signal_number is not None:
            self._save()
            message = f"interrupted; step {step} of {self.num_steps} is saved in {self._folder.path}, --resume goes on"
            raise InterruptedRunError(interruption.signal_number, message)
        if every and step % every == 0 and not is_last:
            self._save()

    def _save(self) -> None:
        self.progress.num_lines = self._log.num_lines
        state = {
            "progress": dataclasses.asdict(self.progress),
            "optimizer": self.learner.optimizer.state_dict(),
            "random": random_state(),
        }
        weights, average = model_tensors(self.learner.model), model_tensors(self.learner.average.model)
        self._folder.checkpoints.save(self.progress.step, weights, average, state, self.progress.best_step)

    def _restore(self, step: int) -> None:
        checkpoints = self._folder.checkpoints
        state = checkpoints.load_state(step)
        checkpoints.load_weights(step, self.learner.model, WEIGHTS)
        checkpoints.load_weights(step, self.learner.average.model, AVERAGE)
        try:
            self.learner.load_optimizer(state["optimizer"])
            self.progress = Progress(**state["progress"])
            restore_random_state(state["random"])
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise ValueError(f"the state of step {step} in {self._folder.path} is of another run or version") from error

    def _dump(self, batch: Batch, indices: Tensor) -> None:
        progress = self.progress
        notes = {"step": progress.step, "epoch": progress.epoch, "batch": progress.batch, "seed": self._seed}
        write_file(self._dump_file, tensor_bytes({**batch, "indices": indices}, notes))

    @property
    def _dump_file(self) -> Path:
        return self._folder.path / "non_finite_batch.safetensors"


def check_examples(task: Task) -> None:
    """Raises a ValueError unless there is something to train on and something to measure on."""
    if task.num_train == 0 or task.num_test == 0:
        raise ValueError(f"{task.num_train} training and {task.num_test} test examples; expected at least 1 each")
