"""The protocol that all kernels of a comparison share, and the runs that follow from it."""

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, final, get_args

import torch

from fredholm._settings import check_count, check_number, check_seed, filled, with_given
from fredholm.models.kernel_configs import KernelConfig
from fredholm.models.signal_model import replaced
from fredholm.models.stack import Stack
from fredholm.tasks.schedule import Preset, Schedule, names_model
from fredholm.tasks.task import Task
from fredholm.training.config import TrainingConfig
from fredholm.training.learner import NonFiniteError
from fredholm.training.memory import lacking_memory
from fredholm.training.run import Run
from fredholm.training.step_cost import step_cost

from .comparison import LeftOut, Row
from .equal_sizes import sized
from .kernels import KERNELS_BY_NAME, MEASURE, chosen, kernel_of

DEFAULT = "default"
"""Name of the row of the task's own model."""
TINY_RATE = 1e-12
"""Learning rate of the measured steps, low enough that none diverges."""
REPEATS = 5
"""Number of measured steps; their median is the time of a step."""
_OWNER = "comparison.Request"
SLOW = 3.0
"""Ratio to the median epoch time of all kernels above which a kernel is left out as slow."""


@final
@dataclass(frozen=True, kw_only=True)
class Request:
    """Settings of a comparison.

    Args:
        run: task, whose network is `Task.Config.stack`, and training settings to replace those that suit the data. The
            seed and `init` are ignored.
        given: names of settings of `run`, such as task.model.stack.dropout, that were set by the user and stay, even at
            their defaults; other settings at their defaults are replaced by those that suit the data.
        default: run of the task's own model, or the reason why there is none.
        kernels: names, in the order of `KERNELS_BY_NAME`.
        seeds: seeds of the final runs, all different.
        preset: size of the network.
        minutes: budget of all training; None: epochs are given.
        epochs: epochs of a final run; None: minutes are given.
        leave_out_slow: leave out kernels whose epoch takes over 3 times the median of all kernels, so that one does not
            use up the minutes of all others.
    """

    run: Run.Config
    given: tuple[str, ...] = ()
    default: Run.Config | str = "not requested"
    kernels: tuple[str, ...]
    seeds: tuple[int, ...] = (0, 1, 2)
    preset: Preset = "small"
    minutes: float | None = 20.0
    epochs: int | None = None
    leave_out_slow: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.run, Run.Config):
            raise TypeError(f"run is of type {type(self.run).__name__}; expected a Run.Config")
        if not isinstance(self.default, Run.Config | str):
            raise TypeError(
                f"default is of type {type(self.default).__name__}; expected a Run.Config, or why not, a text"
            )
        if self.preset not in (known := get_args(Preset)):
            raise ValueError(f"preset is {self.preset!r}; expected one of {', '.join(known)}")
        chosen(self.kernels)  # raises for unknown and repeated names
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            fault = f"names a seed twice: {' '.join(map(str, self.seeds))}" if self.seeds else "is empty"
            raise ValueError(f"seeds {fault}; give each once")
        for seed in self.seeds:
            check_seed(seed)
        # a frozen dataclass refuses plain assignment; the file of a comparison stores Python numbers
        object.__setattr__(self, "seeds", tuple(map(int, self.seeds)))
        if self.minutes is None and self.epochs is None:
            raise ValueError("neither minutes nor epochs are given, which say when to end; pass one of them")
        if self.minutes is not None:
            check_number(_OWNER, "minutes", self.minutes)
            if not 0 < self.minutes < math.inf:
                raise ValueError(f"minutes is {self.minutes}; expected a finite number above 0")
        if self.epochs is not None:
            check_count(_OWNER, "epochs", self.epochs)


class Measured(NamedTuple):
    """A row with the seconds of one of its epochs."""

    row: Row
    epoch_seconds: float


