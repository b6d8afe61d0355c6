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
from fredholm.models.model_settings import Pretrained
from fredholm.models.signal_model import replaced
from fredholm.models.stack import Stack
from fredholm.tasks.files.data_files import is_one_place
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
"""Named tensors whose first dimension runs over the same examples; it is what travels to the device."""


def to_device(batch: Mapping[str, Tensor], device: torch.device) -> Batch:
    """A batch with its tensors on a device."""
    return {name: tensor.to(device) for name, tensor in batch.items()}


Score = Callable[[nn.Module, Batch, "dict[str, Metric]"], None]
"""Adds what a model makes of a batch to metrics; see `Task.score`."""


Measure = Callable[[Score, "dict[str, Metric]"], Mapping[str, float]]
"""Measures a model on all of a split: how it is scored there, and the metrics, to their values."""


EntryNames = dict[str, dict[int, tuple[str, ...]]]
"""Names of the entries along some axes of tensors, such as the classes of the rows of `head.weight`; all differ."""


@final
@dataclass(frozen=True)
class Source:
    """Another run, from whose averaged weights a part of a model starts.

    Args:
        setting: the task's setting that names it, for messages.
        run: its folder.
        names: beginnings of the names of its tensors, with what they begin with here; others are left there.
        whole: all tensors here whose names begin so must be there, of one shape; of others those that fit are taken.
        input_meaning: what of `Task.input_meaning` must mean the same there.
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
    """The weights of a checkpoint, which no run of this library has trained, for a model to start from."""

    place: str
    """Where it lies, for messages."""
    tensors: dict[str, Tensor]
    """By their names in the model; what it has beside them is new."""

    @staticmethod
    def of(pretrained: Pretrained[Model] | None, model: Model) -> PretrainedWeights | None:
        """Those of a checkpoint for a model of these settings; None where there are none. Its files are recorded."""
        if pretrained is None or pretrained.tensors is None:
            return None
        for file in pretrained.weights:
            recorded(file, is_start=True)
        return PretrainedWeights(str(pretrained.folder), pretrained.tensors(model))


class Recommended(NamedTuple):
    """Settings that are recommended for some data, and how to train with them."""

    config: Task.Config
    schedule: Schedule
    notes: tuple[str, ...] = ()
    """On what was chosen, for a person, a line each."""


class Trained(NamedTuple):
    """A trained run, as another one sees it that starts from its weights."""

    config: Task.Config
    facts: Task.Facts


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

    shown: tuple[Objective, ...] = ()
    """Further metrics that are printed at the end of a run."""

    predicts: ClassVar[Kinds]
    """The files that `predict` reads."""

    answers_at: ClassVar[bool] = False
    """Whether `predict` answers at places that a file names."""

    writes: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType({})
    """The files that `predict` can write, by their names in `Outputs`: the endings, or none where it is a folder."""

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

        weight_settings: ClassVar[tuple[str, ...]] = ()
        """The settings that decide which weights fit the model, or what its inputs mean."""

        split_settings: ClassVar[tuple[str, ...]] = ()
        """The settings that decide what of the data is learnt from."""

        kernel_sigma: ClassVar[float] = 1.0
        """What frequencies suit kernels that read positions: their deviation in cycles per unit length."""

        @final
        def check_same_split(self, learnt: Task.Config) -> None:
            """Raises ValueError where other data would be learnt from than by a run: what it learnt would be measured.

            Other data may be divided in any way.
            """
            for name in self.split_settings:
                own, then = getattr(self, name), getattr(learnt, name)
                if own != then and is_one_place(self.data, learnt.data):
                    raise ValueError(
                        f"{name}={own!r} chooses other data to learn from than the run's {then!r}, so that what it "
                        "learnt could be measured; leave it out, or give other data"
                    )

        @property
        def stack(self) -> Stack:
            """The network of this task whose kernel can be chosen: the model, or what the task has beside others.

            Raises:
                ValueError: there is none.
            """
            raise ValueError("this task's model has no kernel to choose")

        def with_stack(self, stack: Stack) -> Self:
            """The same with this network as the model; on graphs kernels are taken along the edges."""
            raise ValueError("this task's model has no kernel to choose")

        @abstractmethod
        def build(self, facts: Task.Facts | None = None) -> Task:
            """The task. ``facts`` come from an earlier run's folder; None reads them from the training data."""

        def in_folder(self, folder: Path, facts: Task.Facts) -> Self:
            """These settings of a run for others, which read files of its folder where they are to mean the same.

            Args:
                folder: of the run.
                facts: of the run, which hold what its settings name by a place.
            """
            return self

        @property
        def initial_checkpoint(self) -> str | None:
            """The checkpoint that the weights are from at first, as the settings name it; None: they name none."""
            return None

        @final
        def inheriting(self, start: Trained) -> Self:
            """These settings with those of a run in place of defaults that decide whether its weights fit.

            Those of a run of another task are not taken over.
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
        ) -> Recommended:
            """These settings with values that suit the data in place of defaults, and how to train with them.

            A setting that is not at its default was given, and stays.

            Args:
                preset: small or base.
                start: the run from whose weights this one starts: its settings stand where they decide whether weights
                    fit, if it is of the same task, and the learning rate is FINE_TUNING times that of a new run. None:
                    from new weights.
                share, epochs: see `Effort`. The schedule is that of epochs that suit, whatever was asked for.

            Raises:
                ValueError: what `build` refuses.
            """
            effort = Effort(preset, share, epochs)
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
            """See `recommended`; with a start, which is of this task, these settings follow it already."""
            task = self.build()
            return Recommended(self, schedule_for(task.num_train, effort, has_valid=task.num_held_out("valid") > 0))

    @property
    @abstractmethod
    def facts(self) -> Task.Facts:
        """What was learnt from the training data."""

    @property
    @abstractmethod
    def num_train(self) -> int:
        """Examples in the training split."""

    @abstractmethod
    def num_held_out(self, split: HeldOut) -> int:
        """Examples in the validation or the test split; 0 where there is none."""

    @property
    def input_meaning(self) -> dict[str, object]:
        """What a model's inputs mean, by name: a run starts from another's weights only where both mean the same."""
        return {}

    def entry_names(self, model: nn.Module) -> EntryNames:
        """What the entries of some tensors of a model stand for.

        Between runs, entries of equal meaning are taken over, in whatever order they are.
        """
        return {}

    def input_importance(self, model: nn.Module) -> dict[str, float]:
        """How much what is read counts to a model of this task, by name, 0 to 1; {}: the model does not say."""
        return {}

    @property
    def sources(self) -> tuple[Source, ...]:
        """Runs that parts of the model start from, where settings name some; read when a run is new."""
        return ()

    def pretrained_weights(self) -> PretrainedWeights | None:
        """What of a checkpoint the model starts from, where settings name one; read when a run is new.

        Raises:
            ValueError, OSError: it is missing, damaged or of another kind.
        """
        return None

    @property
    def measures(self) -> tuple[Objective, ...]:
        """What runs can be compared by, as far as it is known: the objective, and what is shown beside it."""
        return tuple({each.metric: each for each in (self.objective, *self.shown)}.values())

    def is_defined(self, split: HeldOut) -> bool:
        """Whether the objective is defined on a held-out split; an AUROC is not where all examples are of one class."""
        return True

    @property
    def advice(self) -> tuple[str, ...]:
        """What to try with these data, one sentence each; printed once, before a run."""
        return ()

    @property
    def baselines(self) -> tuple[Baseline, ...]:
        """Models without a network, which learn from the same training split.

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
        """How long each training example is (num_train,), where a batch is padded to its longest; None: all are alike.

        Batches are then made of examples of about one length.
        """
        return None

    @property
    def train_shards(self) -> Tensor | None:
        """Where training examples stay on the disk, how many lie together, int64 `(m,)`, each at least 1, in all n.

        They are read a few shards at a time; see `training.order`. None: they are read in any order alike.
        """
        return None

    @abstractmethod
    def model(self) -> nn.Module:
        """A new model, initialised from the global torch seed."""

    def tensor_form(self, model: nn.Module) -> TensorForm:
        """The model as a function of tensors alone, from what a file holds to what `predict` says.

        It is made from the facts, and needs no data.

        Args:
            model: of this task, in evaluation mode.

        Raises:
            ValueError: there is none; the message says why.
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
        """The training examples ``indices`` (B,), augmented with draws from ``generator`` alone."""

    def train_batch_rows(self, indices: Tensor, rows: slice, generator: torch.Generator) -> Batch:
        """Some rows of `train_batch`, which one of several processes computes.

        Here the whole batch is made and cut. A task whose examples are costly to read makes the rows alone, with the
        draws of the whole batch.

        Args:
            indices: of all examples of the batch, (B,).
            rows: of these, one or more, with both ends.
            generator: as in `train_batch`.
        """
        return {name: tensor[rows] for name, tensor in self.train_batch(indices, generator).items()}

    def initialise(self, model: nn.Module, device: torch.device) -> None:  # noqa: B027 - most have none
        """Sets in a new model what is computed from the training split rather than learnt in steps.

        Called once, on a new run, before the first step; the model is on ``device``.
        """

    def choose_by_validation(self, model: nn.Module, measure: Measure) -> None:  # noqa: B027 - most choose nothing
        """Sets in a model, in evaluation mode, what is chosen by the validation split.

        Called before each evaluation on that split, where there is one, by all processes alike.
        """

    @abstractmethod
    def held_out_batch(self, split: HeldOut, indices: Tensor) -> Batch:
        """The examples ``indices`` (B,) of the validation or the test split, without augmentation."""

    @abstractmethod
    def num_targets(self, batch: Batch) -> int:
        """How many terms the batch's loss sums (examples, tokens, ...); of a batch in parts the sum of theirs."""

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

    def shown_example(self, split: HeldOut, index: int, model: nn.Module | None = None) -> ShownExample:
        """Example `index` of a held-out split as a person sees it.

        Args:
            split: validation or test, of which there is one.
            index: from 0, as `held_out_batch` counts.
            model: of this task, in evaluation mode, where what it predicts of the example is a thing to see, such as
                a mask or a forecast; None: what is known alone.
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
        """The model's answers for each file, one or more, in the order of the files.

        Args:
            model: of this task, on `device`, in evaluation mode.
            files: of the kinds of `predicts`.
            device: where to compute.
            part: the part to read of files that hold several; None: the test part, or else the last, with a warning.
            failed: is called with each file that cannot be read or does not fit, and its error; None: that is raised.
            outputs: files to write, of the kinds of `writes`; they hold the predictions of all files.
            at: a table or .npz file of the places to answer at, of a task that `answers_at` places.

        Raises:
            ValueError: a file that cannot be read or does not fit the model, a part where files have none, a file to
                write that exists, or places where there are none.
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
        """See `predict`; files are read by `inputs.read` alone, and written by `inputs.outputs`."""


