"""Telling which class a time series belongs to."""

import math
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, final, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fredholm._settings import refuse_idle
from fredholm.encoders.series import SeriesBatch
from fredholm.models.ckcnn import CKCNN
from fredholm.models.filter_bank import FilterBank
from fredholm.models.itnet import ITNet
from fredholm.models.itnet_series import ITNetSeriesConfig
from fredholm.models.kernel_configs import KERNELS
from fredholm.models.series_model import FittedModel, SeriesModelConfig, SeriesSampling
from fredholm.tasks.inputs import Inputs, Kinds
from fredholm.tasks.prediction import Prediction
from fredholm.tasks.schedule import Preset
from fredholm.tasks.series import (
    Dropped,
    Fill,
    Preparation,
    SeriesSet,
    average_in_bins,
    drop_samples,
    open_series,
    permute_samples,
    read_series,
    take_every,
)
from fredholm.tasks.series.open import KINDS as SERIES_SUFFIXES
from fredholm.tasks.split_files import Split
from fredholm.tasks.splits import HeldOut, Splits
from fredholm.tasks.splitting import with_validation
from fredholm.tasks.task import Batch, Objective, SplitTask, Suited, Task

if TYPE_CHECKING:
    from torchmetrics import Metric

CHUNK = 64
"""Series that are fitted or predicted at a time."""


