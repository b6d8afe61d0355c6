"""Small sets of series."""

import numpy as np
import torch

from fredholm.tasks.series import SeriesSet
from fredholm.tasks.targets import ClassAnswers

NAN = float("nan")


def regular(*series: list[list[float]], labels: list[int] | None = None, spacing: float = 1.0) -> SeriesSet:
    """Series from rows of values, one row per sample, at a common spacing; with classes a and b."""
    return SeriesSet.pack(
        [np.array(rows, np.float64) for rows in series],
        spacing=spacing,
        answers=None if labels is None else ClassAnswers(names=("a", "b"), values=torch.tensor(labels)),
        channels=tuple(f"c{c}" for c in range(len(series[0][0]))),
        names=tuple(f"s{i}" for i in range(len(series))),
    )


def timed(*series: list[tuple[float, float]]) -> SeriesSet:
    """Series from pairs of time and value."""
    return SeriesSet.pack(
        [np.array([[value] for _, value in rows]) for rows in series],
        times=[np.array([time for time, _ in rows], np.float64) for rows in series],
        channels=("c0",),
        names=tuple(f"s{i}" for i in range(len(series))),
    )
