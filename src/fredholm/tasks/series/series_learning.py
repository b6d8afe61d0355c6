"""The task of predicting a class, labels or numbers for each time series, or the class of each of its samples."""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self, final, get_args

import numpy as np
import torch
from torch import Tensor, nn

from fredholm._settings import check_count, check_seed, class_name, filled, refuse_idle
from fredholm.encoders.series import SeriesBatch
from fredholm.models.blended import BlendedSamples
from fredholm.models.fitted.banks.filter_bank import FilterBank
from fredholm.models.fitted.banks.summary_bank import SummaryBank
from fredholm.models.fitted.boosted_trees import affordable_trees
from fredholm.models.fitted.fitted_model import FittedModel
from fredholm.models.fitted.sample_machine import SampleMachine
from fredholm.models.fitted.series_machine import MOST_CHANNELS, SeriesMachine
from fredholm.models.itnet import ITNet
from fredholm.models.kernel_configs import KERNELS
from fredholm.models.series.ckcnn import CKCNN
from fredholm.models.series.itnet_series import ITNetSeriesConfig, series_stack, with_series_stack
from fredholm.models.series.reading_in_parts import read_in_parts
from fredholm.models.series.sample_pyramid import SamplePyramid
from fredholm.models.series.series_model import SeriesModelConfig, SeriesSampling
from fredholm.models.stack import Stack
from fredholm.tasks.baselines import BaselineExamples, drawn_elements
from fredholm.tasks.blending import BlendingTask, check_has_valid
from fredholm.tasks.files.npz_arrays import ARRAY_SUFFIXES
from fredholm.tasks.inputs import Inputs, Kinds
from fredholm.tasks.prediction import Prediction
from fredholm.tasks.schedule import Effort, schedule_at_once, schedule_for
from fredholm.tasks.series import (
    Dropped,
    Fill,
    Preparation,
    Series,
    SeriesSet,
    average_in_bins,
    drop_samples,
    open_series,
    read_series,
    take_every,
)
from fredholm.tasks.splits.split_files import Split
from fredholm.tasks.splits.splits import HeldOut, Splits
from fredholm.tasks.splits.splitting import divided
from fredholm.tasks.target_task import TargetTask
from fredholm.tasks.targets import TARGETS, UNKNOWN, Answers, ElementTarget, Target, TargetSettings
from fredholm.tasks.task import (
    Batch,
    EntryNames,
    Recommended,
    Task,
    Trained,
    head_entry_names,
    input_entry_names,
    own_facts,
    to_device,
)
from fredholm.tasks.tensor_form import TensorForm
from fredholm.tasks.views import MOST_LINES, Line, SeriesView, ShownExample, device_of

from .baseline_features import sample_features, series_features
from .batches import batch_of, known_answers, series_of
from .open import KINDS as SERIES_SUFFIXES
from .open import TEXT
from .sample_answers import rows_of, views_of
from .sample_rows import SampleRows
from .series_form import series_form
from .series_set import SeriesTarget

LEAST_OBSERVED = 0.5
"""Smallest share of observed training values for which filters are the default."""
WINDOW = 256
"""Samples that a network reads at a time by default, where samples are classified."""
LEAST_OF_NETWORK = 20
"""Fewest series for which a network beside a machine classifies samples by default."""
MOST_PARTS = 16
"""Most parts in a batch of a pyramid by default: each has many samples."""
LEAST_WINDOW = 4
"""Fewest samples that a network reads at a time."""
CHUNK = 64
"""Series that are fitted or predicted at a time."""


