"""The task of predicting a class, labels or numbers for each time series."""

import math
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Self, final, get_args

import numpy as np
import torch
from torch import Tensor, nn

from fredholm._settings import check_seed, filled, refuse_idle
from fredholm.encoders.series import SeriesBatch
from fredholm.models.fitted.banks.filter_bank import FilterBank
from fredholm.models.fitted.banks.summary_bank import SummaryBank
from fredholm.models.fitted.boosted_trees import affordable_trees
from fredholm.models.fitted.fitted_model import FittedModel
from fredholm.models.fitted.series_machine import MOST_CHANNELS, SeriesMachine
from fredholm.models.itnet import ITNet
from fredholm.models.kernel_configs import KERNELS
from fredholm.models.series.ckcnn import CKCNN
from fredholm.models.series.itnet_series import ITNetSeriesConfig, series_stack, with_series_stack
from fredholm.models.series.series_model import SeriesModelConfig, SeriesSampling
from fredholm.models.stack import Stack
from fredholm.tasks.inputs import Inputs, Kinds
from fredholm.tasks.prediction import Prediction
from fredholm.tasks.schedule import Effort, schedule_at_once
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
from fredholm.tasks.targets import TARGETS, Answers, Kind, Target, TargetSettings
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
from fredholm.tasks.tensor_form import BATCH, Axis, OpenAxis, Sizes, Slot, TensorForm, first_of_each
from fredholm.tasks.views import MOST_LINES, Line, SeriesView, ShownExample

from .open import KINDS as SERIES_SUFFIXES
from .open import TEXT

LEAST_OBSERVED = 0.5
"""Smallest share of observed training values for which filters are the default."""
PLAIN_SAMPLES = 64
"""Samples of a series that baselines read."""
CHUNK = 64
"""Series that are fitted or predicted at a time."""


