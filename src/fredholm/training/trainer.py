"""The training loop: epochs, evaluation, logs and checkpoints of a learner."""

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from torch import Tensor

from fredholm.distributed.parallel_model import own_part
from fredholm.distributed.processes import ALONE, OtherProcessError, Processes, is_of_loss
from fredholm.storage.atomic import write_file
from fredholm.storage.config_json import from_json, to_json
from fredholm.storage.tensors import fill, model_tensors, tensor_bytes
from fredholm.tasks.files.terminal_text import counted
from fredholm.tasks.splits.splits import HeldOut
from fredholm.tasks.task import Score, Task
from fredholm.training.storage.checkpoint import AVERAGE, OPTIMIZER, WEIGHTS, Checkpoints
from fredholm.training.storage.metrics_log import LogPosition, MetricsLog
from fredholm.training.storage.run_folder import RunFolder

from .batches import EpochBatches, LostWorkerError, Share, iterate
from .config import TrainingConfig
from .interruption import InterruptedRunError, Interruption
from .learner import Learner, NonFiniteError, StepReport
from .progress import print_line, progress_bar
from .random_state import own_seed, random_state, restore_random_state, seed_everything
from .scoring import score_split

if TYPE_CHECKING:
    from torchmetrics import Metric

OVERFITTING = 1.05
"""Ratio of the validation loss to its minimum from which overfitting is reported, while the training loss falls."""


@final
class DivergedError(ArithmeticError):
    """Training stopped because the loss, its gradient or the weights are no longer finite."""


