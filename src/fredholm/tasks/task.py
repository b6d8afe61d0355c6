"""The contract between a kind of problem and the training engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Self, TypeVar, final

import torch
from torch import Tensor, nn

from fredholm._settings import class_name, refuse_idle
from fredholm.encoders.encoder import Encoder
from fredholm.models.model_settings import ModelSettings, Pretrained
from fredholm.models.signal_model import replaced
from fredholm.models.stack import Stack
from fredholm.tasks.files.data_files import is_one_place
from fredholm.tasks.files.delimited import AS_FOUND, CsvSettings
from fredholm.tasks.files.read_record import recorded
from fredholm.tasks.splits.split_files import Split
from fredholm.tasks.splits.splits import HeldOut, Part, Splits, check_held_out
from fredholm.tasks.splits.stratified_split import DEFAULT_TEST_FRACTION, DEFAULT_VALID_FRACTION, SplitBy

from .baselines import Baseline
from .inputs import Failed, Inputs, Kinds
from .objective import Objective
from .outputs import Outputs
from .prediction import Prediction
from .schedule import FINE_TUNING, Effort, Preset, Schedule, schedule_for
from .tensor_form import TensorForm
from .views import ShownExample

if TYPE_CHECKING:
    from torchmetrics import Metric

Batch = dict[str, Tensor]
"""Named tensors with a common first dimension of examples; batches are moved to the device."""


def to_device(batch: Mapping[str, Tensor], device: torch.device) -> Batch:
    """Returns a batch with its tensors on a device."""
    return {name: tensor.to(device) for name, tensor in batch.items()}


Score = Callable[[nn.Module, Batch, "dict[str, Metric]"], None]
"""Updates metrics with a model's predictions for a batch; see `Task.score`."""


Measure = Callable[[Score, "dict[str, Metric]"], Mapping[str, float]]
"""Measures a model on a whole split, from a scoring function and metrics to their values."""


EntryNames = dict[str, dict[int, tuple[str, ...]]]
"""Names of the entries along some axes of tensors, such as the classes of the rows of `head.weight`; all differ."""


@final
@dataclass(frozen=True)
class Source:
    """Another run whose averaged weights initialise a part of a model.

    Args:
        setting: name of the task's setting for it, for messages.
        run: run folder.
        names: prefixes of tensor names in that run, mapped to prefixes in this model; other tensors are not used.
        whole: every tensor of this model with this prefix must exist in that run with an equal shape; other tensors are
            used where they match.
        input_meaning: entries of `Task.input_meaning` that must be equal in both runs.
        alike: settings of both tasks, such as model.embed_dim, that must be equal for tensors to fit; for messages.
    """

    setting: str
    run: str
    names: dict[str, str]
    whole: str
    input_meaning: tuple[str, ...] = ()
    alike: tuple[str, ...] = ()


Model = TypeVar("Model")


@final
class PretrainedWeights(NamedTuple):
    """Weights of a pretrained checkpoint of another library, to initialise a model."""

    place: str
    """Path of the checkpoint, for messages."""
    tensors: dict[str, Tensor]
    """Tensors by their names in the model, whose other tensors are new."""

    @staticmethod
    def of(pretrained: Pretrained[Model] | None, model: Model) -> PretrainedWeights | None:
        """Reads a checkpoint's weights for a model, and records its files; None without a checkpoint."""
        if pretrained is None or pretrained.tensors is None:
            return None
        for file in pretrained.weights:
            recorded(file, is_start=True)
        return PretrainedWeights(str(pretrained.folder), pretrained.tensors(model))


def recorded_checkpoint(settings: ModelSettings, opened: Pretrained[Any] | None = None) -> Pretrained[Any] | None:
    """Opens the checkpoint that settings name, unless it is open, and records its files; None where they name none."""
    found = opened or settings.open_pretrained()
    for file in () if found is None else found.files:
        recorded(file, is_start=True)
    return found


class Recommended(NamedTuple):
    """Recommended settings for some data, with the training schedule."""

    config: Task.Config
    schedule: Schedule
    notes: tuple[str, ...] = ()
    """Notes on the choices, a line each."""


class Trained(NamedTuple):
    """Settings and facts of a trained run, for a run that starts from its weights."""

    config: Task.Config
    facts: Task.Facts


