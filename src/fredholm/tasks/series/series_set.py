"""Sets of series with the same channels, in memory or on disk."""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Self, final

import numpy as np
import torch
from torch import Tensor

from fredholm.tasks.files.cells import LARGEST, as_kept, kept_type
from fredholm.tasks.files.limits import check_expansion
from fredholm.tasks.splits.split_marks import SplitMarks
from fredholm.tasks.splits.splits import Divisible
from fredholm.tasks.splits.stratified_split import SplitKeys
from fredholm.tasks.targets import UNKNOWN, Answers, Kind

from .sample_labels import SampleLabels

SeriesTarget = Literal["class", "labels", "number", "samples"]
"""Kinds of targets: a class, labels or numbers of a series, or the class of each of its samples."""


@final
@dataclass(frozen=True, kw_only=True)
class LabelReading:
    """Settings for reading labels.

    Args:
        kind: classes, labels or numbers, or classes of samples; None: follows from the file, see each reader.
        names: known names of the classes, labels or numbers, in their order; None: those of the file.
    """

    kind: SeriesTarget | None = None
    names: tuple[str, ...] | None = None

    @property
    def of_series(self) -> Kind | None:
        """The kind where it is one of whole series; None: it follows from the file, or samples are classified."""
        return None if self.kind == "samples" else self.kind

    def after(self, train: "Series") -> Self:
        """The reading of another split: the names of the training split, and its kind where samples are classified."""
        kind = self.kind if train.sample_labels is None else "samples"
        return replace(self, kind=kind, names=train.answer_names or None)


SAME = 1e-6
_CUT = "cut the longest ones, or leave them out"


class Series(Divisible):
    """n series of C channels, in memory or on disk; `read` returns some of them as a `SeriesSet`."""

    shared: ClassVar[tuple[str, ...]] = ("answer_names", "channels")

    lengths: Tensor
    spacing: float
    answers: Answers | None
    sample_labels: SampleLabels | None = None
    channels: tuple[str, ...]
    names: tuple[str, ...]
    marks: SplitMarks

    def __len__(self) -> int:
        """The number of series."""
        return len(self.names)

    def check_split(self, name: str) -> None:
        """See `Examples.check_split`; besides, each series has a label or targets, or its samples have labels."""
        super().check_split(name)
        if not self.has_answers:
            raise ValueError(f"the {name} set has no labels and no targets; give each series one")

    @property
    def keys(self) -> SplitKeys:
        """Names, answers and marks."""
        return self.marks.keys(self.names, [0] * len(self) if self.answers is None else self.answers.strata.tolist())

    @property
    def has_answers(self) -> bool:
        """Whether there are labels or targets, of series or of samples."""
        return self.answers is not None or self.sample_labels is not None

    @property
    def answer_names(self) -> tuple[str, ...]:
        """Names of the classes, labels or numbers; () where there are no answers."""
        known = self.answers or self.sample_labels
        return () if known is None else known.names

    @property
    @abstractmethod
    def is_regular(self) -> bool:
        """Whether sample k is at k times `spacing`."""

    @property
    @abstractmethod
    def extents(self) -> Tensor:
        """Time between the first and the last sample of each series, float64 `(n,)`."""

    @final
    def span(self) -> tuple[float, float]:
        """Time between two samples, its mean where it varies, and between first and last sample of the longest series.

        Both are above 0: for series of one sample each they are the spacing, 1 where samples have times.
        """
        extents = self.extents
        gaps, extent = int((self.lengths - 1).sum()), float(extents.max())
        spacing = float(extents.sum()) / gaps if gaps and not self.is_regular else self.spacing
        return spacing, extent if extent > 0 else spacing

    @property
    @abstractmethod
    def shards(self) -> Tensor | None:
        """Sizes of the shards on disk, see `Task.train_shards`; None: any order of reading is equally fast."""

    @abstractmethod
    def read(self, indices: Tensor) -> "SeriesSet":
        """The series at `indices`, int64 `(m,)`, in memory, padded to the longest of them."""

    @abstractmethod
    def chunks(self) -> Iterator["SeriesSet"]:
        """All series in their order, in parts that fit in memory."""

    def in_memory(self) -> "SeriesSet":
        """All series, in memory."""
        return self.read(torch.arange(len(self)))