@final
@dataclass(kw_only=True)
class Progress:
    """Progress of a run between two optimiser steps, as stored in a checkpoint."""

    epochs: int
    """Number of epochs; like `patience`, it may change when the run is resumed."""
    patience: int | None
    num_steps: int = 0
    """Length of the schedule."""
    data: str = ""
    """Digest of the data (`Fingerprint.digest`); "" where unknown."""
    epoch: int = 0
    batch: int = 0
    step: int = 0
    loss_sum: float = 0.0
    num_losses: int = 0
    epoch_loss_sum: float = 0.0
    best_step: int = -1
    best_value: float | None = None
    """Objective of the best step on the validation split; None: not measured, or undefined."""
    best_loss: float | None = None
    lowest_loss: float | None = None
    """Lowest validation loss, with its epoch and the training loss then."""
    lowest_loss_epoch: int = -1
    train_loss_then: float | None = None
    worse: int = 0
    """Successive evaluations that were no better than the best one."""
    is_done: bool = False
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics on the validation split; once the run is done, on the split of its final measurement."""


@final
class Trainer:
    """Trains a task's model in a run folder.

    Equal task, config, seed and machine give equal weights, interrupted or not.

    Args:
        task: data, loss and metrics.
        config: training settings.
        seed: seed of the weights, the data order, augmentation and dropout.
        folder: an existing run folder; if it has a checkpoint, the run continues from the last.
        start: tensors, by name, that replace initial weights of the model; ignored where there is a checkpoint.
        reads_test: measure the chosen weights on the test split, where there is one; False: never read it.
        processes: processes that train together; the first alone writes.
        data: digest of the data. Where the checkpoint has another one, its unfinished epoch and the choice of the best
            step begin anew.

    Raises:
        ValueError: an empty split; a checkpoint that is damaged or of another run; or changed epochs or patience that
            leave nothing to do.
    """

    def __init__(
        self,
        task: Task,
        config: TrainingConfig,
        seed: int,
        folder: RunFolder,
        start: Mapping[str, Tensor] | None = None,
        *,
        reads_test: bool = True,
        processes: Processes = ALONE,
        data: str = "",
    ) -> None:
        check_examples(task, config)
        seed_everything(seed)
        processes.on_first(folder.recover)
        self._checkpoints, self._processes = folder.checkpoints, processes
        step = processes.from_first(self._checkpoints.last_step())
        self._steps_per_epoch = math.ceil(task.num_train / config.batch_size)
        self.progress = Progress(epochs=config.epochs, patience=config.patience, data=data)
        best = -1
        if step is not None:
            self.progress = read_progress(self._checkpoints, step)
            best = self.progress.best_step
            self._forget_other_data(data)
        done = self.progress.epoch * self._steps_per_epoch + self.progress.batch
        # epochs of earlier data may have had other numbers of steps
        self.num_steps = self.progress.step + config.epochs * self._steps_per_epoch - done
        self.learner = Learner(task, config, self.num_steps, start, is_new=step is None, processes=processes)
        if not processes.is_first:
            seed_everything(own_seed(seed, processes.rank, 0))
        self._log_mark, self._before = LogPosition(), None
        self._log: MetricsLog | None = None
        self._task, self._config, self._seed, self._folder = task, config, seed, folder
        self._has_valid = task.num_held_out("valid") > 0
        self._measured_split = measured_split(task, reads_test=reads_test)
        self._has_reported_undefined = False
        if step is not None:
            self._restore(step, best)
            self._extend_run()
        self.progress.num_steps = self.num_steps

    def fit(self) -> dict[str, float]:
        """Trains to the end, chooses the checkpoint that was best on the validation split, and measures it.

        Returns:
            The averaged model's metrics on the test split, which is read only here, or without one on the validation
            split. Without a validation split the model is the one after the last epoch. Empty without both.

        Raises:
            DivergedError: the loss is not finite, and the batch is saved in the run folder; or the weights are not, and
                no checkpoint is saved.
            ValueError: metrics.jsonl is not what the run had written.
            InterruptedRunError: on SIGINT, SIGTERM or SIGHUP, after saving a checkpoint.
            LostWorkerError: a process that makes batches was killed; a checkpoint was saved.
            OSError: a full disk; earlier checkpoints are intact.
        """
        progress, config = self.progress, self._config
        if progress.is_done:
            return progress.metrics
        if self._processes.is_first:
            self._log = MetricsLog(
                self._folder.path, mark=self._log_mark, step=progress.step, tensorboard=config.tensorboard
            )
        if self._before is not None:
            self._report_new_end(self._before)
        bar = progress_bar("train", self.num_steps, unit="step", initial=progress.step)
        workers, pinned = config.num_workers, self.learner.device.type == "cuda"
        try:
            with (
                Interruption(is_alone=self._processes.size == 1) as interruption,
                self._quiet_on_lost_process(interruption),
                self._checkpoints.in_background(),
                bar,
            ):
                if config.epochs == 0 and progress.best_step < 0:
                    self._evaluate()
                while progress.epoch < config.epochs and not self._is_out_of_patience:
                    self._clock, self._examples = time.perf_counter(), 0
                    batches = EpochBatches(self._task, config.batch_size, self._seed, progress.epoch, self._processes)
                    made = iterate(batches, progress.batch, num_workers=workers, pin_memory=pinned)
                    with contextlib.closing(made):
                        for share in made:
                            self._step(share, batches)
                            bar.update()
                            self._save_between(interruption, is_last=progress.batch == len(batches))
                    self._finish_epoch()
                    self._stop_if_asked(interruption)
                self._measure()
                self._stop_if_asked(interruption)
        except LostWorkerError as error:
            if self._processes.size == 1:  # else the others are in the middle of a step
                self._save()
                raise LostWorkerError(f"{error}; {self._saved}; where memory is short, lower num_workers") from error
            raise LostWorkerError(f"{error}; {self._kept}; where memory is short, lower num_workers") from error
        finally:
            if self._log is not None:
                self._log.close()
        return progress.metrics

    @contextlib.contextmanager
    def _quiet_on_lost_process(self, interruption: Interruption) -> Iterator[None]:
        """Raises OtherProcessError, which is not reported, where another process ended and this one was stopped."""
        try:
            yield
        except RuntimeError as error:
            if interruption.signal_number is None or not is_of_loss(error):
                raise
            raise OtherProcessError("another process has ended") from error

    def _forget_other_data(self, data: str) -> None:
        """Forgets measurements on earlier data, which later ones cannot be compared with."""
        progress = self.progress
        if progress.data not in ("", data):
            progress.batch, progress.epoch_loss_sum = 0, 0.0
            progress.best_step, progress.best_value, progress.best_loss, progress.worse = -1, None, None, 0
            progress.lowest_loss, progress.lowest_loss_epoch, progress.train_loss_then = None, -1, None
        progress.data = data

    def _extend_run(self) -> None:
        """Continues a run with changed epochs or patience, finished or not.

        Raises:
            ValueError: nothing is left to do.
        """
        progress, config = self.progress, self._config
        if (progress.epochs, progress.patience) == (config.epochs, config.patience):
            return
        if progress.epoch >= config.epochs:
            raise ValueError(
                f"{self._folder.path} has learnt for {counted(progress.epoch, 'epoch')}, and training.epochs is "
                f"{config.epochs}; pass more to go on longer"
            )
        if self._is_out_of_patience:
            raise ValueError(
                f"{self._folder.path} had {progress.worse} evaluations in a row without a better one, and "
                f"training.patience is {config.patience}; pass more to go on longer"
            )
        self._before = dataclasses.replace(progress)
        progress.epochs, progress.patience = config.epochs, config.patience
        progress.is_done, progress.metrics = False, {}

    def _report_new_end(self, before: Progress) -> None:
        """Prints and logs the change of the learning rate; prints that the test split is read again."""
        config, step = self._config, before.step
        if before.epochs != config.epochs:
            last = config.rate_at(max(step - 1, 0), before.num_steps or before.epochs * self._steps_per_epoch)
            rate = config.rate_at(step, self.num_steps)
            moves = "stays at" if rate == last else f"{'rises' if rate > last else 'falls'} from {last:.3g} to"
            print_line(
                f"{counted(config.epochs, 'epoch')} in place of {before.epochs}: from here on the schedule is that of "
                f"{counted(config.epochs, 'epoch')}; the learning rate {moves} {rate:.3g}"
            )
            self._write("schedule", {"epoch": before.epoch, "epochs": config.epochs, "learning_rate": rate})
        if before.is_done and self._task.num_held_out("test"):
            print_line("the test split was read when the run ended before; it is read again at the new end")

    @property
    def _is_out_of_patience(self) -> bool:
        """Whether the patience is exhausted."""
        patience = self._config.patience
        return patience is not None and self.progress.worse >= patience

    def _write(self, kind: str, values: dict[str, int | float]) -> None:
        """Writes a line to the log, on the first process."""
        if self._log is not None:
            self._log.write(kind, self.progress.step, values)

    def _step(self, share: Share, batches: EpochBatches) -> None:
        progress = self.progress
        try:
            report = self.learner.update(share, progress.step)
        except NonFiniteError as error:
            self._processes.on_first(lambda: self._dump(batches))
            raise DivergedError(
                f"{error} at step {progress.step} (epoch {progress.epoch}); the batch is saved in {self._dump_file}; "
                "try a lower learning_rate, a longer warm-up or precision float32"
            ) from error
        progress.step += 1
        progress.batch += 1
        progress.loss_sum += report.loss
        progress.epoch_loss_sum += report.loss
        progress.num_losses += 1
        self._examples += share.num_examples
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
        self._write("train", values)
        progress.loss_sum, progress.num_losses = 0.0, 0
        self._clock, self._examples = now, 0

    def _finish_epoch(self) -> None:
        progress, config = self.progress, self._config
        progress.epoch += 1
        progress.batch = 0
        train_loss = progress.epoch_loss_sum / self._steps_per_epoch
        progress.epoch_loss_sum = 0.0
        if progress.epoch % config.evaluate_every == 0 or progress.epoch == config.epochs:
            self._evaluate(train_loss)
        elif config.checkpoint_every and progress.step % config.checkpoint_every == 0:
            self._save()

    def _evaluate(self, train_loss: float | None = None) -> None:
        """Measures the averaged model on the validation split, if there is one, and saves a checkpoint."""
        progress, objective = self.progress, self._task.objective
        words = [f"epoch {progress.epoch}/{self._config.epochs}", f"step {progress.step}"]
        if train_loss is not None:
            words.append(f"train loss {train_loss:.4f}")
        self._refuse_non_finite()
        if self._has_valid:
            self._task.choose_by_validation(self.learner.average.model, functools.partial(self._measured, "valid"))
            progress.metrics = self._score("valid")
            value, loss = progress.metrics[objective.metric], progress.metrics["loss"]
            words.append(f"valid loss {loss:.4f}")
            if math.isnan(value) and objective.needs:
                self._report_undefined(value, loss)
                value = None
            elif objective.metric != "loss":
                words.append(f"valid {objective.metric} {objective.format(value)}")
            # on a small split many evaluations are equal: the loss then decides, as it does without a metric
            before = progress.best_loss
            is_equal_and_surer = value == progress.best_value and (before is None or loss < before)
            if value is None and math.isnan(loss):
                pass  # evaluations cannot be compared
            elif is_equal_and_surer or (value is not None and objective.is_better(value, progress.best_value)):
                progress.best_step, progress.best_value, progress.best_loss = progress.step, value, loss
                progress.worse = 0
            else:
                progress.worse += 1
            if progress.lowest_loss is None or loss < progress.lowest_loss:
                progress.lowest_loss, progress.lowest_loss_epoch = loss, progress.epoch
                progress.train_loss_then = train_loss
            elif train_loss is not None and (progress.epoch == self._config.epochs or self._is_out_of_patience):
                self._report_overfitting(loss, train_loss)
        self._save()
        if len(words) > 2:
            print_line("  ".join(words))

    def _report_undefined(self, value: float, loss: float) -> None:
        """Reports, once, the criterion that replaces an objective that is undefined on the validation split."""
        objective = self._task.objective
        if not self._has_reported_undefined:
            measured = f"valid {objective.metric.replace('_', ' ')} {objective.format(value)}"
            chosen = "the last weights are taken" if math.isnan(loss) else "weights are chosen by the validation loss"
            print_line(f"{measured}: {chosen}")
        self._has_reported_undefined = True

    def _report_overfitting(self, loss: float, train_loss: float) -> None:
        progress, lowest, before = self.progress, self.progress.lowest_loss, self.progress.train_loss_then
        if lowest is not None and loss > OVERFITTING * abs(lowest) and before is not None and train_loss < before:
            print_line(
                f"the validation loss was lowest after epoch {progress.lowest_loss_epoch} ({lowest:.4f}) and rose to "
                f"{loss:.4f} while the training loss fell: the model overfits; try more data or augmentation, more "
                "dropout or weight decay, or a smaller model"
            )

    def _measure(self) -> None:
        """Measures the chosen model once, on the test split, or without one on the validation split."""
        progress, objective = self.progress, self._task.objective
        model, chosen = self.learner.average.model, progress.best_step
        own = None
        if chosen not in (-1, progress.step):
            own = {name: tensor.clone() for name, tensor in model_tensors(model).items()}
            self._wait()
            self._checkpoints.load_weights(chosen, model)
        if self._measured_split == "test":
            progress.metrics = self._score("test")
        elif self._has_valid and chosen != progress.step:
            progress.metrics = self._score("valid")
        if own is not None:
            fill(model, own)  # a longer run continues from these
        progress.is_done = True
        step = progress.step if chosen < 0 else chosen
        if (split := self._measured_split) is not None:
            measured = ", ".join(
                f"{each.metric.replace('_', ' ')} {each.format(progress.metrics[each.metric])}"
                for each in {each.metric: each for each in (objective, *self._task.shown)}.values()
            )
            print_line(f"{split} {measured}, {which_weights(self._task, step)}")
        else:
            print_line("nothing is held out, so the model is not measured")
        self._save()
        self._wait()

    def _score(self, split: HeldOut) -> dict[str, float]:
        progress, start = self.progress, time.perf_counter()
        found = self._measured(split)
        rate = self._task.num_held_out(split) / (time.perf_counter() - start)
        values = {"epoch": progress.epoch, **found, "examples_per_second": rate}
        if split == "test":
            values["unix_time"] = time.time()  # when the test split was read
        self._write(split, values)
        return found

    def _measured(
        self, split: HeldOut, score: Score | None = None, metrics: "dict[str, Metric] | None" = None
    ) -> dict[str, float]:
        return score_split(
            self._task,
            split,
            self.learner.averaged,
            batch_size=self._config.evaluation_batch_size,
            device=self.learner.device,
            dtype=self._config.dtype,
            processes=self._processes,
            score=score,
            metrics=metrics,
        )

    def _save_between(self, interruption: Interruption, *, is_last: bool) -> None:
        self._stop_if_asked(interruption)
        if self._checkpoints.has_failed:
            self._checkpoints.wait()
        every = self._config.checkpoint_every
        if every and self.progress.step % every == 0 and not is_last:
            self._save()

    def _stop_if_asked(self, interruption: Interruption) -> None:
        number = self._processes.largest(interruption.signal_number or 0)
        if number:
            if not self.progress.is_done:
                self._save()
                self._wait()
            raise InterruptedRunError(number, f"interrupted; {self._saved}")

    @property
    def _saved(self) -> str:
        """Message about the checkpoint that was just written."""
        progress, path = self.progress, self._folder.path
        if progress.is_done:
            return f"the run in {path} is done"
        return f"step {progress.step} of {self.num_steps} is saved in {path}, --resume goes on"

    @property
    def _kept(self) -> str:
        """Message about the last existing checkpoint."""
        step = self._checkpoints.last_step()
        return "there is no checkpoint yet" if step is None else f"the checkpoint of step {step} stays"

    def _save(self) -> None:
        self._refuse_non_finite()
        random, progress = self._processes.gather(random_state()), self.progress

        def save() -> None:
            log = None if self._log is None else to_json(self._log.mark())
            state = {"progress": to_json(progress), "random": random, "log": log}
            self._folder.refuse_removed()
            self._checkpoints.save(progress.step, self._tensors(), state, progress.best_step)

        if self._config.shard:
            save()
        else:
            self._processes.on_first(save)

    def _wait(self) -> None:
        """Waits until every checkpoint is complete and readable by all processes."""
        with self._processes.first_ahead():
            self._checkpoints.wait()

    def _tensors(self) -> dict[str, dict[str, Tensor]]:
        """Returns the tensors of a checkpoint by file."""
        learner = self.learner
        return {
            WEIGHTS: model_tensors(learner.model),
            AVERAGE: model_tensors(learner.average.model),
            OPTIMIZER: learner.optimizer_tensors(),
        }

    def _refuse_non_finite(self) -> None:
        """Raises a DivergedError if the weights, their average or the optimiser's tensors are not finite."""
        bad = (
            f"{name} of {file}"
            for file, tensors in self._tensors().items()
            for name, tensor in tensors.items()
            if tensor.is_floating_point() and not own_part(tensor).isfinite().all()
        )
        found = next(filter(None, self._processes.gather(next(bad, ""))), None)
        if found:
            raise DivergedError(
                f"{found} is not finite after step {self.progress.step}, which is not saved; {self._kept}; try a lower "
                "learning_rate, a longer warm-up or precision float32"
            )

    def _restore(self, step: int, best: int) -> None:
        """Continues from a checkpoint after reading and checking it and the best one; removes others.

        Raises:
            ValueError: one of the two is damaged or of another run.
        """
        checkpoints = self._checkpoints
        progress, state = self.progress, checkpoints.load_state(step)
        where = f"the state of step {step} in {self._folder.path}"
        if not 0 <= progress.batch <= self._steps_per_epoch:
            raise ValueError(f"{where} is at batch {progress.batch} of an epoch of {self._steps_per_epoch}")
        if best not in (-1, step):
            checkpoints.check(best)
        moments = checkpoints.load_tensors(step, OPTIMIZER, self.learner.optimizer_form())
        self.learner.load_optimizer(moments, where)
        checkpoints.load_weights(step, self.learner.model, WEIGHTS)
        checkpoints.load_weights(step, self.learner.average.model, AVERAGE)
        try:
            self._log_mark = from_json(state.get("log"), LogPosition, (), "log")
            self._restore_random_state(state.get("random"), step)
        except ValueError as error:
            raise ValueError(f"{where} is of another version: {error}") from error
        self._processes.gather(None)  # all have read
        if self._processes.is_first:
            checkpoints.keep((step, best))

    def _restore_random_state(self, states: Any, step: int) -> None:
        """Restores the generators of this process; in an additional process they are seeded anew.

        Raises:
            ValueError: they are no states of generators.
        """
        if not isinstance(states, list) or not states:
            raise ValueError("it has no state of the random generators here")
        rank = self._processes.rank
        if rank < len(states):
            restore_random_state(states[rank])
        else:
            seed_everything(own_seed(self._seed, rank, step))

    def _dump(self, batches: EpochBatches) -> None:
        progress = self.progress
        batch, indices = batches.whole(progress.batch), batches.indices[progress.batch]
        notes = {"step": progress.step, "epoch": progress.epoch, "batch": progress.batch, "seed": self._seed}
        write_file(self._dump_file, tensor_bytes({**batch, "indices": indices}, notes))

    @property
    def _dump_file(self) -> Path:
        return self._folder.path / "non_finite_batch.safetensors"