class Task(ABC):
    """Data, loss and metrics of one kind of problem.

    The engine knows nothing else about a problem: whatever implements these methods can be trained, resumed,
    evaluated and used for prediction. A batch's randomness must come from the given generator alone, so that a
    resumed run, or one with worker processes, sees the same batches.
    """

    command: ClassVar[str]
    """Name of the task on the command line."""

    objective: Objective
    """Metric by which runs are compared; fixed, or by the config."""

    shown: tuple[Objective, ...] = ()
    """Further metrics that are printed at the end of a run."""

    predicts: ClassVar[Kinds]
    """Kinds of files that `predict` reads."""

    answers_at: ClassVar[bool] = False
    """Whether `predict` takes a file of points to predict at."""

    writes: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType({})
    """Files that `predict` can write, by their names in `Outputs`: their suffixes, or none for a folder."""

    parts: ClassVar[tuple[type, ...]] = ()
    """Dataclasses that may appear in fields of ``Config`` annotated with their base class."""

    @dataclass(frozen=True, kw_only=True)
    class Facts:
        """Facts learnt from the training data that the model needs later (sizes, class names, scales).

        Stored in the run folder, so that a prediction needs no training data. Fields are plain values or tuples.
        """

        @property
        def files(self) -> dict[str, str]:
            """Facts that other programs read, as further files of the run folder: texts by name."""
            return {}

    @dataclass(frozen=True, kw_only=True)
    class Config(ABC):
        """A task's settings: plain values, tuples and further configs.

        Args:
            data: the data set, a built-in name or a path.
        """

        data: str

        weight_settings: ClassVar[tuple[str, ...]] = ()
        """Settings that determine which weights fit the model, or the meaning of its inputs."""

        split_settings: ClassVar[tuple[str, ...]] = ()
        """Settings that determine the training part of the data."""

        kernel_sigma: ClassVar[float] = 1.0
        """Standard deviation, in cycles per unit length, of the frequencies of kernels that read positions."""

        @final
        def check_same_split(self, learnt: Task.Config) -> None:
            """Raises a ValueError where the same data would be split differently than in a run.

            The run's training examples could then be measured as held-out ones. Other data may be split in any way.
            """
            for name in self.split_settings:
                own, then = getattr(self, name), getattr(learnt, name)
                if own != then and is_one_place(self.data, learnt.data):
                    raise ValueError(
                        f"{name}={own!r} chooses other training data than the run's {then!r}, so that these could be "
                        "measured; leave it out, or give other data"
                    )

        @property
        def unmeasured_settings(self) -> tuple[str, ...]:
            """Settings without effect on a measurement: only training or predictions read them."""
            return ()

        @property
        def prediction_settings(self) -> tuple[str, ...]:
            """Settings that predictions read, apart from those of the weights; a task of your own may list fewer."""
            return tuple(each.name for each in fields(self))

        @property
        def stack(self) -> Stack:
            """The network of this task whose kernel can be chosen: the model, or another network of the task.

            Raises:
                ValueError: the task has no such network.
            """
            raise ValueError("this task's model has no kernel to choose")

        def with_stack(self, stack: Stack) -> Self:
            """Returns the config with this network as the model; on graphs kernels act along the edges."""
            raise ValueError("this task's model has no kernel to choose")

        @abstractmethod
        def build(self, facts: Task.Facts | None = None) -> Task:
            """Builds the task. ``facts`` come from an earlier run's folder; None learns them from the training data."""

        def in_folder(self, folder: Path, facts: Task.Facts) -> Self:
            """Returns a run's settings for other runs; settings that must keep their meaning name files in its folder.

            Args:
                folder: folder of the run.
                facts: facts of the run, which hold the content of files that its settings name.
            """
            return self

        @property
        def initial_checkpoint(self) -> str | None:
            """Checkpoint of the initial weights, by the settings; None without one."""
            return None

        @final
        def inheriting(self, start: Trained) -> Self:
            """Returns these settings with a run's values in place of defaults where its weights depend on them.

            Settings of a run of another task are not used.
            """
            if type(start.config) is not type(self):
                return self
            default = type(self)()  # pyright: ignore[reportCallIssue] - the data have a default in every config
            return inherited_settings(self, default, start.config, self.weight_settings)

        @final
        def recommended(
            self,
            preset: Preset,
            start: Trained | None = None,
            *,
            share: float = 1.0,
            epochs: int | None = None,
            keeps_model: bool = False,
        ) -> Recommended:
            """Returns these settings with values that suit the data in place of defaults, and a training schedule.

            Settings that differ from their defaults are kept, since they were given.

            Args:
                preset: small or base.
                start: run whose weights this one starts from. If it is of the same task, its settings are used where
                    they determine whether weights fit, and the learning rate is FINE_TUNING times that of a new run.
                    None: new weights.
                share, epochs, keeps_model: see `Effort`. The schedule has the recommended epochs, even if others are
                    requested.

            Raises:
                ValueError: as of `build`.
            """
            effort = Effort(preset, share, epochs, keeps_model)
            if start is None:
                return self._recommended(effort, None)
            if type(start.config) is type(self):
                followed = self.inheriting(start)
                found = followed._recommended(effort, start)
                config = replace(found.config, **{name: getattr(followed, name) for name in self.weight_settings})
            else:
                found = self._recommended(effort, None)
                config = found.config
            schedule = replace(found.schedule, learning_rate=FINE_TUNING * found.schedule.learning_rate)
            return found._replace(config=config, schedule=schedule)

        def _recommended(self, effort: Effort, start: Trained | None) -> Recommended:
            """See `recommended`; with a start of this task, these settings already follow it."""
            task = self.build()
            return Recommended(self, schedule_for(task.num_train, effort, has_valid=task.num_held_out("valid") > 0))

    @property
    @abstractmethod
    def facts(self) -> Task.Facts:
        """Facts learnt from the training data."""

    @property
    @abstractmethod
    def num_train(self) -> int:
        """Number of training examples."""

    @abstractmethod
    def num_held_out(self, split: HeldOut) -> int:
        """Number of examples in the validation or the test split; 0 where there is none."""

    @property
    def input_meaning(self) -> dict[str, object]:
        """Meaning of a model's inputs, by name; weights of another run are used only where its meanings are equal."""
        return {}

    def entry_names(self, model: nn.Module) -> EntryNames:
        """Returns the names of the entries of some of a model's tensors.

        Between runs, entries of equal names are copied, in whatever order they are.
        """
        return {}

    def input_importance(self, model: nn.Module) -> dict[str, float]:
        """Importance of the inputs to a model of this task, by name, 0 to 1; empty where the model has none."""
        return {}

    @property
    def sources(self) -> tuple[Source, ...]:
        """Runs that initialise parts of the model, by the settings; read when a run is new."""
        return ()

    def pretrained_weights(self) -> PretrainedWeights | None:
        """Weights of a checkpoint that initialise the model, by the settings; read when a run is new.

        Raises:
            ValueError, OSError: it is missing, damaged or of another kind.
        """
        return None

    @property
    def measures(self) -> tuple[Objective, ...]:
        """Metrics by which runs can be compared: the objective, and those shown beside it."""
        return tuple({each.metric: each for each in (self.objective, *self.shown)}.values())

    def is_defined(self, split: HeldOut) -> bool:
        """Whether the objective is defined on a held-out split; AUROC is not where all examples are of one class."""
        return True

    @property
    def advice(self) -> tuple[str, ...]:
        """Advice for these data, one sentence each; printed once, before a run."""
        return ()

    @property
    def baselines(self) -> tuple[Baseline, ...]:
        """Models without a network that learn from the same training split.

        Raises:
            ValueError: there are none for these data.
        """
        raise ValueError("no model without a network is known for this task")

    @property
    def learns_by_steps(self) -> bool:
        """Whether the model is trained in steps; else `initialise` computes all of it, and there are no epochs."""
        return True

    @property
    def train_lengths(self) -> Tensor | None:
        """Lengths of the training examples (num_train,), where batches are padded; None where all are equal.

        Batches are then made of examples of similar lengths.
        """
        return None

    @property
    def train_shards(self) -> Tensor | None:
        """Sizes of contiguously stored shards of training examples, int64 `(m,)`, each at least 1, with sum n.

        A few shards are read at a time; see `training.batches`. None: examples can be read in any order at equal cost.
        """
        return None

    @abstractmethod
    def model(self) -> nn.Module:
        """Returns a new model, initialised from the global torch seed."""

    def tensor_form(self, model: nn.Module) -> TensorForm:
        """Returns the model as a function of tensors alone, from the content of a file to the result of `predict`.

        It depends on the facts, and needs no data.

        Args:
            model: model of this task, in evaluation mode.

        Raises:
            ValueError: the model has none; the message gives the reason.
        """
        raise ValueError(f"the task {self.command!r} does not say which tensors its model takes (Task.tensor_form)")

    def check_packages(self) -> None:
        """Raises an ImportError, before a run begins, where a package is missing that training needs.

        A prediction may need less: neither metrics nor augmentation.
        """
        if self.num_held_out("valid") or self.num_held_out("test"):
            self.metrics()

    @abstractmethod
    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """Returns the training examples ``indices`` (B,), augmented with draws from ``generator`` alone."""

    def train_batch_rows(self, indices: Tensor, rows: slice, generator: torch.Generator) -> Batch:
        """Returns some rows of `train_batch`, for one of several processes.

        By default the whole batch is made and sliced. A task whose examples are costly to read makes only the rows,
        with the draws of the whole batch.

        Args:
            indices: indices of all examples of the batch, (B,).
            rows: a non-empty slice of them, with both ends.
            generator: as in `train_batch`.
        """
        return {name: tensor[rows] for name, tensor in self.train_batch(indices, generator).items()}

    def initialise(self, model: nn.Module, device: torch.device) -> None:  # noqa: B027 - most have none
        """Sets the parts of a new model that are computed from the training split rather than learnt in steps.

        Called once, on a new run, before the first step; the model is on ``device``.
        """

    def choose_by_validation(self, model: nn.Module, measure: Measure) -> None:  # noqa: B027 - most choose nothing
        """Sets the parts of a model, in evaluation mode, that are chosen on the validation split.

        Called before each evaluation on that split, where there is one, by all processes.
        """

    @abstractmethod
    def held_out_batch(self, split: HeldOut, indices: Tensor) -> Batch:
        """Returns the examples ``indices`` (B,) of the validation or the test split, without augmentation."""

    @abstractmethod
    def num_targets(self, batch: Batch) -> int:
        """Number of terms in the batch's loss (examples, tokens, ...); additive over parts of a batch."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Returns the loss summed over the batch's targets: a float32 scalar with gradient.

        A sum, since the engine may split a batch into parts and divides by the whole batch's number of targets.
        """

    @abstractmethod
    def metrics(self) -> dict[str, Metric]:
        """Returns new accumulators of a held-out split's metrics by name, among them ``loss`` and the objective's."""

    @abstractmethod
    def score(self, model: nn.Module, batch: Batch, metrics: dict[str, Metric]) -> None:
        """Updates ``metrics`` with a batch of `held_out_batch`."""

    def shown_example(self, split: HeldOut, index: int, model: nn.Module | None = None) -> ShownExample:
        """Returns example `index` of a held-out split as views for people.

        Args:
            split: validation or test split, which must exist.
            index: index from 0, as in `held_out_batch`.
            model: model of this task, in evaluation mode, to show its prediction where it is visual, such as a mask or
                a forecast; None: only known data are shown.
        """
        return ShownExample(name=f"example {index}")

    @final
    @torch.no_grad()
    def predict(
        self,
        model: nn.Module,
        files: Sequence[str | Path],
        device: torch.device,
        *,
        part: Split | None = None,
        failed: Failed | None = None,
        outputs: Outputs | None = None,
        at: str | Path | None = None,
    ) -> list[Prediction]:
        """Returns the model's predictions for each file, one or more per file, in the order of the files.

        Args:
            model: model of this task, on `device`, in evaluation mode.
            files: files of the kinds in `predicts`.
            device: device to compute on.
            part: part to read from files with several; None: the test part, or else the last, with a warning.
            failed: called with each file that cannot be read or does not fit, and its error; None: the error is raised.
            outputs: files to write, of the kinds in `writes`; they hold the predictions of all files.
            at: a table or .npz file of points to predict at, for a task that `answers_at` points.

        Raises:
            ValueError: a file cannot be read or does not fit the model, a part is requested of files without parts, an
                output file exists, or points are given for a task without them.
        """
        if part is not None and not self.predicts.has_parts:
            raise ValueError(f"files of the task {self.command!r} are not in parts; leave --part {part} out")
        if at is not None and not self.answers_at:
            raise ValueError(f"--at has no effect: the task {self.command!r} predicts no functions; leave it out")
        paths, places = [Path(file) for file in files], None if at is None else Path(at)
        settled = (outputs or Outputs()).settled(self.command, self.writes, [*paths, *([places] if places else [])])
        return self._predictions(model, Inputs(paths, part, failed, settled, places), device)

    @abstractmethod
    def _predictions(self, model: nn.Module, inputs: Inputs, device: torch.device) -> list[Prediction]:
        """Implements `predict`; files are only read by `inputs.read`, and written by `inputs.outputs`."""


