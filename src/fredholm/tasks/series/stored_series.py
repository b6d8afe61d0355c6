"""Series in arrays that are mapped from files."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self, final

import torch
from torch import Tensor

from fredholm.tasks.files.mapped import Rows, shards_of_some
from fredholm.tasks.splits.split_marks import SplitMarks
from fredholm.tasks.targets import Answers

from .series_set import Series, SeriesSet

CHUNK = 1 << 19
"""Values that are read at a time where all are."""


@final
@dataclass(frozen=True, kw_only=True)
class StoredSeries(Series):
    """n regular series of C channels in rows of arrays.

    Args:
        rows: numbers `(m, T)` or `(m, T, C)`; NaN where a value is missing.
        places: int64 `(n,)`, the row of each series.
        lengths, spacing, answers, channels, names, marks: see `SeriesSet`.
    """

    rows: Rows
    places: Tensor
    lengths: Tensor
    spacing: float
    answers: Answers | None
    channels: tuple[str, ...]
    names: tuple[str, ...]
    marks: SplitMarks

    @property
    def is_regular(self) -> bool:
        """True."""
        return True

    @property
    def extents(self) -> Tensor:
        """See `Series.extents`."""
        return (self.lengths - 1).double() * self.spacing

    @property
    def shards(self) -> Tensor | None:
        """See `Series.shards`."""
        return shards_of_some(self.rows.shards, self.places)

    def select(self, indices: Tensor) -> Self:
        """The series at `indices`, int64 `(m,)`, which stay where they are."""
        return replace(
            self,
            places=self.places[indices],
            lengths=self.lengths[indices],
            answers=None if self.answers is None else self.answers.select(indices),
            names=tuple(self.names[i] for i in indices.tolist()),
            marks=self.marks.select(indices),
        )

    def read(self, indices: Tensor) -> SeriesSet:
        """See `Series.read`.

        Raises:
            ValueError: a value is infinite; what `check` refuses.
        """
        some = self.select(indices)
        values = self.rows[some.places.numpy()].reshape(len(indices), self.rows.shape[1], len(self.channels))
        return SeriesSet.pack(
            [own[:length] for own, length in zip(values, some.lengths.tolist(), strict=True)],
            spacing=self.spacing,
            answers=some.answers,
            channels=self.channels,
            names=some.names,
            marks=some.marks,
        )

    def chunks(self) -> Iterator[SeriesSet]:
        """See `Series.chunks`."""
        size = max(1, CHUNK // max(1, self.rows.shape[1] * len(self.channels)))
        return (self.read(indices) for indices in torch.arange(len(self)).split(size))

    def check(self) -> Self:
        """They, once all were read and none was refused; see `SeriesSet`."""
        for _ in self.chunks():
            pass
        return self
