"""The contract between a kind of problem and the training engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Generic, NamedTuple, Self, final

import torch
from torch import Tensor, nn

from fredholm.tasks.inputs import Failed, Inputs, Kinds
from fredholm.tasks.prediction import Prediction
from fredholm.tasks.schedule import Preset, Schedule, schedule_for
from fredholm.tasks.split_files import Split
from fredholm.tasks.splits import HeldOut, Part, Splits
from fredholm.tasks.stratified_split import DEFAULT_TEST_FRACTION, DEFAULT_VALID_FRACTION

if TYPE_CHECKING:
    from torchmetrics import Metric

Batch = dict[str, Tensor]
"""Named tensors whose first dimension runs over the same examples; it is what travels to the device."""


@final
@dataclass(frozen=True)
class Objective:
    """The metric by which runs of a task are compared.

    Args:
        metric: its name among ``Task.metrics()``.
        maximise: whether larger is better.
        percent: whether the value is a fraction that people read in percent.
    """

    metric: str
    maximise: bool = True
    percent: bool = False

    def is_better(self, value: float, than: float | None) -> bool:
        """Whether ``value`` beats ``than`` (anything beats None)."""
        return than is None or (value > than if self.maximise else value < than)

    def format(self, value: float) -> str:
        """The value for people: ``98.70 %`` or ``0.1234``."""
        return f"{100 * value:.2f} %" if self.percent else f"{value:.4f}"


@final
@dataclass(frozen=True)
class Source:
    """Another run, from whose averaged weights a part of a model starts.

    Args:
        setting: the task's setting that names it, for messages.
        run: its folder.
        names: beginnings of the names of its tensors, with what they begin with here; others are left there.
        whole: all tensors here whose names begin so must be there, of one shape; of others those that fit are taken.
        reading: what of `Task.reading` must mean the same there.
    """

    setting: str
    run: str
    names: dict[str, str]
    whole: str
    reading: tuple[str, ...] = ()


class Suited(NamedTuple):
    """What suits some data."""

    config: Task.Config
    schedule: Schedule


class Task(ABC):
    """Data, loss and metric of one kind of problem.

    The engine knows nothing else about a problem: whatever implements these methods can be trained, resumed,
    evaluated and used for prediction. A batch's randomness must come from the given generator alone, so that a
    resumed run, or one with worker processes, sees the same batches.
    """

    command: ClassVar[str]
    """The task's word on the command line."""

    objective: Objective
    """The metric by which runs are compared: one for all, or as the config says."""

    predicts: ClassVar[Kinds]
    """The files that `predict` reads."""

    parts: ClassVar[tuple[type, ...]] = ()
    """The dataclasses that a field of ``Config`` may hold where it names their base class."""

    @dataclass(frozen=True, kw_only=True)
    class Facts:
        """What the task learnt from its training data and the model needs later (sizes, class names, scales).

        Kept in the run folder, so that a prediction needs no training data. Fields are plain values or tuples.
        """

        @property
        def files(self) -> dict[str, str]:
            """What of it other programs read, as further files of the run folder: their texts by name."""
            return {}

    @dataclass(frozen=True, kw_only=True)
    class Config(ABC):
        """A task's settings: plain values, tuples and further configs.

        Args:
            data: the data set, a built-in name or a path.
        """

        data: str

        @abstractmethod
        def build(self, facts: Task.Facts | None = None) -> Task:
            """The task. ``facts`` come from an earlier run's folder; None reads them from the training data."""

        def suited(self, preset: Preset) -> Suited:
            """These settings with what suits the data in place of defaults, and how to train on them.

            A setting that is not at its default was given, and stays.

            Args:
                preset: small or base.

            Raises:
                ValueError: what `build` refuses.
            """
            task = self.build()
            return Suited(self, schedule_for(task.num_train, preset, has_valid=task.num_held_out("valid") > 0))

    @property
    @abstractmethod
    def facts(self) -> Task.Facts:
        """What the training data told."""

    @property
    @abstractmethod
    def num_train(self) -> int:
        """Examples in the training split."""

    @abstractmethod
    def num_held_out(self, split: HeldOut) -> int:
        """Examples in the validation or the test split; 0 where there is none."""

    @property
    def reading(self) -> dict[str, object]:
        """What a model's inputs mean, by name: a run starts from another's weights only where both mean the same."""
        return {}

    @property
    def sources(self) -> tuple[Source, ...]:
        """Runs that parts of the model start from, where settings name some; read when a run is new."""
        return ()

    @property
    def learns_by_steps(self) -> bool:
        """Whether the model is trained in steps; else `initialise` computes all of it, and there are no epochs."""
        return True

    @property
    def train_lengths(self) -> Tensor | None:
        """How long each training example is (num_train,), where a batch is padded to its longest; None: all are alike.

        Batches are then made of examples of about one length.
        """
        return None

    @abstractmethod
    def model(self) -> nn.Module:
        """A new model, initialised from the global torch seed."""

    @abstractmethod
    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """The training examples ``indices`` (B,), augmented with draws from ``generator`` alone."""

    def initialise(self, model: nn.Module, device: torch.device) -> None:  # noqa: B027 - most have none
        """Sets in a new model what is computed from the training split rather than learnt in steps.

        Called once, on a new run, before the first step; the model is on ``device``.
        """

    @abstractmethod
    def held_out_batch(self, split: HeldOut, indices: Tensor) -> Batch:
        """The examples ``indices`` (B,) of the validation or the test split, without augmentation."""

    @abstractmethod
    def num_targets(self, batch: Batch) -> int:
        """How many terms the batch's loss sums (examples, tokens, ...)."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The loss summed over the batch's targets: a float32 scalar with gradient.

        A sum, because the engine may split a batch in parts and divides by the whole batch's number of targets.
        """

    @abstractmethod
    def metrics(self) -> dict[str, Metric]:
        """New accumulators of a held-out split's metrics by name, ``loss`` and the objective's among them."""

    @abstractmethod
    def score(self, model: nn.Module, batch: Batch, metrics: dict[str, Metric]) -> None:
        """Adds a batch of `held_out_batch` to ``metrics``."""

    @final
    @torch.no_grad()
    def predict(
        self,
        model: nn.Module,
        files: Sequence[Path],
        device: torch.device,
        *,
        part: Split | None = None,
        failed: Failed | None = None,
    ) -> list[Prediction]:
        """The model's answers for each file, one or more, in the order of the files.

        Args:
            model: of this task, on `device`, in evaluation mode.
            files: of the kinds of `predicts`.
            device: where to compute.
            part: the part to read of files that hold several; None: the test part, or else the last, with a warning.
            failed: is told of a file that cannot be read or does not fit, which is then left out; None: that is raised.

        Raises:
            ValueError: a file that cannot be read or does not fit the model, or a part where files have none.
        """
        if part is not None and not self.predicts.has_parts:
            raise ValueError(f"files of the task {self.command!r} are not in parts; leave --part {part} out")
        return self._predictions(model, Inputs(files, part, failed), device)

    @abstractmethod
    def _predictions(self, model: nn.Module, inputs: Inputs, device: torch.device) -> list[Prediction]:
        """See `predict`; files are read by `inputs.read` alone."""