@final
class SeriesLearning(TargetTask[Series]):
    """A model on time series of any lengths and sampling that predicts classes, labels or numbers.

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
    parts: ClassVar[tuple[type, ...]] = (
        FilterBank.Config,
        SummaryBank.Config,
        SeriesMachine.Config,
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
                test file, several .npz files, a subfolder of tables for each class, or recordings of sound.
            target: kind of the answers: a class, several labels separated by `|`, or a number. None: follows from the
                file; answers in text are numbers where all are numbers and one is not whole, else classes.
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
            model: a closed-form model of filters, a kernel and trees, which is fitted to the training series, or a
                network.
        """

        data: str = ""
        target: Kind | None = None
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
        model: SeriesModelConfig = field(default_factory=SeriesMachine.Config)

        kernel_sigma: ClassVar[float] = 10.0
        weight_settings: ClassVar[tuple[str, ...]] = ("permute_seed", "bin", "fill", "limit", "model")
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
            return ()

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
                ("target", (None, *get_args(Kind))),
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
            self.model.check()
            if not self.model.learns_by_steps and self.valid_fraction != 0:
                self._refuse_validation(self.model, "each training series")

        def _recommended(self, effort: Effort, start: Trained | None) -> Recommended:
            """See `Task.Config.recommended`: the closed-form model by the number of observed values and of channels.

            Where most values are missing, filters would mostly read filled-in values, so summaries of the observed ones
            are the default. Otherwise values by time are read beside filters, unless there are many channels.
            """
            if self.model.learns_by_steps:
                return super()._recommended(effort, start)
            task, model = self.build(), self.model
            train = task.splits.train
            observed = sum(int((~some.values.isnan()).sum()) for some in train.chunks())
            share = observed / (int(train.lengths.sum()) * len(train.channels))
            is_open = model == SeriesLearning.Config().model and not effort.keeps_model
            if is_open and share < LEAST_OBSERVED:
                model = SummaryBank.Config()
            elif is_open and len(train.channels) > MOST_CHANNELS:
                model = FilterBank.Config()
            if isinstance(model, SeriesMachine.Config):
                num_trees = affordable_trees(model.num_trees, task.target.num_outputs)
                model = filled(model, [SeriesMachine.Config()], num_trees=num_trees)
            return Recommended(replace(self, model=model), schedule_at_once(task.num_train, effort))

        @property
        def stack(self) -> Stack:
            """See `Task.Config.stack`, and `series_stack`."""
            return series_stack(self.model)

        def with_stack(self, stack: Stack) -> Self:
            """See `Task.Config.with_stack`: the stack of an ITNet."""
            return replace(self, model=with_series_stack(self.model, stack))

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
        found = open_series(config.data, kind=config.target)
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
        assert splits.train.answers is not None
        facts.target.check(splits.train.answers, config.data)
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
        facts = self._facts
        sampling = SeriesSampling(
            channels=facts.preparation.num_channels,
            spacing=facts.spacing,
            extent=facts.extent,
            observation=facts.preparation.observation,
        )
        return self.config.model.build(sampling, self.target.num_outputs)

    def initialise(self, model: nn.Module, device: torch.device) -> None:
        """See `Task.initialise`: fits a closed-form model to all training series."""
        if not isinstance(model, FittedModel):
            return
        batches: list[tuple[SeriesBatch, Tensor]] = []
        for indices in torch.arange(self.num_train).split(CHUNK):
            batch = to_device(self._batch(self.splits.train, indices), device)
            batches.append((series_of(batch), batch["targets"]))
        model.fit(batches, self.target, groups=self.splits.train.marks.group_numbers(device))

    def entry_names(self, model: nn.Module) -> EntryNames:
        """See `Task.entry_names`: the targets for the rows of the head, the channels for the columns of encoders."""
        facts, names = self._facts, self.target.names
        observed = (f"whether {facts.channels[c]} is observed" for c in facts.preparation.observation)
        rows = head_entry_names(model, names) if len(names) == self.target.num_outputs else {}
        return rows | input_entry_names(model, (*facts.channels, *observed))

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """`values` (B, N, channels), `targets` (B, ...), and the other tensors of `batch_of`; nothing is random."""
        return self._batch(self.splits.train, indices)

    def held_out_batch(self, split: HeldOut, indices: Tensor) -> Batch:
        """A batch of the validation or the test split, as `train_batch`."""
        return self._batch(self.held_out(split), indices)

    def _batch(self, series: Series, indices: Tensor) -> Batch:
        part = series.read(indices)
        assert part.answers is not None
        return {"targets": self.target.targets(part.answers.values), **batch_of(part, self._facts.preparation)}

    def shown_example(self, split: HeldOut, index: int, model: nn.Module | None = None) -> ShownExample:
        """See `Task.shown_example`: the channels over time, in their own units."""
        part = self.held_out(split).read(torch.tensor([index]))
        length = int(part.lengths[0])
        x = torch.arange(length) * part.spacing if part.times is None else part.times[0, :length]
        channels = part.channels[:MOST_LINES]
        lines = tuple(Line(name, "seen", x, part.values[0, :length, c]) for c, name in enumerate(channels))
        return ShownExample(name=part.names[0], views=(SeriesView(lines=lines),))

    def _outputs(self, model: nn.Module, batch: Batch) -> Tensor:
        return model(series_of(batch)).float()

    def _warn(self, series: Series) -> None:
        """Warns, at most once, of series that are longer than any in training, or have gaps that training had not."""
        longest, extent = float(series.extents.max()), self._facts.extent
        if self._has_warned:
            return
        if longest > extent * (1 + 1e-6):
            self._has_warned = True
            warnings.warn(
                f"{series.names[int(series.extents.argmax())]}: lasts {longest:g}, longer than any series in training "
                f"({extent:g}); the model saw none like it",
                stacklevel=2,
            )
        self._facts.preparation.warn_of_gaps(series)

    @property
    def _train_answers(self) -> Answers:
        answers = self.splits.train.answers
        assert answers is not None
        return answers

    def _baseline_inputs(self, split: Split) -> np.ndarray:
        """Values of each channel, interpolated at PLAIN_SAMPLES places from first to last sample of each series."""
        part = self._part_of(split).in_memory()
        rows = np.empty((len(part), PLAIN_SAMPLES, len(part.channels)), dtype=part.values.numpy().dtype)
        mean = np.array(self._facts.preparation.mean)
        for i, (values, length) in enumerate(zip(part.values.numpy(), part.lengths.tolist(), strict=True)):
            places = np.linspace(0, length - 1, PLAIN_SAMPLES)
            for c in range(len(part.channels)):
                known = np.flatnonzero(~np.isnan(values[:length, c]))
                rows[i, :, c] = np.interp(places, known, values[known, c]) if len(known) else mean[c]
        return rows.reshape(len(part), -1)

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

    def tensor_form(self, model: nn.Module) -> TensorForm:
        """See `Task.tensor_form`: from values at the spacing of training, or with their times."""
        facts, target, config = self._facts, self.target, self.config
        if config.permute_seed is not None:
            raise ValueError(
                f"the samples of each series are put into another order (permute_seed={config.permute_seed}), which is "
                "no part of the model; train without it"
            )

        def call(model: nn.Module, values: Tensor, exists: Tensor, *times: Tensor) -> Tensor:
            own = torch.where(exists[..., None], values, torch.nan)  # nothing is interpolated towards the padding
            prepared = torch.where(exists[..., None], facts.preparation.apply(own), 0.0)
            batch = {"values": prepared, "mask": exists, **({"times": times[0]} if times else {})}
            return target.answers(self._outputs(model, batch))

        def draw(sizes: Sizes, generator: torch.Generator) -> tuple[Tensor, ...]:
            batch, samples = sizes["batch"], sizes["samples"]
            mean, deviation = (
                torch.tensor(part, dtype=torch.float64)
                for part in (facts.preparation.mean, facts.preparation.deviation)
            )
            values = mean + deviation * torch.randn(batch, samples, len(mean), generator=generator, dtype=torch.float64)
            exists = first_of_each(batch, samples)
            if facts.preparation.observation:
                values[torch.rand(values.shape, generator=generator) < 0.2] = torch.nan
            values = torch.where(exists[..., None], values, 0.0)
            if facts.is_regular:
                return values, exists
            steps = torch.rand(batch, samples, generator=generator, dtype=torch.float64)
            return values, exists, (2 * facts.spacing * steps).cumsum(1)

        samples, longest = Axis("samples"), max(round(facts.extent / facts.spacing) + 1, 2)
        example = min(longest, 24)
        missing = "; NaN where one is missing" if facts.preparation.observation else ""
        about = f"the channels {', '.join(facts.channels)} in the unit of the data"
        slots = (
            Slot("values", (BATCH, samples, Axis("channels", len(facts.channels))), f"{about}{missing}"),
            Slot("exists", (BATCH, samples), "which samples a series has; the others come last"),
            *(() if facts.is_regular else (Slot("times", (BATCH, samples), "of the samples, in ascending order"),)),
        )
        notes = (f"samples are {facts.spacing:g} apart, as in training",) if facts.is_regular else ()
        if config.bin is not None:
            notes = (*notes, f"each value is the mean over a time of {config.bin:g}, or missing where there is none")
        return TensorForm(
            model=model,
            call=call,
            inputs=slots,
            output=target.slot(BATCH),
            draw=draw,
            open_axes={"samples": OpenAxis(example, example + 7 if longest < 31 else 31, longest)},
            names=target.axis_names,
            notes=notes,
        )

    def _predictions(self, model: nn.Module, inputs: Inputs, device: torch.device) -> list[Prediction]:
        """A row for each series of each file: `file`, `series`, and the target's answer.

        Labels in a file are ignored. Channels of a table are found by their names.
        """
        rows = list[Prediction]()
        for file, found in inputs.read(lambda file: self._read(file, inputs.part)):
            for series, outputs in zip(found.names, self.outputs(model, found, device), strict=True):
                name = series.removeprefix(file.name).removeprefix(", ").removeprefix("series ")
                cells, probabilities = self.target.answer(outputs)
                rows.append(Prediction(file, {"series": name, **cells}, probabilities))
        return rows

    def _read(self, file: Path, part: Split | None) -> SeriesSet:
        return self.prepared(read_series(file, channels=self._facts.channels, part=part))


def series_of(batch: Batch) -> SeriesBatch:
    """The series of a batch, as a model takes them."""
    return SeriesBatch(batch["values"], batch.get("mask"), batch.get("times"), batch.get("spacing"))


def batch_of(series: SeriesSet, preparation: Preparation) -> Batch:
    """Prepared `values` (B, N, channels), and `mask`, `times` and `spacing` as far as needed.

    `mask` (B, N) exists where lengths differ; `times` (B, N) where samples are irregular, else `spacing` (B,).
    """
    exists = series.exists
    batch = {"values": torch.where(exists[..., None], preparation.apply(series.values), 0.0)}
    if not bool(exists.all()):
        batch["mask"] = exists
    if series.times is not None:
        return batch | {"times": series.times}
    return batch | {"spacing": torch.full((len(series),), series.spacing, dtype=torch.float64)}


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
    assert train.answers is not None
    return SeriesLearning.Facts(
        target=train.answers.learn(settings, data),
        channels=train.channels,
        preparation=Preparation.learn(train, limit, fill),
        spacing=spacing,
        extent=extent,
        is_regular=train.is_regular,
    )
