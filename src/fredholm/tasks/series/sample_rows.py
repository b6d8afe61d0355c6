"""Rows of a batch where samples are classified: parts of series that a model reads at a time, with their context."""

from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm.tasks.targets import UNKNOWN

from .series_set import SeriesSet

CONTEXT = 4
"""A part has a quarter of its samples as context on each side, where the series goes on."""


@final
class SampleParts(NamedTuple):
    """Parts of series, one after the other.

    Args:
        series: the parts as series of their own.
        which: int64 `(m,)`, the series that each is a part of, in ascending order.
        counted: bool `(m, T)`, the samples whose output is used: each sample of a series is counted in one part, and
            in order.
    """

    series: SeriesSet
    which: Tensor
    counted: Tensor


@final
class SampleRows:
    """Divides series into parts that a model reads at a time.

    Args:
        window: most samples of a part; None: series are read whole.
    """

    def __init__(self, window: int | None) -> None:
        self._window = window

    def whole(self, series: SeriesSet) -> SampleParts:
        """Parts that together hold all samples of all series; each sample is counted where it has context."""
        which, starts, ends, first, last = list[int](), list[int](), list[int](), list[int](), list[int]()
        for i, length in enumerate(series.lengths.tolist()):
            window = length if self._window is None else min(self._window, length)
            context = 0 if window == length else window // CONTEXT
            done = start = 0
            while done < length:
                start = min(start, length - window)
                end = start + window
                until = length if end == length else end - context
                for values, value in zip(
                    (which, starts, ends, first, last), (i, start, end, done - start, until - start), strict=True
                ):
                    values.append(value)
                done, start = until, until - context
        begins, stops, low, high = (torch.tensor(each) for each in (starts, ends, first, last))
        found = series.parts(torch.tensor(which), begins, stops - begins)
        steps = torch.arange(found.values.shape[1])
        return SampleParts(found, torch.tensor(which), (steps >= low[:, None]) & (steps < high[:, None]))

    def places(self, series: SeriesSet) -> Tensor:
        """Sections of series with some known class, of at most a window each: series, start and end, int64 `(m, 3)`.

        A training example is drawn around each of them.
        """
        assert series.sample_labels is not None
        found = list[tuple[int, int, int]]()
        for i, (length, known) in enumerate(zip(series.lengths.tolist(), series.sample_labels.is_known, strict=True)):
            window = length if self._window is None else min(self._window, length)
            for start in range(0, length, window):
                end = min(start + window, length)
                if bool(known[start:end].any()):
                    found.append((i, start, end))
        return torch.tensor(found, dtype=torch.int64).reshape(-1, 3)

    def drawn(self, series: SeriesSet, places: Tensor, generator: torch.Generator) -> SeriesSet:
        """A part around a known sample of each section `(m, 3)`, both drawn; where series are read whole, all of it."""
        assert series.sample_labels is not None
        starts, lengths = list[int](), list[int]()
        for i, begin, end in places.tolist():
            length = int(series.lengths[i])
            window = length if self._window is None else min(self._window, length)
            known = series.sample_labels.is_known[i, begin:end].nonzero()[:, 0]
            middle = begin + int(known[int(torch.randint(len(known), (), generator=generator))])
            before = int(torch.randint(window, (), generator=generator))
            starts.append(min(max(0, middle - before), length - window))
            lengths.append(window)
        return series.parts(places[:, 0], torch.tensor(starts), torch.tensor(lengths))


def targets_of(parts: SampleParts) -> Tensor:
    """The class of each sample of parts `(m, T)`, `UNKNOWN` where it is not known or counted in another part."""
    assert parts.series.sample_labels is not None
    return torch.where(parts.counted, parts.series.sample_labels.values, UNKNOWN)
