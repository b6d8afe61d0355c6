"""Long series on one clock."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from fredholm.tasks.files.read_errors import reads_data
from fredholm.tasks.series import SeriesSet, average_in_bins, bin_of, read_series
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
    bin: float | None = None,
) -> tuple[list[LongSeries], Clock, tuple[str, ...]]:
    """Reads the series of a file (`read_series`) on one clock; skipped samples become missing.

    Args:
        path: the file.
        clock: the clock of the run; None: the file's.
        channels: the channels of the run; None: the file's.
        part: see `read_series`.
        bin: duration over which samples are averaged, see `average_in_bins`; a sample's time is the beginning of its
            bin, a multiple of the duration. None: samples are taken as they are.

    Returns:
        The series, their clock and channels.

    Raises:
        ValueError: `read_series` refuses the file, its times are not evenly spaced or not on the clock, or more samples
            are missing than exist.
    """
    found = read_series(path, channels=channels, part=part)
    if bin is not None:
        found = _averaged(found, bin)
    samples = _samples(found, keeps_empty=bin is None)
    try:
        if clock is None:
            clock = Clock.of([each.times for each in samples], is_dated=found.is_dated, has_zone=found.has_zone)
        elif clock.is_dated != found.is_dated or clock.has_zone not in (None, found.has_zone):
            raise ValueError(f"times are {_kind(found)}; those of the run are {_kind(clock)}")
        instead = "a longer bin" if bin else "bin, a duration over which samples are averaged"
        every = [_on_clock(name, clock, each, instead) for name, each in zip(found.names, samples, strict=True)]
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return every, clock, found.channels


class _Samples(NamedTuple):
    """Times `(T,)` of the samples of a series, and their values `(T, C)`."""

    times: np.ndarray
    values: Tensor


def _averaged(found: SeriesSet, bin: float) -> SeriesSet:
    times = torch.where(found.exists, _times(found), 0.0)
    binned = average_in_bins(replace(found, values=found.values.double(), times=times), bin)
    return replace(binned, marks=replace(binned.marks, times=bin_of(times[:, 0], bin).double() * bin))


def _samples(found: SeriesSet, *, keeps_empty: bool) -> list[_Samples]:
    """The samples of each series; unless they are kept, those without a value are left out, if some have one."""
    every = list[_Samples]()
    for times, values, count in zip(_times(found), found.values, found.lengths.tolist(), strict=True):
        own = values[:count].double()
        some = ~own.isnan().all(1)
        if keeps_empty or not bool(some.any()):
            some = torch.ones_like(some)
        every.append(_Samples(times[:count][some].numpy(), own[some]))
    return every


def _times(found: SeriesSet) -> Tensor:
    """Time of each sample, `(n, T)`; regular series begin at their marked times, or else at 0."""
    if found.times is not None:
        return found.times
    steps = found.spacing * torch.arange(found.values.shape[1], dtype=torch.float64)
    return steps.expand(len(found), -1) if found.marks.times is None else found.marks.times[:, None] + steps


def _on_clock(whole_name: str, clock: Clock, samples: _Samples, instead: str) -> LongSeries:
    name = whole_name.split(", series ")[-1]
    places = clock.places(samples.times)
    count = int(places[-1]) + 1
    if count > 2 * len(places):
        of = "" if name == whole_name else f"series {name!r} "
        raise ValueError(
            f"{of}has {len(places)} samples of {count}, at steps of {clock.step_in_words}; at most half may be "
            f"missing: sample all series evenly, at one step, or set {instead}"
        )
    values = torch.full((count, samples.values.shape[1]), torch.nan, dtype=torch.float64)
    values[torch.from_numpy(places)] = samples.values
    return LongSeries(name=name, values=values, start=float(samples.times[0]), day=clock.day(samples.times))


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