@final
class SeriesClassification(SplitTask[SeriesSet]):
    """A model on labelled time series of any lengths and sampling: filters with a ridge regression, or a network.

    A filter bank is computed from the training split; networks are trained by cross-entropy. Channels are standardised
    by the observed training values; where values are missing in training, further channels say what was observed. All
    models know time in the data's unit: another rate, or irregular samples, need nothing but their times. Warns once of
    test series that are unlike training's.

    Args:
        config: the settings.
        facts: from an earlier run; None reads them from the training split.

    Raises:
        ValueError: the data cannot be opened, or are not those of `facts`.
    """

    command: ClassVar[str] = "series"
    predicts = Kinds(suffixes=(*SERIES_SUFFIXES, ".npy"), has_parts=True)
    objective = Objective(metric="accuracy", percent=True)
    parts: ClassVar[tuple[type, ...]] = (FilterBank.Config, CKCNN.Config, ITNetSeriesConfig, ITNet.Config, *KERNELS)

    @dataclass(frozen=True, kw_only=True)
    class Facts(Task.Facts):
        """Of the training split, thinned as the config says.

        `spacing` is the time between two of its samples, on the average where it changes; `extent` the longest time
        between two samples of one series. Both are above 0.
        """

        classes: tuple[str, ...]
        channels: tuple[str, ...]
        preparation: Preparation
        spacing: float
        extent: float

    @dataclass(frozen=True, kw_only=True)
    class Config(SplitTask.Config):
        """A set of series, what is left out of it, and the model.

        Args:
            data: a .ts, .csv or .npz file, the folder of one, or of a training and a test file.
            train_every: keeps every n-th sample of the training series, from the first on.
            test_every: likewise of the validation and the test series.
            train_drop: share of the samples that is dropped from each training series, in all channels at once.
            test_drop: likewise from each validation and test series.
            drop_seed: of these draws; refused where nothing is dropped.
            dropped: what dropped samples are: missing values, or absent, so that times are irregular;
                likewise.
            permute_seed: puts the samples of every series into one random order, as permuted MNIST; None: as they are.
            bin: duration over which values are averaged, so that irregular samples become regular ones, with missing
                values where a bin is empty; None: samples are left as they are.
            fill: what stands where a value is missing: its channel's mean, or the last value that was observed.
            limit: largest size of a standardised value, beyond which it is cut, for data with gross errors; None: none.
            model: a filter bank, which is computed from the training series, or a network that learns by steps.
        """

        data: str = ""
        train_every: int = 1
        test_every: int = 1
        train_drop: float = 0.0
        test_drop: float = 0.0
        drop_seed: int = 0
        dropped: Dropped = "missing"
        permute_seed: int | None = None
        bin: float | None = None
        fill: Fill = "mean"
        limit: float | None = None
        model: SeriesModelConfig = field(default_factory=FilterBank.Config)

        def __post_init__(self) -> None:
            for name in ("train_every", "test_every"):
                if getattr(self, name) < 1:
                    raise ValueError(f"{name} is {getattr(self, name)}; expected at least 1")
            for name in ("train_drop", "test_drop"):
                if not 0 <= getattr(self, name) < 1:
                    raise ValueError(f"{name} is {getattr(self, name)}; expected a share from 0 to below 1")
            if self.bin is not None and not 0 < self.bin < math.inf:
                raise ValueError(f"bin is {self.bin}; expected a finite duration above 0")
            for name, allowed in (("dropped", get_args(Dropped)), ("fill", get_args(Fill))):
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
                kind = type(self.model).__qualname__.removesuffix(".Config")
                because = f"model={kind}, whose settings are chosen by leaving each training series out"
                refuse_idle(
                    "", type(self), because, "take a model that learns by steps", valid_fraction=self.valid_fraction
                )

        def suited(self, preset: Preset) -> Suited:
            """See `Task.Config.suited`; a model that is fitted at once takes no epochs."""
            found = super().suited(preset)
            if self.model.learns_by_steps:
                return found
            return Suited(self, replace(found.schedule, epochs=0, evaluate_every=1, patience=None))

        def build(self, facts: Task.Facts | None = None) -> "SeriesClassification":
            """The task; see `SeriesClassification`."""
            if facts is not None and not isinstance(facts, SeriesClassification.Facts):
                raise ValueError(f"the facts are of {type(facts).__qualname__}, not of series classification")
            return SeriesClassification(self, facts)

    def __init__(self, config: Config, facts: Facts | None = None) -> None:
        self.config = config
        self._has_warned = False
        self._is_measured = facts is None
        self._facts = facts or measure(self._opened.train, config.limit, config.fill)
        if len(self._facts.classes) < 2:
            raise ValueError(f"{config.data} has the classes {list(self._facts.classes)}; expected at least 2")

    @property
    def facts(self) -> Facts:
        """Of the training split."""
        return self._facts

    @property
    def learns_by_steps(self) -> bool:
        """As the model says."""
        return self.config.model.learns_by_steps

    def _open(self) -> Splits[SeriesSet]:
        config = self.config
        if not config.data:
            raise ValueError("no series are given; pass a .ts, .csv or .npz file or a folder of them")
        found = open_series(config.data, test_fraction=config.test_fraction, split_seed=config.split_seed)
        longest = found.train.values.shape[1]  # that of all, whatever is split off
        assert found.train.labels is not None
        needs_none = not config.model.learns_by_steps and found.valid is None
        settings = replace(config, valid_fraction=0.0) if needs_none else config
        splits = with_validation(found, found.train.names, found.train.labels.tolist(), settings)
        train, valid, test = (
            None if part is None else self._thinned(self._permuted(part, longest), every, drop)
            for part, every, drop in (
                (splits.train, config.train_every, config.train_drop),
                (splits.valid, config.test_every, config.test_drop),
                (splits.test, config.test_every, config.test_drop),
            )
        )
        assert train is not None
        return Splits(train, test, valid)

    def _check(self, splits: Splits[SeriesSet]) -> None:
        config, facts = self.config, self._facts
        splits.check_facts(facts, config.data)
        if not self._is_measured and measure(splits.train, config.limit, config.fill) != facts:
            raise ValueError(f"the training series of {config.data} are not those that the run was made with")
        for part in (splits.valid, splits.test):
            if part is not None:
                self._warn(part)

    def _permuted(self, series: SeriesSet, longest: int) -> SeriesSet:
        seed = self.config.permute_seed
        return series if seed is None else permute_samples(series, seed, longest)

    def _thinned(self, series: SeriesSet, every: int, drop: float) -> SeriesSet:
        config = self.config
        series = drop_samples(take_every(series, every), drop, config.drop_seed, config.dropped)
        return series if config.bin is None else average_in_bins(series, config.bin)

    def model(self) -> nn.Module:
        """The model, with one logit a class."""
        facts = self._facts
        sampling = SeriesSampling(channels=facts.preparation.num_channels, spacing=facts.spacing, extent=facts.extent)
        return self.config.model.build(sampling, len(facts.classes))

    def initialise(self, model: nn.Module, device: torch.device) -> None:
        """See `Task.initialise`: fits a model that is computed from all training series."""
        if not isinstance(model, FittedModel):
            return
        batches: list[tuple[SeriesBatch, Tensor]] = []
        for indices in torch.arange(self.num_train).split(CHUNK):
            batch = {name: each.to(device) for name, each in self._labelled(self.splits.train, indices).items()}
            batches.append((series_of(batch), batch["labels"]))
        model.fit(batches)

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """`values` (B, N, channels), their `labels` (B,), and what `batch_of` gives; nothing is drawn."""
        return self._labelled(self.splits.train, indices)

    def held_out_batch(self, split: HeldOut, indices: Tensor) -> Batch:
        """Likewise of the validation or the test split."""
        return self._labelled(self.held_out(split), indices)

    def num_targets(self, batch: Batch) -> int:
        """One per series."""
        return len(batch["labels"])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Cross-entropy summed over the series."""
        return F.cross_entropy(self._logits(model, batch), batch["labels"], reduction="sum")

    def metrics(self) -> "dict[str, Metric]":
        """`accuracy`, the share of series whose largest logit is right; `loss`; with two classes `auroc`.

        `loss` is the mean cross-entropy. `auroc` is the chance that a series of the second class gets a higher
        probability of it than one of the first.

        Raises:
            ImportError: torchmetrics is not installed.
        """
        try:
            from torchmetrics import MeanMetric
            from torchmetrics.classification import BinaryAUROC, MulticlassAccuracy
        except ImportError as error:
            raise ImportError('metrics need torchmetrics; get it with: pip install "fredholm[train]"') from error
        num_classes = len(self._facts.classes)
        both: dict[str, Metric] = {
            "accuracy": MulticlassAccuracy(num_classes, average="micro"),
            "loss": MeanMetric(),
        }
        return both | ({"auroc": BinaryAUROC()} if num_classes == 2 else {})

    def score(self, model: nn.Module, batch: Batch, metrics: "dict[str, Metric]") -> None:
        """Adds a batch of `held_out_batch` to the metrics."""
        logits, labels = self._logits(model, batch), batch["labels"]
        metrics["accuracy"].update(logits, labels)
        metrics["loss"].update(F.cross_entropy(logits, labels, reduction="none"))
        if "auroc" in metrics:
            metrics["auroc"].update(logits.softmax(-1)[:, 1], labels)

    @torch.no_grad()
    def probabilities(self, model: nn.Module, series: SeriesSet, device: torch.device) -> Tensor:
        """Of each class `(n, classes)`, of series as they are, with the channels of training."""
        self._warn(series)
        parts = []
        for indices in torch.arange(len(series)).split(CHUNK):
            batch = batch_of(series.select(indices), self._facts.preparation)
            moved = {name: tensor.to(device) for name, tensor in batch.items()}
            parts.append(self._logits(model, moved).softmax(-1).cpu())
        return torch.cat(parts)

    def _predictions(self, model: nn.Module, inputs: Inputs, device: torch.device) -> list[Prediction]:
        """`file`, `series`, `class` and `probability` of the likeliest class for each series of each file.

        Nothing is taken from the labels of a file, if it has some. Channels of a table are found by their names.
        """
        facts, rows = self._facts, list[Prediction]()
        for file, found in inputs.read(lambda file: self._read(file, inputs.part)):
            for series, each in zip(found.names, self.probabilities(model, found, device).tolist(), strict=True):
                name = series.removeprefix(file.name).removeprefix(", ").removeprefix("series ")
                rows.append(Prediction(file, {"series": name}, dict(zip(facts.classes, each, strict=True))))
        return rows

    def _read(self, file: Path, part: Split | None) -> SeriesSet:
        facts = self._facts
        found = read_series(file, channels=facts.channels, part=part)
        return self._thinned(self._permuted(found, round(facts.extent / facts.spacing) + 1), every=1, drop=0.0)

    def _labelled(self, series: SeriesSet, indices: Tensor) -> Batch:
        part = series.select(indices)
        assert part.labels is not None
        return {"labels": part.labels, **batch_of(part, self._facts.preparation)}

    def _logits(self, model: nn.Module, batch: Batch) -> Tensor:
        return model(series_of(batch)).float()

    def _warn(self, series: SeriesSet) -> None:
        """Warns, at most once, of series that are longer than any in training, or miss what was never missed."""
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


def series_of(batch: Batch) -> SeriesBatch:
    """What a model takes of a batch."""
    return SeriesBatch(batch["values"], batch.get("mask"), batch.get("times"), batch.get("spacing"))


def batch_of(series: SeriesSet, preparation: Preparation) -> Batch:
    """Prepared `values` (B, N, channels) and, where they say something, `mask`, `times` and `spacing`.

    `mask` (B, N) is there where lengths differ; `times` (B, N) where samples are irregular, else `spacing` (B,).
    """
    exists = series.exists
    batch = {"values": torch.where(exists[..., None], preparation.apply(series.values), 0.0)}
    if not bool(exists.all()):
        batch["mask"] = exists
    if series.times is not None:
        return batch | {"times": series.times}
    return batch | {"spacing": torch.full((len(series),), series.spacing, dtype=torch.float64)}


def measure(train: SeriesSet, limit: float | None = None, fill: Fill = "mean") -> SeriesClassification.Facts:
    """The facts of a training set whose standardised values are cut at `limit` and filled as `fill` says.

    Where every series has one sample, spacing and extent are 1.
    """
    extents = train.extents
    gaps, extent = int((train.lengths - 1).sum()), float(extents.max())
    spacing = train.spacing
    if train.times is not None and gaps:
        spacing = float(extents.sum()) / gaps
    return SeriesClassification.Facts(
        classes=train.classes,
        channels=train.channels,
        preparation=Preparation.learn(train, limit, fill),
        spacing=spacing,
        extent=extent if extent > 0 else spacing,
    )
