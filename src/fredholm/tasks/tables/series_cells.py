"""Table columns whose cells name files of series: channels and sampling in training, and tensors for a model."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self, final

import torch
import torch.nn.functional as F
from torch import Tensor

from fredholm.models.series.series_model import SeriesSampling
from fredholm.tasks.series import Preparation
from fredholm.tasks.series.open import read_series_alone
from fredholm.tasks.series.series_set import SeriesSet

from .columns import Column


def learn_series(column: Column, files: Sequence[Path]) -> Column:
    """Returns the column with channels, spacing and extent of the training series.

    Args:
        column: a column of series.
        files: files of the training rows, at least one.

    Raises:
        ValueError: the files are refused by `read_series_alone`, or a channel has no values.
    """
    found = read_series_alone(files)
    try:
        observed = Preparation.learn(found).observation
    except ValueError as error:
        raise ValueError(f"column {column.name!r}: {error}") from error
    spacing, extent = found.span()
    return replace(
        column,
        parts=found.channels,
        observed=observed,
        spacing=spacing,
        extent=extent,
        is_regular=found.is_regular,
    )


def sampling_of(column: Column) -> SeriesSampling:
    """Returns the sampling of the series of a column, as a model reads them."""
    return SeriesSampling(
        channels=len(column.parts) + len(column.observed),
        spacing=column.spacing,
        extent=column.extent,
        observation=column.observed,
    )


@final
@dataclass(frozen=True)
class SeriesOfRows:
    """The series of a column of n rows.

    Args:
        series: series of the rows that have one; None: no row has one.
        number: index of the series of each row, int64 `(n,)`; -1: the row has none.
    """

    series: SeriesSet | None
    number: Tensor

    @classmethod
    def read(cls, column: Column, files: Sequence[Path | None]) -> Self:
        """Reads files, None for rows without one; warns of series longer or less complete than in training.

        Raises:
            ValueError: the files are refused by `read_series_alone`.
        """
        existing = [file for file in files if file is not None]
        exists = torch.tensor([file is not None for file in files], dtype=torch.bool)
        number = torch.where(exists, exists.long().cumsum(0) - 1, -1)
        if not existing:
            return cls(None, number)
        series = read_series_alone(existing, channels=column.parts)
        longest = int(series.extents.argmax())
        if float(series.extents[longest]) > column.extent * (1 + 1e-6):
            warnings.warn(
                f"{series.names[longest]}: lasts {float(series.extents[longest]):g}, longer than any series of the "
                f"column {column.name!r} in training ({column.extent:g})",
                stacklevel=2,
            )
        if not column.observed and bool((series.values.isnan() & series.exists[..., None]).any()):
            warnings.warn(
                f"values are missing in series of the column {column.name!r}, but none were in training; they are "
                "interpolated",
                stacklevel=2,
            )
        return cls(series, number)

    def of(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Returns values `(B, N, C)` and times `(B, N)`, float64, of rows by index, int64 `(B,)`; see `TableBatch`."""
        number = self.number[rows]
        if self.series is None or not bool((number >= 0).any()):
            return torch.full((len(rows), 0, 1), torch.nan), torch.full((len(rows), 0), torch.nan, dtype=torch.float64)
        found = self.series.select(number[number >= 0])
        values = found.values.new_full((len(rows), *found.values.shape[1:]), torch.nan)
        times = torch.full(values.shape[:2], torch.nan, dtype=torch.float64)
        values[number >= 0], times[number >= 0] = found.values, found.sample_times
        return values, times


def stacked(columns: Sequence[SeriesOfRows], rows: Tensor, num_channels: int) -> tuple[Tensor, Tensor]:
    """Returns values `(B, S, N, num_channels)` and times `(B, S, N)` of rows by index, for a `TableBatch`."""
    found = [column.of(rows) for column in columns]
    longest = max((times.shape[1] for _, times in found), default=0)
    values = [
        F.pad(each, (0, num_channels - each.shape[2], 0, longest - each.shape[1]), value=torch.nan) for each, _ in found
    ]
    times = [F.pad(each, (0, longest - each.shape[1]), value=torch.nan) for _, each in found]
    if not found:
        return torch.zeros(len(rows), 0, 0, 0), torch.zeros(len(rows), 0, 0, dtype=torch.float64)
    widest = torch.float64 if any(each.dtype == torch.float64 for each in values) else torch.float32
    return torch.stack([each.to(widest) for each in values], 1), torch.stack(times, 1)