class EpochTask(Task):
    """A task whose training examples are other ones in every epoch, such as text that is cut at other places."""

    @abstractmethod
    def for_epoch(self, generator: torch.Generator) -> Self:
        """The task with the training examples of one epoch, drawn from ``generator`` alone; `num_train` is the same."""


class SplitTask(Task, Generic[Part]):
    """A task on sets of examples: to learn from, to choose by, and to measure on once all is chosen."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Task.Config):
        """A set of examples and how it is split.

        Args:
            test_fraction: share of the test split where the data bring none.
            valid_fraction: share of the validation split where the data bring none, of all examples or, where they
                bring a test split, of the others; 0: there is none, and nothing is chosen.
            split_seed: picks these splits.
        """

        test_fraction: float = DEFAULT_TEST_FRACTION
        valid_fraction: float = DEFAULT_VALID_FRACTION
        split_seed: int = 0

    @property
    def num_train(self) -> int:
        """Examples in the training split."""
        return len(self.splits.train)

    def num_held_out(self, split: HeldOut) -> int:
        """Examples in the validation or the test split; 0 where there is none."""
        part = self.splits.valid if split == "valid" else self.splits.test
        return 0 if part is None else len(part)

    @final
    def held_out(self, split: HeldOut) -> Part:
        """The validation or the test split.

        Raises:
            ValueError: the data have none.
        """
        return self.splits.held_out(split)

    @cached_property
    def splits(self) -> Splits[Part]:
        """The data, opened at first use: prediction needs none.

        Raises:
            ValueError: they cannot be opened, or changed since the facts were read.
        """
        self._check(self._opened)
        return self._opened

    @cached_property
    def _opened(self) -> Splits[Part]:
        """The data, be they those of the facts or not."""
        return self._open()

    @abstractmethod
    def _open(self) -> Splits[Part]: ...

    @abstractmethod
    def _check(self, splits: Splits[Part]) -> None:
        """Raises ValueError where the facts are of other data."""