@final
class SeriesLearning(BlendingTask[Series]):
    """A model on time series of any lengths and sampling: answers for each series, or the class of each sample.

    Banks and machines are fitted to the training split in closed form; networks are trained by the target's loss.
    Channels are standardised by the observed training values; where values are missing in training, further channels
    mark the observed ones. All models read time in the unit of the data, so another rate or irregular samples need
    only their times. Warns once of test series that differ in kind from those of training.

    Args:
        config: the settings.
        facts: facts of an earlier run; None: computed from the training split.

    Raises:
        ValueError: the data cannot be opened, have a single answer, or do not match `facts`.
    """

    command: ClassVar[str] = "series"
    predicts = Kinds(suffixes=(*(kind for kind in SERIES_SUFFIXES if kind not in TEXT), ".npy"), has_parts=True)
    writes: ClassVar[Mapping[str, tuple[str, ...]]] = {"save": ()}
    # a few series hold many samples, but say little of which part is better, so that the machine keeps a quarter
    shares: ClassVar[tuple[float, ...]] = (0.0, 0.25, 0.5, 0.75)
    parts: ClassVar[tuple[type, ...]] = (
        FilterBank.Config,
        SummaryBank.Config,
        SeriesMachine.Config,
        SampleMachine.Config,
        SamplePyramid.Config,
        CKCNN.Config,
        ITNetSeriesConfig,
        ITNet.Config,
        *KERNELS,
        *TARGETS,
    )

    @dataclass(frozen=True, kw_only=True)
    class Facts(Task.Facts):
        """Facts about the training split, thinned by the settings.

        `spacing` is the mean time between consecutive samples; `extent` is the longest time between two samples of one
        series. Both are above 0.
        """

        target: Target
        channels: tuple[str, ...]
        preparation: Preparation
        spacing: float
        extent: float
        is_regular: bool
        """Whether samples lie at multiples of `spacing`."""

    @dataclass(frozen=True, kw_only=True)
    class Config(TargetTask.NumbersConfig):
        """The series, their thinning and preparation, and the model.

        Args:
            data: a .ts, .tsv, .txt (UCR), .csv, .parquet or .npz file, or a folder with one of them, a training and a
                test file, several .npz files or tables, a subfolder of tables for each class, or recordings of sound.
            target: kind of the answers: a class, several labels separated by `|`, or a number of each series; or
                samples, the class of each sample. None: classes of samples where these have labels, which change
                within a series; else follows from the file; answers in text are numbers where all are numbers and one
                is not whole, else classes.
            train_every: keeps every n-th sample of the training series, from the first on.
            test_every: likewise for the validation and the test series.
            train_drop: share of the samples that is dropped from each training series, in all channels at once.
            test_drop: likewise for each validation and test series.
            drop_seed: seed of these draws; refused where nothing is dropped.
            dropped: whether dropped samples become missing values, or are removed, so that times are irregular; refused
                where nothing is dropped.
            permute_seed: puts the samples of every series into one random order, as permuted MNIST; None: no
                permutation.
            bin: duration over which values are averaged, so that irregular samples become regular ones, with missing
                values where a bin is empty; None: no averaging.
            fill: the value in place of a missing one: the mean of its channel, the last observed value, or linear
                interpolation between observed ones. None: interpolation for models in closed form, the mean for
                networks.
            limit: largest absolute standardised value, at which values are clipped, for data with gross errors; None:
                no limit.
            window: most samples that a network is trained on at a time where samples are classified: parts of longer
                series are drawn. In evaluation these are read in parts, with a quarter of the samples as context on
                each side; by a pyramid in longer ones. None: all.
            sample_machine: most training samples of a sample machine beside a network that classifies samples
                (`models.BlendedSamples`). The validation split chooses its share in the prediction, so it is refused
                without one, and with objective='loss', which is the loss of the network alone. 0: no machine; None:
                none, unless a run recommends one.
            model: a closed-form model of filters, a kernel and trees, which is fitted to the training series, or a
                network.
        """

        data: str = ""
        target: SeriesTarget | None = None
        train_every: int = 1
        test_every: int = 1
        train_drop: float = 0.0
        test_drop: float = 0.0
        drop_seed: int = 0
        dropped: Dropped = "missing"
        permute_seed: int | None = None
        bin: float | None = None
        fill: Fill | None = None
        limit: float | None = None
        window: int | None = None
        sample_machine: int | None = None
        model: SeriesModelConfig = field(default_factory=SeriesMachine.Config)

        kernel_sigma: ClassVar[float] = 10.0
        weight_settings: ClassVar[tuple[str, ...]] = (
            "permute_seed",
            "bin",
            "fill",
            "limit",
            "window",
            "sample_machine",
            "model",
        )
        split_settings: ClassVar[tuple[str, ...]] = (
            *TargetTask.NumbersConfig.split_settings,
            "train_every",
            "train_drop",
        )

        @property
        def unmeasured_settings(self) -> tuple[str, ...]:
            """See `Task.Config.unmeasured_settings`."""
            return "train_every", "train_drop", *(() if self.test_drop else ("drop_seed", "dropped"))

        @property
        def prediction_settings(self) -> tuple[str, ...]:
            """See `Task.Config.prediction_settings`."""
            return ("csv",)

        def __post_init__(self) -> None:
            for name in ("train_every", "test_every"):
                if getattr(self, name) < 1:
                    raise ValueError(f"{name} is {getattr(self, name)}; expected at least 1")
            for name in ("train_drop", "test_drop"):
                if not 0 <= getattr(self, name) < 1:
                    raise ValueError(f"{name} is {getattr(self, name)}; expected a share from 0 to below 1")
            check_seed(self.drop_seed, "drop_seed")
            if self.permute_seed is not None:
                check_seed(self.permute_seed, "permute_seed")
            if self.bin is not None and not 0 < self.bin < math.inf:
                raise ValueError(f"bin is {self.bin}; expected a finite duration above 0")
            for name, allowed in (
                ("dropped", get_args(Dropped)),
                ("fill", (None, *get_args(Fill))),
                ("target", (None, *get_args(SeriesTarget))),
            ):
                if getattr(self, name) not in allowed:
                    raise ValueError(f"{name} is {getattr(self, name)!r}; expected one of {allowed}")
            if self.train_drop == self.test_drop == 0:
                none, given = "train_drop=0 and test_drop=0", {"drop_seed": self.drop_seed, "dropped": self.dropped}
                refuse_idle("", type(self), none, "give one of these shares", **given)
            if self.permute_seed is not None and (self.train_every > 1 or self.bin is not None):
                raise ValueError("permute_seed orders whole series; leave train_every and bin out")
            if self.limit is not None and not self.limit > 0:
                raise ValueError(f"limit is {self.limit}; expected a number above 0")
            if self.window is not None:
                check_count("series", "window", self.window, LEAST_WINDOW)
            if self.sample_machine:
                check_count("series", "sample_machine", self.sample_machine, least=2)
                if self.objective == "loss":
                    raise ValueError(
                        f"objective='loss' is of the network alone, beside sample_machine={self.sample_machine}; leave "
                        "one out"
                    )
            if not self.model.learns_by_steps and self.valid_fraction != 0:
                self._refuse_validation(self.model, "each training series")

        def _recommended(self, effort: Effort, start: Trained | None) -> Recommended:
            """See `Task.Config.recommended`: the closed-form model by the number of observed values and of channels.

            Where samples are classified, it is a machine of their windows, with a network beside it where series are
            many, or `window` or `sample_machine` asks for one. Where most values are missing, filters would mostly read
            filled-in values, so summaries of the observed ones are the default. Otherwise values by time are read
            beside filters, unless there are many channels.
            """
            is_open = self.model == SeriesLearning.Config().model and not effort.keeps_model
            if is_open and (self.window is not None or self.sample_machine is not None):
                return replace(self, target="samples", model=SamplePyramid.Config())._recommended(effort, start)
            task, model = self.build(), self.model
            train = task.splits.train
            if is_open and task.classifies_samples and start is None and self._suits_network(task):
                beside = replace(self, target="samples", model=SamplePyramid.Config())._recommended(effort, start)
                return beside._replace(notes=task.notes)
            if model.learns_by_steps:
                return self._recommended_network(task, effort, start)
            if task.classifies_samples:
                model = SampleMachine.Config() if is_open else model
                if isinstance(model, SampleMachine.Config):
                    num_trees = affordable_trees(model.num_trees, task.target.num_outputs)
                    model = filled(model, [SampleMachine.Config()], num_trees=num_trees)
                return Recommended(self._of_samples(model), schedule_at_once(task.num_train, effort), task.notes)
            observed = sum(int((~some.values.isnan()).sum()) for some in train.chunks())
            share = observed / (int(train.lengths.sum()) * len(train.channels))
            if is_open and share < LEAST_OBSERVED:
                model = SummaryBank.Config()
            elif is_open and len(train.channels) > MOST_CHANNELS:
                model = FilterBank.Config()
            if isinstance(model, SeriesMachine.Config):
                num_trees = affordable_trees(model.num_trees, task.target.num_outputs)
                model = filled(model, [SeriesMachine.Config()], num_trees=num_trees)
            return Recommended(replace(self, model=model), schedule_at_once(task.num_train, effort))

        def _suits_network(self, task: "SeriesLearning") -> bool:
            """Whether series are enough for a network beside a machine, whose share a validation split can choose."""
            may_hold_out = self.valid_fraction > 0 or task.num_held_out("valid") > 0
            return len(task.splits.train) >= LEAST_OF_NETWORK and may_hold_out and self.objective != "loss"

        def _of_samples(self, model: SeriesModelConfig, window: int | None = None) -> Self:
            """The settings for the class of each sample, with a model and, unless one was given, a window."""
            return replace(self, model=model, target="samples", window=self.window or window)

        def _recommended_network(self, task: "SeriesLearning", effort: Effort, start: Trained | None) -> Recommended:
            """Recommended settings for a network, which reads parts, and both sides of a sample that is classified."""
            config, num_train, has_valid = self, task.num_train, task.num_held_out("valid") > 0
            if not task.classifies_samples:
                return Recommended(config, schedule_for(num_train, effort, has_valid=has_valid))
            train, model = task.splits.train.in_memory(), self.model
            if isinstance(model, CKCNN.Config):
                model = filled(model, [CKCNN.Config()], is_causal=False)
            cell = model.coarsest if isinstance(model, SamplePyramid.Config) else 1
            window = math.ceil(WINDOW / cell) * cell
            config = self._of_samples(model, window if int(train.lengths.max()) > window else None)
            num_train = len(SampleRows(config.window).places(train))
            schedule = schedule_for(num_train, effort, has_valid=has_valid)
            if isinstance(model, SamplePyramid.Config):
                is_beside = has_valid and start is None and self.objective != "loss"
                most = SampleMachine.Config().num_samples if is_beside else 0
                config = filled(config, [SeriesLearning.Config()], sample_machine=most, fill="linear")
                if schedule.batch_size > MOST_PARTS:
                    schedule = schedule_for(num_train, effort, has_valid=has_valid, batch_size=MOST_PARTS)
                # it learns most while the rate falls
                schedule = replace(schedule, patience=None)
            return Recommended(config, schedule, task.notes)

        @property
        def stack(self) -> Stack:
            """See `Task.Config.stack`, and `series_stack`."""
            return series_stack(self.model)

        def with_stack(self, stack: Stack) -> Self:
            """See `Task.Config.with_stack`: the stack of an ITNet, without a machine, which is equal beside all."""
            return replace(self, model=with_series_stack(self.model, stack), sample_machine=0)

        def build(self, facts: Task.Facts | None = None) -> "SeriesLearning":
            """The task; see `SeriesLearning`."""
            return SeriesLearning(self, own_facts(facts, SeriesLearning.Facts, "series"))

    def __init__(self, config: Config, facts: Facts | None = None) -> None:
        self.config = config
        self._has_warned = False
        # networks read which values are observed; filters read the filled-in ones as they are
        fill = config.fill or ("mean" if self.learns_by_steps else "linear")
        self._facts = facts or learn_facts(
            self._opened.train, config.target_settings, config.data, limit=config.limit, fill=fill
        )
        self._set_target(self._facts.target, config.target_settings)
        if config.target is not None and (config.target == "samples") != self.classifies_samples:
            made = "samples" if self.classifies_samples else self._facts.target.kind
            raise ValueError(f"target is {config.target!r}; the run was made with {made!r}")
        if not self.classifies_samples:
            config.model.check()
            because = f"target={self.target.kind!r}, one answer for a whole series of the data"
            given = {"window": config.window, "sample_machine": config.sample_machine or None}
            refuse_idle("", SeriesLearning.Config, because, "classify samples", **given)
        elif config.permute_seed is not None:
            raise ValueError(
                "permute_seed puts samples into another order, and each has a class of its own; leave it out"
            )
        elif not self.learns_by_steps:
            because = f"model={class_name(config.model)}, which reads whole series"
            given = {"window": config.window, "sample_machine": config.sample_machine or None}
            refuse_idle("", SeriesLearning.Config, because, "take a network", **given)
        elif facts is None and config.sample_machine:
            check_has_valid("sample_machine", config.sample_machine, self.num_held_out("valid"), "series")
        self._rows = SampleRows(config.window)

    @property
    def classifies_samples(self) -> bool:
        """Whether each sample is classified, not each series."""
        return isinstance(self._facts.target, ElementTarget)

    @property
    def num_train(self) -> int:
        """Number of training examples: series or, where a network classifies samples, their parts with labels."""
        return len(self._places) if self.classifies_samples and self.learns_by_steps else len(self.splits.train)

    @property
    def notes(self) -> tuple[str, ...]:
        """A note that samples are classified, where the data decided that."""
        if not self.classifies_samples or self.config.target is not None:
            return ()
        return ("labels change within series, so the class of each sample is learnt",)

    @cached_property
    def _places(self) -> Tensor:
        """See `SampleRows.places`."""
        return self._rows.places(self.splits.train.in_memory())

    @property
    def facts(self) -> Facts:
        """Facts about the training split."""
        return self._facts

    @property
    def learns_by_steps(self) -> bool:
        """Whether the model is a network, trained step by step."""
        return self.config.model.learns_by_steps

    def _open(self) -> Splits[Series]:
        config = self.config
        if not config.data:
            raise ValueError(
                "no series are given; pass a .ts, .tsv, .csv or .npz file, or a folder of them or of recordings"
            )
        with config.csv.reading(config.data):
            found = open_series(config.data, kind=config.target)
        if config.permute_seed is not None and found.train.sample_labels is not None:
            raise ValueError("permute_seed reorders samples, and each is to be classified where it is; leave it out")
        if found.train.sample_labels is not None and len(found.train) == 1 and not found.is_given:
            raise ValueError(
                f"{config.data}: there is one series, and splits leave whole series out; cut it into several: "
                "in a table by names in a column 'series', in arrays by offsets"
            )
        longest = int(found.train.lengths.max())  # over all splits
        splits = divided(found, config, needs_valid=self.learns_by_steps)
        train, valid, test = (
            None if part is None else self._changed(part, longest, every, drop)
            for part, every, drop in (
                (splits.train, config.train_every, config.train_drop),
                (splits.valid, config.test_every, config.test_drop),
                (splits.test, config.test_every, config.test_drop),
            )
        )
        assert train is not None
        return Splits(train, test, valid)

    def _check(self, splits: Splits[Series]) -> None:
        config, facts = self.config, self._facts
        splits.check_facts(facts, config.data, apart_from=("answer_names",))
        facts.target.check(known_answers(splits.train, config.data), config.data)
        for part in (splits.valid, splits.test):
            if part is not None:
                self._warn(part)

    def _changed(self, series: Series, longest: int, every: int, drop: float) -> Series:
        """The series permuted and thinned by the settings; they are read into memory only if that changes them."""
        config = self.config
        if config.permute_seed is None and every == 1 and drop == 0 and config.bin is None:
            return series
        return self._thinned(self._permuted(series.in_memory(), longest), every, drop)

    def _permuted(self, series: SeriesSet, longest: int) -> SeriesSet:
        seed = self.config.permute_seed
        return series if seed is None else series.permuted(seed, longest)

    def _thinned(self, series: SeriesSet, every: int, drop: float) -> SeriesSet:
        config = self.config
        series = drop_samples(take_every(series, every), drop, config.drop_seed, config.dropped)
        return series if config.bin is None else average_in_bins(series, config.bin)

    @property
    def train_shards(self) -> Tensor | None:
        """See `Task.train_shards`: shards of series in memory-mapped arrays."""
        return self.splits.train.shards

    def model(self) -> nn.Module:
        """The model, with the outputs of the target."""
        facts, config, extent = self._facts, self.config, self._facts.extent
        if config.window is not None:
            extent = min(extent, (config.window - 1) * facts.spacing)
        sampling = SeriesSampling(
            channels=facts.preparation.num_channels,
            spacing=facts.spacing,
            extent=extent,
            observation=facts.preparation.observation,
        )
        chosen, num_outputs = config.model, self.target.num_outputs
        model = (chosen.answering_everywhere() if self.classifies_samples else chosen).build(sampling, num_outputs)
        if not config.sample_machine:
            return model
        num_trees = affordable_trees(SampleMachine.Config().num_trees, num_outputs)
        machine = SampleMachine.Config(num_samples=config.sample_machine, num_trees=num_trees)
        whole = replace(sampling, extent=facts.extent)
        return BlendedSamples(model, machine.build(whole, num_outputs), self._window)

    def initialise(self, model: nn.Module, device: torch.device) -> None:
        """See `Task.initialise`: fits a closed-form model to all training series, alone or beside a network."""
        model = model.fitted if isinstance(model, BlendedSamples) else model
        if not isinstance(model, FittedModel):
            return
        batches: list[tuple[SeriesBatch, Tensor]] = []
        for indices in torch.arange(len(self.splits.train)).split(CHUNK):
            batch = to_device(self._batch(self.splits.train, indices), device)
            batches.append((series_of(batch), batch["targets"]))
        model.fit(batches, self.target, groups=self.splits.train.marks.group_numbers(device))

    def entry_names(self, model: nn.Module) -> EntryNames:
        """See `Task.entry_names`: the targets for the rows of the head, the channels for the columns of encoders."""
        if isinstance(model, BlendedSamples):
            return {f"network.{name}": axes for name, axes in self.entry_names(model.network).items()}
        facts, names = self._facts, self.target.names
        observed = (f"whether {facts.channels[c]} is observed" for c in facts.preparation.observation)
        rows = head_entry_names(model, names) if len(names) == self.target.num_outputs else {}
        return rows | input_entry_names(model, (*facts.channels, *observed))

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """`values` (B, N, channels), `targets` (B, ...) or (B, N), and the other tensors of `batch_of`.

        Only parts of series, where samples are classified, are drawn.
        """
        train = self.splits.train
        if not self.classifies_samples:
            return self._batch(train, indices)
        drawn = self._rows.drawn(train.in_memory(), self._places[indices], generator)
        assert drawn.sample_labels is not None
        return {"targets": drawn.sample_labels.values, **batch_of(drawn, self._facts.preparation)}

    def held_out_batch(self, split: HeldOut, indices: Tensor) -> Batch:
        """A batch of the validation or the test split, as `train_batch`; beside a machine with `number` (B,) too."""
        part = self.held_out(split)
        if split == "test" or not self.config.sample_machine:
            return self._batch(part, indices)
        # of one length, since outputs of the machine are kept by series
        longest = part.read(torch.cat([indices, part.lengths.argmax()[None]]))
        return {name: rows[: len(indices)] for name, rows in self._batch_of(longest).items()} | {"number": indices}

    def _batch(self, series: Series, indices: Tensor) -> Batch:
        return self._batch_of(series.read(indices))

    def _batch_of(self, part: SeriesSet) -> Batch:
        if part.sample_labels is not None:
            return {"targets": part.sample_labels.values, **batch_of(part, self._facts.preparation)}
        assert part.answers is not None
        return {"targets": self.target.targets(part.answers.values), **batch_of(part, self._facts.preparation)}

    def shown_example(self, split: HeldOut, index: int, model: nn.Module | None = None) -> ShownExample:
        """See `Task.shown_example`: the channels over time, in their own units."""
        part = self.held_out(split).read(torch.tensor([index]))
        if self.classifies_samples:
            predicted = None if model is None else self.probabilities(model, part, device_of(model))[0]
            return ShownExample(name=part.names[0], views=views_of(part, self.target.names, predicted))
        length = int(part.lengths[0])
        x = torch.arange(length) * part.spacing if part.times is None else part.times[0, :length]
        channels = part.channels[:MOST_LINES]
        lines = tuple(Line(name, "seen", x, part.values[0, :length, c]) for c, name in enumerate(channels))
        return ShownExample(name=part.names[0], views=(SeriesView(lines=lines),))

    def _applied(self, model: Callable[[Any], Tensor], batch: Batch) -> Tensor:
        """See `BlendingTask._applied`; a network alone reads long series in parts where it classifies samples."""
        is_network = isinstance(model, nn.Module) and not isinstance(model, BlendedSamples)
        return read_in_parts(model, series_of(batch), self._window if is_network else None)

    @property
    def _window(self) -> int | None:
        """Most samples that a network reads at a time to answer; None: all."""
        return self.config.model.window_of_answers(self.config.window) if self.classifies_samples else None

    def _measured(self, model: nn.Module, batch: Batch) -> Iterator[tuple[Tensor, Tensor]]:
        """See `TargetTask._measured`; of samples those whose class is known."""
        outputs, targets = self._counted(batch, self._outputs(model, batch), batch["targets"])
        yield outputs, targets

    def _counted(self, batch: Batch, *each: Tensor) -> list[Tensor]:
        """See `BlendingTask._counted`."""
        if not self.classifies_samples:
            return [*each]
        known = batch["targets"] != UNKNOWN
        return [some[known] for some in each]

    def _warn(self, series: Series) -> None:
        """Warns, at most once, of series that are longer than any in training, or have gaps that training had not."""
        longest, extent = float(series.extents.max()), self._facts.extent
        if self._has_warned:
            return
        reads_parts = self.classifies_samples and (self._window is not None or not self.learns_by_steps)
        if not reads_parts and longest > extent * (1 + 1e-6):
            self._has_warned = True
            warnings.warn(
                f"{series.names[int(series.extents.argmax())]}: lasts {longest:g}, longer than any series in training "
                f"({extent:g}); the model saw none like it",
                stacklevel=2,
            )
        self._facts.preparation.warn_of_gaps(series)

    @property
    def _train_answers(self) -> Answers | None:
        return self.splits.train.answers

    def _baseline_examples(self, split: Split) -> BaselineExamples:
        """See `TargetTask._baseline_examples`; where samples are classified, their `sample_features`."""
        if not self.classifies_samples:
            return super()._baseline_examples(split)
        part, inputs, targets = self._part_of(split).in_memory(), list[np.ndarray](), list[Tensor]()
        assert part.sample_labels is not None
        known = part.sample_labels.is_known
        for i, drawn in enumerate(drawn_elements(known.sum(1).tolist(), split)):
            if len(drawn):
                samples = known[i].nonzero()[drawn, 0]
                inputs.append(sample_features(part, i, samples.numpy()))
                targets.append(part.sample_labels.values[i, samples])
        if not inputs:
            raise ValueError(f"no sample of the {split} split has a class that is known")
        return BaselineExamples(np.concatenate(inputs), torch.cat(targets))

    def _baseline_inputs(self, split: Split) -> np.ndarray:
        """See `series_features`."""
        return series_features(self._part_of(split).in_memory(), self._facts.preparation.mean)

    def prepared(self, series: SeriesSet) -> SeriesSet:
        """Series to predict, permuted and averaged as in training, but with all their samples."""
        longest = round(self._facts.extent / self._facts.spacing) + 1
        return self._thinned(self._permuted(series, longest), every=1, drop=0.0)

    @torch.no_grad()
    def outputs(self, model: nn.Module, series: SeriesSet, device: torch.device) -> Tensor:
        """The model's outputs, `(n, num_outputs)`, on the CPU, for `prepared` series with the channels of training."""
        self._warn(series)
        parts = []
        for indices in torch.arange(len(series)).split(CHUNK):
            batch = batch_of(series.select(indices), self._facts.preparation)
            moved = to_device(batch, device)
            parts.append(self._outputs(model, moved).cpu())
        return torch.cat(parts)

    @torch.no_grad()
    def probabilities(self, model: nn.Module, series: SeriesSet, device: torch.device) -> list[Tensor]:
        """Where samples are classified, the probabilities `(length, classes)` of those of each series, on the CPU."""
        self._warn(series)
        found = list[Tensor]()
        for i in range(len(series)):
            batch = batch_of(series.select(torch.tensor([i])), self._facts.preparation)
            found.append(self.target.predictions(self._outputs(model, to_device(batch, device))[0].cpu()))
        return found

    def tensor_form(self, model: nn.Module) -> TensorForm:
        """See `Task.tensor_form`: from values at the spacing of training, or with their times."""
        facts, config = self._facts, self.config
        if config.permute_seed is not None:
            raise ValueError(
                f"the samples of each series are put into another order (permute_seed={config.permute_seed}), which is "
                "no part of the model; train without it"
            )
        notes = list[str]()
        if config.bin is not None:
            notes.append(f"each value is the mean over a time of {config.bin:g}, or missing where there is none")
        if config.window is not None:
            notes.append(f"in training the model read up to {config.window} samples at a time")
        longest = config.window or max(round(facts.extent / facts.spacing) + 1, 2)
        return series_form(
            model,
            self.target,
            facts.preparation,
            facts.channels,
            spacing=facts.spacing,
            is_regular=facts.is_regular,
            longest=longest,
            of_samples=self.classifies_samples,
            notes=notes,
        )

    def _predictions(self, model: nn.Module, inputs: Inputs, device: torch.device) -> list[Prediction]:
        """A row for each series of each file: `file`, `series`, and the target's answer.

        Where samples are classified, a row for each sample, with its `time`. Where they are saved, as NAME.csv, or
        NAME-SERIES.csv for several series of a file, a row for each series with the path `saved` and the number of its
        `samples`. Labels in a file are ignored. Channels of a table are found by their names.

        Raises:
            ValueError: a file cannot be read or does not fit, a file to write exists already, or series are predicted
                and to be saved.
        """
        if inputs.outputs.save is not None:
            if not self.classifies_samples:
                raise ValueError("--save has no effect where there is one answer for a whole series; leave it out")
            singles = [file for file in inputs.files if file.suffix.lower() not in ARRAY_SUFFIXES]
            inputs.outputs.check_folder([(file, f"{file.stem}.csv") for file in singles])
        rows = list[Prediction]()
        for file, found in inputs.read(lambda file: self._read(file, inputs.part), self.config.csv):
            if self.classifies_samples:
                series, predicted = (
                    [_name_in(file, name) for name in found.names],
                    self.probabilities(model, found, device),
                )
                rows += rows_of(file, series, found, predicted, self.target.names, inputs.outputs)
                continue
            for series, outputs in zip(found.names, self.outputs(model, found, device), strict=True):
                cells, probabilities = self.target.answer(outputs)
                rows.append(Prediction(file, {"series": _name_in(file, series), **cells}, probabilities))
        return rows

    def _read(self, file: Path, part: Split | None) -> SeriesSet:
        return self.prepared(read_series(file, channels=self._facts.channels, part=part))


def _name_in(file: Path, series: str) -> str:
    """The name of a series within its file."""
    return series.removeprefix(file.name).removeprefix(", ").removeprefix("series ")


def learn_facts(
    train: Series, settings: TargetSettings, data: str, *, limit: float | None = None, fill: Fill = "mean"
) -> SeriesLearning.Facts:
    """The facts of a training set whose standardised values are clipped at `limit` and filled by `fill`.

    Where every series has one sample, spacing and extent are 1.

    Args:
        train: the training set.
        settings, data: see `Answers.learn`.
        limit, fill: see `Preparation`.
    """
    spacing, extent = train.span()
    return SeriesLearning.Facts(
        target=known_answers(train, data).learn(settings, data),
        channels=train.channels,
        preparation=Preparation.learn(train, limit, fill),
        spacing=spacing,
        extent=extent,
        is_regular=train.is_regular,
    )
