"""Series that are read from disk on demand, and series in memory-mapped arrays."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self, final

import numpy as np
import torch
from torch import Tensor

from fredholm._progress import ProgressBar
from fredholm.tasks.files.mapped import Rows, shards_of_some
from fredholm.tasks.splits.split_marks import SplitMarks
from fredholm.tasks.targets import Answers

from .series_set import Series, SeriesSet

CHUNK = 1 << 19
"""Number of values, padded to the longest series, that are read at a time in a pass over all series."""


@dataclass(frozen=True, kw_only=True)
class StoredSeries(Series):
    """n regular series of C channels, stored in any way.

    Args:
        places: int64 `(n,)`, where each series is stored.
        lengths, spacing, answers, channels, names, marks: see `SeriesSet`.
    """

    places: Tensor
    lengths: Tensor
    spacing: float
    answers: Answers | None
    channels: tuple[str, ...]
    names: tuple[str, ...]
    marks: SplitMarks

    @property
    @final
    def is_regular(self) -> bool:
        """True."""
        return True

    @property
    @final
    def extents(self) -> Tensor:
        """See `Series.extents`."""
        return (self.lengths - 1).double() * self.spacing

    @final
    def select(self, indices: Tensor) -> Self:
        """The series at `indices`, int64 `(m,)`, without reading them."""
        return replace(
            self,
            places=self.places[indices],
            lengths=self.lengths[indices],
            answers=None if self.answers is None else self.answers.select(indices),
            names=tuple(self.names[i] for i in indices.tolist()),
            marks=self.marks.select(indices),
        )

    @final
    def read(self, indices: Tensor) -> SeriesSet:
        """See `Series.read`.

        Raises:
            ValueError: a series cannot be read, or holds an infinite value.
        """
        some = self.select(indices)
        return SeriesSet.pack(
            some._values(),
            spacing=self.spacing,
            answers=some.answers,
            channels=self.channels,
            names=some.names,
            marks=some.marks,
        )

    @abstractmethod
    def _values(self) -> Sequence[np.ndarray]:
        """The samples of each series, `(length, C)`."""

    @property
    @abstractmethod
    def _longest(self) -> int:
        """The largest number of samples of a series."""

    @final
    def chunks(self) -> Iterator[SeriesSet]:
        """See `Series.chunks`."""
        size = max(1, CHUNK // max(1, self._longest * len(self.channels)))
        return (self.read(indices) for indices in torch.arange(len(self)).split(size))

    @final
    def check(self) -> Self:
        """Reads all series once to check them, and returns them; see `SeriesSet`."""
        with ProgressBar(total=len(self), desc="reading series", delay=1.0, leave=False, disable=None) as bar:
            for chunk in self.chunks():
                bar.update(len(chunk))
        return self


@final
@dataclass(frozen=True, kw_only=True)
class MappedSeries(StoredSeries):
    """Series in the rows of memory-mapped arrays.

    Args:
        rows: numbers `(m, T)` or `(m, T, C)`; NaN where a value is missing. `places` are indices of rows.
        columns: indices among C of the channels; None: all.
    """

    rows: Rows
    columns: list[int] | None = None

    @property
    def shards(self) -> Tensor | None:
        """See `Series.shards`."""
        return shards_of_some(self.rows.shards, self.places)

    @property
    def _longest(self) -> int:
        return self.rows.shape[1]

    def _values(self) -> Sequence[np.ndarray]:
        values = self.rows[self.places.numpy()]
        values = values[..., None] if values.ndim == 2 else values
        values = values if self.columns is None else values[..., self.columns]
        return [own[:length] for own, length in zip(values, self.lengths.tolist(), strict=True)]
