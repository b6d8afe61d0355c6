"""Checks that a file holds the values of channels that are known ahead."""

import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fredholm.tasks.files.terminal_text import counted

from .clock import Clock
from .long_series import LongSeries


def check_ahead(
    series: LongSeries,
    end: int,
    predicted: Sequence[str],
    known: Mapping[str, int],
    *,
    horizon: int,
    clock: Clock,
    where: str,
) -> None:
    """Raises ValueError if fewer samples follow than are predicted or known values are missing; warns if more follow.

    Args:
        series: the series to continue.
        end: the number of samples before the predicted ones.
        predicted: the names of the predicted channels.
        known: the columns of the channels that are known ahead, by name.
        horizon: the number of predicted samples.
        clock: the clock of the series.
        where: the name of the file, for messages.
    """
    targets, names, came = ", ".join(predicted), ", ".join(known), len(series) - end
    has = f"{where}: {series.name} has {counted(came, 'sample')} after the last one with {targets}"
    if came < horizon:
        first, last = (_time(series, t, clock) for t in (end, end + horizon - 1))
        raise ValueError(
            f"{has}; the model predicts {horizon}, and must know {names} there: give rows from {first} to {last}, with "
            f"{names} filled and {targets} empty"
        )
    if came > horizon:
        warnings.warn(f"{has}; the first {horizon} are predicted", stacklevel=3)
    check_known(series, torch.arange(end + horizon) >= end, known, clock, where)


def check_known(series: LongSeries, needed: Tensor, known: Mapping[str, int], clock: Clock, where: str) -> None:
    """Raises ValueError if a channel that is known ahead lacks a needed value.

    Args:
        series: the series to check.
        needed: bool `(n,)`, whether each of the first n samples needs all values.
        known: the columns of these channels, by name.
        clock: the clock of the series.
        where: the name of the file, for messages.
    """
    for name, column in known.items():
        for t in (series.values[: len(needed), column].isnan() & needed).nonzero()[:1, 0].tolist():
            raise ValueError(
                f"{where}: {series.name} has no {name} at {_time(series, t, clock)}; {name} is known ahead, and must "
                "have a value wherever something is predicted: fill it"
            )


def _time(series: LongSeries, t: int, clock: Clock) -> str | float:
    return clock.text(clock.after(series.start, t, series.day))