Settings = TypeVar("Settings")


def inherited_settings(own: Settings, default: object, start: object, names: Iterable[str] | None = None) -> Settings:
    """Settings of which those of some names are another run's where they are as by default.

    Of parts that are of one kind in both runs each setting is taken by itself. As its kind has it by itself it was not
    set either.

    Args:
        own: the settings.
        default: those that nobody set.
        start: those of the other run, of the same kind as own.
        names: of settings; None: all.
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
    """Of the rows of the last linear map of a model, its `head`."""
    heads = (name for name, module in model.named_modules() if name.split(".")[-1] == "head")
    return {f"{head}.{part}": {0: tuple(names)} for head in heads for part in ("weight", "bias")}


def input_entry_names(model: nn.Module, channels: Sequence[str]) -> EntryNames:
    """Of the columns of what reads raw channels of these names in the encoders of a model."""
    encoders = ((name, part) for name, part in model.named_modules() if isinstance(part, Encoder))
    return {
        f"{name}.{tensor}": {1: names} for name, part in encoders for tensor, names in part.columns(channels).items()
    }


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
            split_by: shares: the same share of every class, at random; time: the newest examples are the test split,
                the next newest the validation split, where the data say when each is from.
        """

        test_fraction: float = DEFAULT_TEST_FRACTION
        valid_fraction: float = DEFAULT_VALID_FRACTION
        split_seed: int = 0
        split_by: SplitBy = "shares"

        split_settings: ClassVar[tuple[str, ...]] = ("test_fraction", "valid_fraction", "split_seed", "split_by")

        @final
        def _refuse_validation(self, model: object, left_out: str) -> None:
            """Raises ValueError for a validation split beside a model that leaves examples out itself."""
            because = f"model={class_name(model)}, whose settings are chosen by leaving {left_out} out"
            refuse_idle(
                "", type(self), because, "take a model that learns by steps", valid_fraction=self.valid_fraction
            )

    @property
    def num_train(self) -> int:
        """Examples in the training split."""
        return len(self.splits.train)

    def num_held_out(self, split: HeldOut) -> int:
        """Examples in the validation or the test split; 0 where there is none."""
        check_held_out(split)
        part = self.splits.valid if split == "valid" else self.splits.test
        return 0 if part is None else len(part)

    @final
    def held_out(self, split: HeldOut) -> Part:
        """The validation or the test split.

        Raises:
            ValueError: the data have none.
        """
        return self.splits.held_out(split)

    @final
    def _part_of(self, split: Split) -> Part:
        """The examples of a split, of which there is one."""
        return self.splits.train if split == "train" else self.held_out(split)

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


FactsOf = TypeVar("FactsOf", bound=Task.Facts)


def own_facts(facts: Task.Facts | None, kind: type[FactsOf], of: str) -> FactsOf | None:
    """Facts as those of a task; None where there are none yet.

    Args:
        facts: from an earlier run.
        kind: the task's.
        of: what the task is on, for messages, such as "images".

    Raises:
        ValueError: they are another task's.
    """
    if facts is not None and not isinstance(facts, kind):
        raise ValueError(f"the facts are of {type(facts).__qualname__}, not of {of}")
    return facts
