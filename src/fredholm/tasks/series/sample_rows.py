"""Parts of series that a network is trained on where samples are classified."""

from typing import final

import torch
from torch import Tensor

from .series_set import SeriesSet


@final
class SampleRows:
    """Divides training series into parts that a network reads at a time.

    Args:
        window: most samples of a part; None: series are read whole.
    """

    def __init__(self, window: int | None) -> None:
        self._window = window

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
            # evenly among the parts that hold it, or most parts would lie at an end of a series of few windows
            first, last = max(0, middle - window + 1), min(middle, length - window)
            starts.append(int(torch.randint(first, last + 1, (), generator=generator)))
            lengths.append(window)
        return series.parts(places[:, 0], torch.tensor(starts), torch.tensor(lengths))
