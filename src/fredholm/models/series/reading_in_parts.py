"""Reading of long series in parts, by networks with an output at each sample."""

from collections.abc import Callable
from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm.encoders.series import SeriesBatch

CONTEXT = 4
"""A part has a quarter of its samples as context on each side, where the series goes on."""
AT_ONCE = 64
"""Parts that are read at a time."""


@final
class Part(NamedTuple):
    """A part of a series, from sample `start` on, and its samples whose output is used: `first` to before `until`."""

    series: int
    start: int
    length: int
    first: int
    until: int


def parts_of(series: int, length: int, window: int) -> list[Part]:
    """Parts of at most `window` samples that together hold all samples of a series; each is used in one, in order."""
    window = min(window, length)
    context = 0 if window == length else window // CONTEXT
    found, done, start = list[Part](), 0, 0
    while done < length:
        start = min(start, length - window)
        end = start + window
        until = length if end == length else end - context
        found.append(Part(series, start, window, done - start, until - start))
        done, start = until, until - context
    return found


def read_in_parts(model: Callable[[SeriesBatch], Tensor], given: SeriesBatch, window: int | None) -> Tensor:
    """Outputs of a model at all samples `(B, N, outputs)`, each from a part where it has context; 0 beyond the ends.

    Args:
        model: maps series to outputs at their samples.
        given: the series.
        window: most samples that the model reads at a time; None: series are read whole.
    """
    batch, count = given.values.shape[:2]
    if window is None or count <= window:
        return model(given)
    lengths = [count] * batch if given.mask is None else given.mask.sum(1).tolist()
    parts = [part for i, length in enumerate(lengths) for part in parts_of(i, length, window)]
    found, steps = None, torch.arange(window, device=given.values.device)
    for begin in range(0, len(parts), AT_ONCE):
        which, start, length, first, until = torch.tensor(parts[begin : begin + AT_ONCE], device=steps.device).T
        rows, at = which[:, None], (start[:, None] + steps).clamp_max(count - 1)
        part = SeriesBatch(
            given.values[rows, at],
            steps < length[:, None],
            None if given.times is None else given.times[rows, at],
            None if given.spacing is None else given.spacing[which],
        )
        outputs = model(part)
        found = outputs.new_zeros(batch, count, outputs.shape[2]) if found is None else found
        used = (steps >= first[:, None]) & (steps < until[:, None])
        found = found.index_put((rows.expand_as(at)[used], at[used]), outputs[used])
    return model(given) if found is None else found
