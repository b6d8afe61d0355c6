"""Whether a file holds what must be known ahead."""

import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

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
    """Raises ValueError where less follows than is predicted, or where something is not known there; warns of more.

    Args:
        series: to be continued.
        end: samples before those that are predicted.
        predicted: the channels that are predicted.
        known: the places of those that are known ahead, by their names.
        horizon: samples that are predicted.
        clock: of the series.
        where: where it is, for messages.
    """
    targets, names, came = ", ".join(predicted), ", ".join(known), len(series) - end
    if came < horizon:
        first, last = (_time(series, t, clock) for t in (end, end + horizon - 1))
        raise ValueError(
            f"{where}: {series.name} has {came} samples after the last one with {targets}; the model predicts "
            f"{horizon}, and must know {names} there: give rows from {first} to {last}, with {names} filled and "
            f"{targets} empty"
        )
    if came > horizon:
        warnings.warn(
            f"{where}: {series.name} has {came} samples after the last one with {targets}; only {horizon} are "
            "predicted",
            stacklevel=3,
        )
    check_known(series, torch.arange(end + horizon) >= end, known, clock, where)


def check_known(series: LongSeries, needed: Tensor, known: Mapping[str, int], clock: Clock, where: str) -> None:
    """Raises ValueError where a channel that is known ahead misses a value that is needed.

    Args:
        series: whose values they are.
        needed: bool `(n,)`, of the first samples those at which all must be known.
        known: the places of these channels, by their names.
        clock: of the series.
        where: where it is, for messages.
    """
    for name, column in known.items():
        for t in (series.values[: len(needed), column].isnan() & needed).nonzero()[:1, 0].tolist():
            raise ValueError(
                f"{where}: {series.name} has no {name} at {_time(series, t, clock)}; {name} is known ahead, and must "
                "have a value wherever something is predicted: fill it"
            )


def _time(series: LongSeries, t: int, clock: Clock) -> str | float:
    return clock.text(clock.after(series.start, t, series.day))