@final
class Protocol:
    """Data, schedule and network that all kernels share.

    Args:
        request: settings of the comparison.
        epochs: epochs of a final run, which the settings depend on; None: the number that suits the data. Where minutes
            choose the epochs, the batch size is that for the latter number, since its steps were measured.

    Raises:
        ValueError: the data cannot be opened, have no validation split, or the task has no network with a kernel.
    """

    def __init__(self, request: Request, epochs: int | None) -> None:
        self.request, self._epochs, given = request, epochs, request.run.task
        given = given.with_stack(dataclasses.replace(given.stack, kernel=kernel_of(MEASURE, given.kernel_sigma)))
        recommended = given.recommended(request.preset, epochs=epochs)
        self.config, self.notes = with_given(recommended.config, given, self._given("task")), recommended.notes
        whole = recommended if epochs == request.epochs else given.recommended(request.preset)
        batch_size = self._with_requested(whole.schedule.settings).batch_size
        self._schedule: Schedule = whole.schedule.adjusted(batch_size=batch_size)
        self.task = self.config.build()
        if self.task.num_held_out("valid") == 0:
            raise ValueError(
                f"{given.data}: kernels are chosen on a validation split, and there is none; pass a valid_fraction "
                "above 0"
            )
        if not self.task.is_defined("valid"):
            metric, undefined = self.task.objective.metric, self.task.objective.format(math.nan)
            raise ValueError(
                f"{given.data}: kernels are compared by {metric}, which is {undefined} on the validation split; pass "
                "objective='loss', which is defined everywhere"
            )

    @property
    def max_epochs(self) -> int:
        """Number of epochs that suits the data."""
        return self._schedule.epochs

    @cached_property
    def usual_rate(self) -> float:
        """Learning rate that suits the task."""
        return self.training(1).learning_rate

    @cached_property
    def wanted_parameters(self) -> int:
        """P*, the number of parameters of the preset's network with attention."""
        return self._count(self.config.stack)

    def training(self, epochs: int) -> TrainingConfig:
        """Returns the training settings for a number of epochs, with the usual learning rate and without patience."""
        schedule = dataclasses.replace(self._schedule.adjusted(epochs=epochs), patience=None)
        steps_per_epoch = -(-self.task.num_train // schedule.batch_size)
        return self._with_requested(schedule.settings | {"checkpoint_every": steps_per_epoch})

    def _with_requested(self, settings: dict[str, Any]) -> TrainingConfig:
        """Returns the requested training settings, with these in place of defaults."""
        requested = self.request.run.training
        return with_given(filled(requested, [TrainingConfig()], **settings), requested, self._given("training"))

    def _given(self, owner: str) -> list[str]:
        """Names of the settings of an owner, `task` or `training`, that the user has set."""
        names = (name.partition(".") for name in self.request.given)
        return [name for first, _, name in names if first == owner]

    @cached_property
    def default(self) -> Run.Config | str:
        """The run of the task's own model, sized for the data, or the reason why there is none."""
        given = self.request.default
        if isinstance(given, str):
            return given
        try:
            keeps = names_model(self._given("task"))
            recommended = given.task.recommended(self.request.preset, keeps_model=keeps)
            if recommended.schedule.epochs and self._epochs is not None:  # a model in closed form has no epochs
                recommended = given.task.recommended(self.request.preset, epochs=self._epochs, keeps_model=keeps)
        except (ValueError, TypeError) as error:
            return str(error)
        training = self.training(1)
        if recommended.schedule.epochs == 0:  # a model in closed form
            training = given.training.without_steps()
        task = with_given(recommended.config, given.task, self._given("task"))
        return dataclasses.replace(given, task=task, training=training)

    def run(self, row: Row, seed: int, epochs: int, rate: float | None) -> Run.Config:
        """Returns a run of a row; `rate` replaces the usual learning rate."""
        if not row.learns_by_steps:
            assert isinstance(self.default, Run.Config)
            return dataclasses.replace(self.default, seed=seed)
        training = self.training(epochs)
        if rate is not None:
            last = min(rate, training.final_learning_rate)
            training = dataclasses.replace(training, learning_rate=rate, final_learning_rate=last)
        return Run.Config(task=self.task_of(row), training=training, seed=seed)

    def task_of(self, row: Row) -> Task.Config:
        """Returns the task settings of a row."""
        if row.kernel is None or row.embed_dim is None or row.expansion is None:
            assert isinstance(self.default, Run.Config)
            return self.default.task
        stack = self._with_kernel(row.kernel)
        return self.config.with_stack(dataclasses.replace(stack, embed_dim=row.embed_dim, expansion=row.expansion))

    def rows(self, names: Sequence[str]) -> tuple[list[Measured], list[LeftOut]]:
        """Returns the kernels that run on the data, with the cost of a step, and those left out, with the reason.

        Steps are measured one kernel at a time, with nothing else running.

        Raises:
            ValueError: fewer than two kernels run.
        """
        found, left_out = list[Measured](), list[LeftOut]()
        for name in names:
            try:
                found.append(self._measured(self._kernel_row(name)))
            except REFUSALS as error:
                left_out.append(LeftOut(name=name, reason=_reason(error)))
        if self.request.leave_out_slow:
            found, slow = _without_slow(found)
            left_out += slow
        if len(found) < 2:
            reasons = "; ".join(f"{each.name}: {each.reason}" for each in left_out)
            raise ValueError(f"{len(found)} of these kernels can run on {self.config.data}; expected two: {reasons}")
        if isinstance(self.default, str):
            left_out.append(LeftOut(name=DEFAULT, reason=self.default))
        elif self.default.task not in [self.task_of(each.row) for each in found]:
            try:
                found.append(self._measured(self._default_row(self.default.task)))
            except REFUSALS as error:
                left_out.append(LeftOut(name=DEFAULT, reason=_reason(error)))
        return found, left_out

    def _kernel_row(self, name: str) -> Row:
        """Returns a kernel's network at the width that matches the target number of parameters."""
        kernel = kernel_of(name, self.config.kernel_sigma)
        found = sized(self._with_kernel(kernel), self.config.stack.heads, self.wanted_parameters, self._count)
        return Row(
            name=name,
            title=KERNELS_BY_NAME[name].title,
            kernel=found.stack.kernel,
            embed_dim=found.stack.embed_dim,
            expansion=found.stack.expansion,
            parameters=found.parameters,
        )

    def _with_kernel(self, kernel: KernelConfig) -> Stack:
        """Returns the network with this kernel, which has as many heads as the others, or none."""
        return replaced(self.config.stack, kernel=kernel, num_heads=self.config.stack.heads)

    def _default_row(self, config: Task.Config) -> Row:
        task = config.build()
        return Row(
            name=DEFAULT,
            title=f"the bare fredholm train {task.command}",
            kernel=None,
            embed_dim=None,
            expansion=None,
            parameters=_parameters(task),
            learns_by_steps=task.learns_by_steps,
        )

    def _measured(self, row: Row) -> Measured:
        """Returns the row with the cost of a training step; models in closed form have none."""
        if not row.learns_by_steps:
            return Measured(row, 0.0)
        run = self.run(row, self.request.seeds[0], 1, TINY_RATE)
        task = run.task.build() if row.is_default else run.task.build(self.task.facts)
        cost = step_cost(task, run.training, run.seed, repeats=REPEATS, with_memory=True)
        timed = dataclasses.replace(
            row,
            seconds_per_step=cost.seconds,
            examples_per_second=min(run.training.batch_size, task.num_train) / cost.seconds,
            memory_bytes=cost.memory_bytes,
        )
        return Measured(timed, cost.steps_per_epoch * cost.seconds + cost.evaluation_seconds)

    def _count(self, stack: Stack) -> int:
        return _parameters(self.config.with_stack(stack).build(self.task.facts))


def _without_slow(measured: list[Measured]) -> tuple[list[Measured], list[LeftOut]]:
    """Splits off the kernels that are too slow, with their epoch time as the reason."""
    if not measured:
        return measured, []
    usual = statistics.median(each.epoch_seconds for each in measured)
    slow = [each for each in measured if each.epoch_seconds > SLOW * usual]
    reasons = (
        f"an epoch takes {each.epoch_seconds:.3g} s, {each.epoch_seconds / usual:.2g} times the median of all kernels; "
        "name it with --kernels"
        for each in slow
    )
    left_out = [LeftOut(name=each.row.name, reason=reason) for each, reason in zip(slow, reasons, strict=True)]
    return [each for each in measured if each not in slow], left_out


REFUSALS = (ValueError, TypeError, NonFiniteError, MemoryError, RuntimeError)


def _reason(error: Exception) -> str:
    """Returns the reason why a kernel cannot run, in a line; raises errors that are not about the kernel."""
    if lacking_memory(error) is not None:
        return "ran out of memory in one step"
    if isinstance(error, RuntimeError):
        raise error
    return " ".join(str(error).split())


def _parameters(task: Task) -> int:
    with torch.random.fork_rng(devices=[]):
        return sum(parameter.numel() for parameter in task.model().parameters())
