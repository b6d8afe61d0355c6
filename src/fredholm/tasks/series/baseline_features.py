"""Features of series and of samples for the baselines of a report."""

from collections.abc import Iterator, Sequence

import numpy as np

from .series_set import SeriesSet

PLAIN_SAMPLES = 64
"""Samples of a series that baselines read."""
WIDTHS = (1, 5, 17, 65)
"""Samples of the windows whose means and deviations are features of the sample in their middle."""


def series_features(series: SeriesSet, mean: Sequence[float]) -> np.ndarray:
    """Values of each channel, interpolated at PLAIN_SAMPLES places from first to last sample of each series.

    Args:
        series: the series.
        mean: the value of each channel where a series has none.
    """
    rows = np.empty((len(series), PLAIN_SAMPLES, len(series.channels)), dtype=series.values.numpy().dtype)
    for i, (values, length) in enumerate(zip(series.values.numpy(), series.lengths.tolist(), strict=True)):
        places = np.linspace(0, length - 1, PLAIN_SAMPLES)
        for c in range(len(series.channels)):
            known = np.flatnonzero(~np.isnan(values[:length, c]))
            rows[i, :, c] = np.interp(places, known, values[known, c]) if len(known) else mean[c]
    return rows.reshape(len(series), -1)


def sample_features(series: SeriesSet, number: int, samples: np.ndarray) -> np.ndarray:
    """Means and deviations of each channel in windows around some samples of a series, for baselines.

    A missing value counts as the mean of its channel in this series, or 0.
    """
    values = series.values[number, : int(series.lengths[number])].double().numpy()
    known = ~np.isnan(values)
    means = np.where(known, values, 0).sum(0) / known.sum(0).clip(1)
    filled = np.where(known, values, means)
    return np.concatenate(list(_windowed(filled - means, samples)), axis=1) + np.tile(
        np.concatenate([means, np.zeros_like(means)]), len(WIDTHS)
    )


def _windowed(values: np.ndarray, samples: np.ndarray) -> Iterator[np.ndarray]:
    """Means and deviations in a window of each width around samples, cut at the ends of the series."""
    nothing = np.zeros((1, values.shape[1]))
    sums, squares = (np.concatenate([nothing, np.cumsum(each, 0)]) for each in (values, values**2))
    for width in WIDTHS:
        first = (samples - width // 2).clip(0)
        end = (samples + width // 2 + 1).clip(max=len(values))
        count = (end - first)[:, None]
        mean = (sums[end] - sums[first]) / count
        spread = ((squares[end] - squares[first]) / count - mean**2).clip(0)
        yield np.concatenate([mean, np.sqrt(spread)], axis=1)