Settings = TypeVar("Settings")


def inherited_settings(own: Settings, default: object, start: object, names: Iterable[str] | None = None) -> Settings:
    """Returns settings with another run's values in place of defaults, for settings of some names.

    Parts of the same kind in both runs are merged setting by setting. A value that is the default of its kind counts as
    not set either.

    Args:
        own: the settings.
        default: the settings by default.
        start: settings of the other run, of the same type as own.
        names: names of settings; None: all.
    """
    kind: Any = type(own)
    defaults, found = [kind(), *([default] if type(default) is kind else [])], dict[str, Any]()
    for name in [field.name for field in fields(kind)] if names is None else names:
        mine, other = getattr(own, name), getattr(start, name)
        usual = [getattr(each, name) for each in defaults]
        if mine in usual:
            found[name] = other
        elif type(mine) is type(other) and is_dataclass(mine):
            found[name] = inherited_settings(mine, usual[-1], other)
    return replaced(own, **found)


def head_entry_names(model: nn.Module, names: Sequence[str]) -> EntryNames:
    """Returns the entry names of the rows of a model's last linear map, its `head`."""
    heads = (name for name, module in model.named_modules() if name.split(".")[-1] == "head")
    return {f"{head}.{part}": {0: tuple(names)} for head in heads for part in ("weight", "bias")}