def read_progress(checkpoints: Checkpoints, step: int) -> Progress:
    """Reads the progress of a run at a checkpoint.

    Raises:
        ValueError: it is damaged, or of another version.
    """
    where = f"the state of step {step} in {checkpoints.folder}"
    state = checkpoints.load_state(step)
    try:
        progress = from_json(state.get("progress"), Progress, (), "progress")
    except ValueError as error:
        raise ValueError(f"{where} is of another version: {error}") from error
    if progress.step != step or not -1 <= progress.best_step <= step or progress.epoch < 0:
        raise ValueError(f"{where} is of step {progress.step}, the best of which is {progress.best_step}")
    return progress


def check_processes(config: TrainingConfig, processes: Processes) -> None:
    """Raises a ValueError where a batch has fewer examples than processes, or a setting needs several processes."""
    if config.batch_size < processes.size:
        raise ValueError(
            f"training.batch_size is {config.batch_size}, and {processes.size} processes share each batch; pass "
            f"{processes.size} or more"
        )
    if config.shard and processes.size == 1:
        raise ValueError("training.shard has no effect on one process; leave it out, or train on several")


def check_examples(task: Task, config: TrainingConfig) -> None:
    """Raises a ValueError unless there are training examples and every setting has an effect.

    Missing packages raise an ImportError; see `Task.check_packages`.
    """
    if task.num_train == 0:
        raise ValueError("0 training examples; expected at least 1")
    config.check_steps(learns_by_steps=task.learns_by_steps)
    if task.num_held_out("valid") == 0 and config.patience is not None:
        raise ValueError(f"patience={config.patience} has no effect without a validation split; pass a valid_fraction")
    task.check_packages()


def which_weights(task: Task, step: int) -> str:
    """Describes the weights that were measured."""
    return f"averaged weights of step {step}" if task.learns_by_steps else "weights fitted in closed form"


def measured_split(task: Task, *, reads_test: bool = True) -> HeldOut | None:
    """Returns the split that a finished run is measured on; None where nothing is held out or may be read."""
    splits: tuple[HeldOut, ...] = ("test", "valid") if reads_test else ("valid",)
    return next((split for split in splits if task.num_held_out(split)), None)
