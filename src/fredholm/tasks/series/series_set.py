"""Labelled series of one set of channels: the frozen value that every reader gives and every preparation takes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self, final

import numpy as np
import torch
from torch import Tensor

from fredholm.tasks.splits import Divisible

_SAME = 1e-6


@final
@dataclass(frozen=True, kw_only=True)
class SeriesSet(Divisible):
    """n series of C channels, each with samples of its own number.

    Args:
        values: float32 `(n, T, C)`; NaN where a value is missing, and after a series' end.
        lengths: int64 `(n,)`, samples of each series, 1 to T.
        times: float64 `(n, T)`, increasing along a series, 0 after its end; None: sample k is at k times `spacing`.
        spacing: time between two samples where `times` is None; above 0.
        labels: int64 `(n,)`, each in `0 .. len(classes) - 1`; None: the series have none.
        classes: the class names.
        channels: the channels' names.
        names: where each series came from, for messages.

    Raises:
        ValueError: shapes or types do not agree, a series is empty, a value or time is infinite, a time is NaN or does
            not increase, a label has no class.
    """

    shared: ClassVar[tuple[str, ...]] = ("classes", "channels")

    values: Tensor
    lengths: Tensor
    times: Tensor | None = None
    spacing: float = 1.0
    labels: Tensor | None = None
    classes: tuple[str, ...] = ()
    channels: tuple[str, ...]
    names: tuple[str, ...]

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
            raise ValueError(f"{self.names[i]}: sample {k + 1} of channel {self.channels[c]!r} is infinite")
        if self.times is None:
            if not 0 < self.spacing < math.inf:
                raise ValueError(f"the spacing of samples is {self.spacing}; expected a finite number above 0")
        else:
            self._check_times(self.times)
        if self.labels is not None:
            self._check_labels(self.labels)

    def _checked_shape(self) -> tuple[int, int, int]:
        if self.values.dtype != torch.float32 or self.values.ndim != 3:
            raise ValueError(f"values are {self.values.dtype} {tuple(self.values.shape)}; pass float32 (n, T, C)")
        n, num_samples, num_channels = self.values.shape
        return n, num_samples, num_channels

    def _check_times(self, times: Tensor) -> None:
        if times.dtype != torch.float64 or times.shape != self.values.shape[:2]:
            raise ValueError(
                f"times are {times.dtype} {tuple(times.shape)}; pass float64 {tuple(self.values.shape[:2])}"
            )
        exists = self.exists
        for i, k in (~times.isfinite() & exists).nonzero()[:1].tolist():
            raise ValueError(f"{self.names[i]}: the time of sample {k + 1} is {float(times[i, k])}; expected a number")
        for i, k in (~(times.diff(dim=1) > 0) & exists[:, 1:]).nonzero()[:1].tolist():
            before, after = times[i, k : k + 2].tolist()
            raise ValueError(
                f"{self.names[i]}: the time of sample {k + 2} is {after:g} after {before:g}; sort the samples by time, "
                "one a time"
            )

    def _check_labels(self, labels: Tensor) -> None:
        if labels.dtype != torch.int64 or labels.shape != self.lengths.shape:
            raise ValueError(f"labels are {labels.dtype} {tuple(labels.shape)}; pass int64 ({len(self)},)")
        for i in (~((labels >= 0) & (labels < len(self.classes)))).nonzero()[:1, 0].tolist():
            raise ValueError(f"{self.names[i]}: label {int(labels[i])}, but {len(self.classes)} classes are named")

    def __len__(self) -> int:
        """The number of series."""
        return len(self.values)

    def check_split(self, name: str) -> None:
        """See `Examples.check_split`; besides, each has a label."""
        super().check_split(name)
        if self.labels is None:
            raise ValueError(f"the {name} set has no labels; give each series one")

    @property
    def exists(self) -> Tensor:
        """`(n, T)` bool, True = this sample is one of its series."""
        return torch.arange(self.values.shape[1]) < self.lengths[:, None]

    @property
    def extents(self) -> Tensor:
        """Time between the first and the last sample of each series, float64 `(n,)`."""
        if self.times is None:
            return (self.lengths - 1) * self.spacing
        last = self.times.gather(1, self.lengths[:, None] - 1)
        return last[:, 0] - self.times[:, 0]

    def select(self, indices: Tensor) -> Self:
        """The series at `indices`, int64 `(m,)`, padded to the longest of them."""
        lengths = self.lengths[indices]
        longest = int(lengths.max()) if len(lengths) else 0
        return replace(
            self,
            values=self.values[indices, :longest],
            lengths=lengths,
            times=None if self.times is None else self.times[indices, :longest],
            labels=None if self.labels is None else self.labels[indices],
            names=tuple(self.names[i] for i in indices.tolist()),
        )

    @staticmethod
    def pack(
        values: Sequence[np.ndarray],
        *,
        times: Sequence[np.ndarray] | None = None,
        spacing: float = 1.0,
        labels: Sequence[int] | None = None,
        classes: tuple[str, ...] = (),
        channels: tuple[str, ...],
        names: tuple[str, ...],
    ) -> "SeriesSet":
        """Series of their own lengths as one set.

        Args:
            values: `(samples, C)` a series.
            times: `(samples,)` a series. Where all series have one spacing, to a millionth, they become that spacing.
            spacing, labels, classes, channels, names: see `SeriesSet`.
        """
        lengths = [len(each) for each in values]
        longest = max(lengths, default=0)
        padded = np.full((len(values), longest, len(channels)), np.nan, np.float32)
        stamps = np.zeros((len(values), longest))
        for i, each in enumerate(values):
            padded[i, : len(each)] = each
            if times is not None:
                stamps[i, : len(each)] = times[i]
        common = None if times is None else _common_spacing(times)
        return SeriesSet(
            values=torch.from_numpy(padded),
            lengths=torch.tensor(lengths, dtype=torch.int64),
            times=torch.from_numpy(stamps) if times is not None and common is None else None,
            spacing=spacing if common is None else common,
            labels=None if labels is None else torch.tensor(labels, dtype=torch.int64),
            classes=classes,
            channels=channels,
            names=names,
        )


def _common_spacing(times: Sequence[np.ndarray]) -> float | None:
    """The time between any two neighbours of any series, if it is always the same."""
    steps = [np.diff(each) for each in times]
    joined = np.concatenate(steps) if steps else np.empty(0)
    if not len(joined) or not np.isfinite(joined).all():
        return None
    middle = float(np.median(joined))
    return middle if middle > 0 and bool((np.abs(joined - middle) <= _SAME * middle).all()) else None