@final
@dataclass(frozen=True, kw_only=True)
class SeriesSet(Series):
    """n series of C channels and of individual lengths, in memory: the result of readers, the input of preparations.

    Args:
        values: float32 or float64 `(n, T, C)`; NaN where a value is missing, and after a series' end.
        lengths: int64 `(n,)`, samples of each series, 1 to T.
        times: float64 `(n, T)`, increasing along a series, 0 after its end; None: sample k is at k times `spacing`.
        spacing: time between two samples where `times` is None; above 0.
        is_dated: whether times were written as dates, and are seconds since 1970.
        has_zone: whether these dates had a time zone; all times are in UTC.
        answers: labels or targets, one a series; None: there are none.
        sample_labels: the class of each sample; None: there are none.
        channels: names of the channels.
        names: the origin of each series, for messages.
        marks: splits, groups and times; the time of a series is that of its first sample, where samples have times.

    Raises:
        ValueError: shapes or types do not agree, a series is empty, a value or time is infinite, a time is NaN or does
            not increase, there are not as many answers as series, or labels that are not those of the samples.
    """

    values: Tensor
    lengths: Tensor
    times: Tensor | None = None
    spacing: float = 1.0
    is_dated: bool = False
    has_zone: bool = False
    answers: Answers | None = None
    sample_labels: SampleLabels | None = None
    channels: tuple[str, ...]
    names: tuple[str, ...]
    marks: SplitMarks = field(default_factory=SplitMarks)

    def __post_init__(self) -> None:
        n, num_samples, num_channels = self._checked_shape()
        if num_channels != len(self.channels) or n != len(self.names) or self.lengths.shape != (n,):
            raise ValueError(
                f"values are {(n, num_samples, num_channels)} for {len(self.names)} names, {len(self.lengths)} lengths "
                f"and {len(self.channels)} channels; give one of each a series, and a name a channel"
            )
        for i in (~((self.lengths >= 1) & (self.lengths <= num_samples))).nonzero()[:1, 0].tolist():
            raise ValueError(f"{self.names[i]}: has {int(self.lengths[i])} samples; expected at least one")
        for i, k, c in self.values.isinf().nonzero()[:1].tolist():
            raise ValueError(
                f"{self.names[i]}: sample {k} of channel {self.channels[c]!r} is infinite; expected "
                f"finite numbers of at most {LARGEST:.2g} in size"
            )
        if self.times is None:
            if not 0 < self.spacing < math.inf:
                raise ValueError(f"the spacing of samples is {self.spacing}; expected a finite number above 0")
        else:
            self._check_times(self.times)
        if self.answers is not None and len(self.answers) != n:
            raise ValueError(f"there are {len(self.answers)} answers for {n} series; give one of each")
        self._check_labels()

    def _check_labels(self) -> None:
        if self.sample_labels is None:
            return
        if self.answers is not None:
            raise ValueError("there are answers of series and labels of samples; give one of them")
        labels, shape = self.sample_labels.values, tuple(self.values.shape[:2])
        if labels.shape != shape:
            raise ValueError(f"labels of samples are {tuple(labels.shape)}; expected one of each sample, {shape}")
        for i in (self.sample_labels.is_known & ~self.exists).nonzero()[:1, 0].tolist():
            raise ValueError(f"{self.names[i]}: has labels after its end, at sample {int(self.lengths[i])}")

    def _checked_shape(self) -> tuple[int, int, int]:
        if self.values.dtype not in (torch.float32, torch.float64) or self.values.ndim != 3:
            raise ValueError(
                f"values are {self.values.dtype} {tuple(self.values.shape)}; pass float32 or float64 (n, T, C)"
            )
        n, num_samples, num_channels = self.values.shape
        if num_channels == 0:
            raise ValueError(f"values are {tuple(self.values.shape)}, without a channel; expected at least one")
        return n, num_samples, num_channels

    def _check_times(self, times: Tensor) -> None:
        if times.dtype != torch.float64 or times.shape != self.values.shape[:2]:
            raise ValueError(
                f"times are {times.dtype} {tuple(times.shape)}; pass float64 {tuple(self.values.shape[:2])}"
            )
        exists = self.exists
        for i, k in (~times.isfinite() & exists).nonzero()[:1].tolist():
            raise ValueError(f"{self.names[i]}: the time of sample {k} is {float(times[i, k])}; expected a number")
        for i, k in (~(times.diff(dim=1) > 0) & exists[:, 1:]).nonzero()[:1].tolist():
            before, after = times[i, k : k + 2].tolist()
            raise ValueError(
                f"{self.names[i]}: the time of sample {k + 1} is {after:g} after {before:g}; sort the samples by time, "
                "one a time"
            )

    @property
    def exists(self) -> Tensor:
        """Whether each sample is one of its series, not padding, bool `(n, T)`."""
        return torch.arange(self.values.shape[1]) < self.lengths[:, None]

    @property
    def sample_times(self) -> Tensor:
        """Time of each sample, float64 `(n, T)`, NaN after a series' end."""
        steps = torch.arange(self.values.shape[1], dtype=torch.float64) * self.spacing
        return torch.where(self.exists, steps if self.times is None else self.times, torch.nan)

    @property
    def extents(self) -> Tensor:
        """Time between the first and the last sample of each series, float64 `(n,)`."""
        if self.times is None:
            return (self.lengths - 1).double() * self.spacing
        last = self.times.gather(1, self.lengths[:, None] - 1)
        return last[:, 0] - self.times[:, 0]

    @property
    def is_regular(self) -> bool:
        """See `Series.is_regular`."""
        return self.times is None

    @property
    def shards(self) -> None:
        """None: all are in memory."""
        return None

    def chunks(self) -> Iterator[Self]:
        """All at once."""
        yield self

    def in_memory(self) -> Self:
        """The same set, which is in memory already."""
        return self

    def read(self, indices: Tensor) -> Self:
        """See `select`."""
        return self.select(indices)

    def select(self, indices: Tensor) -> Self:
        """The series at `indices`, int64 `(m,)`, padded to the longest of them."""
        lengths = self.lengths[indices]
        longest = int(lengths.max()) if len(lengths) else 0
        return replace(
            self,
            values=self.values[indices, :longest],
            lengths=lengths,
            times=None if self.times is None else self.times[indices, :longest],
            answers=None if self.answers is None else self.answers.select(indices),
            sample_labels=self.with_labels(lambda labels: labels[indices, :longest]),
            names=tuple(self.names[i] for i in indices.tolist()),
            marks=self.marks.select(indices),
        )

    def with_labels(self, change: Callable[[Tensor], Tensor]) -> SampleLabels | None:
        """The labels of samples `(n, T)` after a change of the samples; None where there are none."""
        return None if self.sample_labels is None else self.sample_labels.of(change(self.sample_labels.values))

    def parts(self, which: Tensor, starts: Tensor, lengths: Tensor) -> Self:
        """Parts of the series, which become series of their own, padded to the longest of them.

        Args:
            which: int64 `(m,)`, the series of each part.
            starts: int64 `(m,)`, its first sample.
            lengths: int64 `(m,)`, its number of samples, at least 1.
        """
        steps = torch.arange(int(lengths.max()))
        inside, rows = steps < lengths[:, None], which[:, None]
        at = (starts[:, None] + steps).clamp(max=self.values.shape[1] - 1)
        return replace(
            self,
            values=self.values[rows, at].masked_fill(~inside[..., None], torch.nan),
            lengths=lengths,
            times=None if self.times is None else torch.where(inside, self.times[rows, at], 0.0),
            answers=None if self.answers is None else self.answers.select(which),
            sample_labels=self.with_labels(lambda labels: torch.where(inside, labels[rows, at], UNKNOWN)),
            names=tuple(self.names[i] for i in which.tolist()),
            marks=self.marks.select(which),
        )

    def permuted(self, seed: int, length: int) -> Self:
        """The values of every series in one order of `length` samples, drawn from `seed`: permuted MNIST; times stay.

        Raises:
            ValueError: a series has another length or irregular times, so that the common order does not apply.
        """
        if self.times is not None:
            raise ValueError("permute_seed needs regular series; these have irregular times")
        for i in (self.lengths != length).nonzero()[:1, 0].tolist():
            raise ValueError(
                f"{self.names[i]}: has {int(self.lengths[i])} samples; permute_seed needs {length}, as in training"
            )
        order = torch.randperm(length, generator=torch.Generator().manual_seed(seed))
        return replace(self, values=self.values[:, order], sample_labels=self.with_labels(lambda own: own[:, order]))

    @staticmethod
    def pack(
        values: Sequence[np.ndarray],
        *,
        times: Sequence[np.ndarray] | None = None,
        spacing: float = 1.0,
        is_dated: bool = False,
        has_zone: bool = False,
        answers: Answers | None = None,
        sample_labels: SampleLabels | None = None,
        channels: tuple[str, ...],
        names: tuple[str, ...],
        marks: SplitMarks | None = None,
    ) -> "SeriesSet":
        """Packs series of any lengths into one set.

        Args:
            values: values of each series, `(samples, C)`; see `kept_type`.
            times: times of each series, `(samples,)`. Where all have one spacing, to a millionth, only that is kept.
            spacing, is_dated, has_zone, answers, sample_labels, channels, names: see `SeriesSet`.
            marks: see `SeriesSet`; marks without times get the times of the first samples.

        Raises:
            ValueError: the padded series would be too large (`check_expansion`).
        """
        lengths = [len(each) for each in values]
        longest = max(lengths, default=0)
        num_values = len(values) * longest * (len(channels) + (0 if times is None else 2))
        given = sum(lengths) * (len(channels) + 1)
        kept = kept_type(*values)
        size = np.dtype(kept).itemsize
        check_expansion(
            f"{len(values):,} series, padded to the longest of {longest:,} samples,",
            size * num_values,
            size * given,
            _CUT,
        )
        padded = np.full((len(values), longest, len(channels)), np.nan, kept)
        stamps = np.zeros((len(values), 0 if times is None else longest))
        for i, each in enumerate(values):
            padded[i, : len(each)] = as_kept(each, kept)
            if times is not None:
                stamps[i, : len(each)] = times[i]
        common, marks = None if times is None else _common_spacing(times), marks or SplitMarks()
        if times is not None and marks.times is None and all(lengths):
            marks = replace(marks, times=torch.tensor([float(each[0]) for each in times], dtype=torch.float64))
        return SeriesSet(
            values=torch.from_numpy(padded),
            lengths=torch.tensor(lengths, dtype=torch.int64),
            times=torch.from_numpy(stamps) if times is not None and common is None else None,
            spacing=spacing if common is None else common,
            is_dated=is_dated,
            has_zone=has_zone,
            answers=answers,
            sample_labels=sample_labels,
            channels=channels,
            names=names,
            marks=marks,
        )


def _common_spacing(times: Sequence[np.ndarray]) -> float | None:
    """The time between any two neighbours of any series, if it is always the same."""
    steps = [np.diff(each) for each in times]
    joined = np.concatenate(steps) if steps else np.empty(0)
    if not len(joined) or not np.isfinite(joined).all():
        return None
    middle = float(np.median(joined))
    return middle if middle > 0 and bool((np.abs(joined - middle) <= SAME * middle).all()) else None