def input_entry_names(model: nn.Module, channels: Sequence[str]) -> EntryNames:
    """Returns the entry names of the columns that read raw channels of these names in a model's encoders."""
    encoders = ((name, part) for name, part in model.named_modules() if isinstance(part, Encoder))
    return {
        f"{name}.{tensor}": {1: names} for name, part in encoders for tensor, names in part.columns(channels).items()
    }


class EpochTask(Task):
    """A task whose training examples change every epoch, such as text that is cut at other places."""

    @abstractmethod
    def for_epoch(self, generator: torch.Generator) -> Self:
        """Returns the task with one epoch's training examples, drawn from ``generator`` alone, of equal number."""


class SplitTask(Task, Generic[Part]):
    """A task on a set of examples in splits: for training, for choices, and for the final measurement."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Task.Config):
        """Settings of a set of examples and its splits.

        Args:
            test_fraction: share of the test split where the data have none.
            valid_fraction: share of the validation split where the data have none, of all examples or, where the data
                have a test split, of the others; 0: no validation split, and no choices.
            split_seed: seed of these splits.
            split_by: shares: the same share of every class, at random; time: the newest examples are the test split,
                the next newest the validation split, where the data have times.
            csv: how .csv files are written, where it does not show.
        """

        test_fraction: float = DEFAULT_TEST_FRACTION
        valid_fraction: float = DEFAULT_VALID_FRACTION
        split_seed: int = 0
        split_by: SplitBy = "shares"
        csv: CsvSettings = AS_FOUND

        split_settings: ClassVar[tuple[str, ...]] = ("test_fraction", "valid_fraction", "split_seed", "split_by")

        @final
        def _refuse_validation(self, model: object, left_out: str) -> None:
            """Raises a ValueError for a validation split if the model's settings are chosen by leaving examples out."""
            because = f"model={class_name(model)}, whose settings are chosen by leaving {left_out} out"
            refuse_idle(
                "", type(self), because, "take a model that learns by steps", valid_fraction=self.valid_fraction
            )

    @property
    def num_train(self) -> int:
        """Number of training examples."""
        return len(self.splits.train)

    def num_held_out(self, split: HeldOut) -> int:
        """Number of examples in the validation or the test split; 0 where there is none."""
        check_held_out(split)
        part = self.splits.valid if split == "valid" else self.splits.test
        return 0 if part is None else len(part)

    @final
    def held_out(self, split: HeldOut) -> Part:
        """Returns the validation or the test split.

        Raises:
            ValueError: the data have none.
        """
        return self.splits.held_out(split)

    @final
    def _part_of(self, split: Split) -> Part:
        """Returns the examples of a split, which must exist."""
        return self.splits.train if split == "train" else self.held_out(split)

    @cached_property
    def splits(self) -> Splits[Part]:
        """The data, opened at first use, since a prediction needs none.

        Raises:
            ValueError: they cannot be opened, or have changed since the facts were learnt.
        """
        self._check(self._opened)
        return self._opened

    @cached_property
    def _opened(self) -> Splits[Part]:
        """The opened data, not yet checked against the facts."""
        return self._open()

    @abstractmethod
    def _open(self) -> Splits[Part]: ...

    @abstractmethod
    def _check(self, splits: Splits[Part]) -> None:
        """Raises a ValueError where the facts are of other data."""


FactsOf = TypeVar("FactsOf", bound=Task.Facts)


def own_facts(facts: Task.Facts | None, kind: type[FactsOf], of: str) -> FactsOf | None:
    """Checks that facts are those of a task; None where there are none yet.

    Args:
        facts: facts of an earlier run.
        kind: the task's class of facts.
        of: noun for the task's data, for messages, such as "images".

    Raises:
        ValueError: they are another task's.
    """
    if facts is not None and not isinstance(facts, kind):
        raise ValueError(f"the facts are of {type(facts).__qualname__}, not of {of}")
    return facts
