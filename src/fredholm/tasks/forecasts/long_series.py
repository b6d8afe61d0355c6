"""Long series on one clock."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import numpy as np
import torch
from torch import Tensor

from fredholm.tasks.files.read_errors import reads_data
from fredholm.tasks.series import SeriesSet, read_series
from fredholm.tasks.splits.split_files import Split

from .clock import Clock


@final
@dataclass(frozen=True, kw_only=True)
class LongSeries:
    """One series on a clock.

    Args:
        name: name of the series, for messages and answers.
        values: float64 `(T, C)`, NaN where missing.
        start: the time of the first sample.
        day: day of the month, on a clock of months (`Clock.day`).
    """

    name: str
    values: Tensor
    start: float
    day: int = 0

    def __len__(self) -> int:
        """T."""
        return len(self.values)

    def until(self, end: int) -> "LongSeries":
        """The samples before `end`."""
        return replace(self, values=self.values[:end])

    def last_observed(self, columns: Sequence[int]) -> int:
        """The number of samples up to the last one with a value in one of these channels."""
        observed = (~self.values[:, list(columns)].isnan()).any(1).nonzero()[:, 0]
        return int(observed[-1]) + 1 if len(observed) else 0


@reads_data
def open_long(
    path: Path,
    *,
    clock: Clock | None = None,
    channels: tuple[str, ...] | None = None,
    part: Split | None = None,
) -> tuple[list[LongSeries], Clock, tuple[str, ...]]:
    """Reads the series of a file (`read_series`) on one clock; skipped samples become missing.

    Args:
        path: the file.
        clock: the clock of the run; None: the file's.
        channels: the channels of the run; None: the file's.
        part: see `read_series`.

    Returns:
        The series, their clock and channels.

    Raises:
        ValueError: `read_series` refuses the file, its times are not evenly spaced or not on the clock, or more samples
            are missing than exist.
    """
    found = read_series(path, channels=channels, part=part)
    times = [_times(found, i) for i in range(len(found))]
    try:
        if clock is None:
            clock = Clock.of(times, is_dated=found.is_dated, has_zone=found.has_zone)
        elif clock.is_dated != found.is_dated or clock.has_zone not in (None, found.has_zone):
            raise ValueError(f"times are {_kind(found)}; those of the run are {_kind(clock)}")
        every = [_on_clock(found, i, clock, stamps) for i, stamps in enumerate(times)]
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return every, clock, found.channels


def _on_clock(found: SeriesSet, i: int, clock: Clock, times: np.ndarray) -> LongSeries:
    name = found.names[i].split(", series ")[-1]
    places = clock.places(times)
    count = int(places[-1]) + 1
    if count > 2 * len(times):
        of = "" if name == found.names[i] else f"series {name!r} "
        raise ValueError(
            f"{of}has {len(times)} samples of {count}, at steps of {clock.step_in_words}; at most half may be missing: "
            "sample all series evenly, at one step"
        )
    values = torch.full((count, len(found.channels)), torch.nan, dtype=torch.float64)
    values[torch.from_numpy(places)] = found.values[i, : len(times)].double()
    return LongSeries(name=name, values=values, start=float(times[0]), day=clock.day(times))


def _times(found: SeriesSet, i: int) -> np.ndarray:
    count = int(found.lengths[i])
    if found.times is not None:
        return found.times[i, :count].numpy()
    start = 0.0 if found.marks.times is None else float(found.marks.times[i])
    return start + found.spacing * np.arange(count)


def _kind(of: SeriesSet | Clock) -> str:
    return f"dates {'with' if of.has_zone else 'without'} a zone" if of.is_dated else "numbers"


def observed_before(series: Sequence[LongSeries]) -> list[Tensor]:
    """Values without gaps: each missing one is the last observed before it, else the first after it, else 0."""
    found = []
    for each in series:
        observed, order = ~each.values.isnan(), torch.arange(len(each))[:, None]
        last = torch.where(observed, order, -1).cummax(0).values
        first = torch.where(observed, order, len(each)).amin(0).clamp_max(len(each) - 1)
        found.append(each.values.gather(0, torch.where(last < 0, first, last)).nan_to_num(0.0))
    return found
