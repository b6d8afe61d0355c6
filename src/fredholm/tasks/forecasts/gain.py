"""Shrinkage of the contribution of a regression towards the base forecast.

With few stretches a regression, and even a mean, may predict worse than the base forecast alone.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm.models.fitted.example_weights import mean_of_all
from fredholm.models.fitted.ridge_head import Readout, Regressand
from fredholm.tasks.targets import NumberTarget

from .windows import BLOCKS, WindowSet

GAINS = (1.0, 0.5, 0.0)
"""Candidate factors of the contribution."""


@final
class ShrunkTarget(Regressand):
    """A target whose scores are shrunk towards the base forecast.

    Args:
        target: the target to fit.
        gain: the factor of the contribution; None: the one of GAINS with the smallest errors.
    """

    def __init__(self, target: NumberTarget, gain: float | None) -> None:
        self._target, self._gain = target, gain

    def columns(self, targets: Tensor) -> Tensor:
        return self._target.columns(targets)

    def readout(self, scores: Tensor, targets: Tensor, weights: Tensor | None = None) -> Readout:
        target, gain = self._target, self._gain
        zero = -scores.new_tensor(target.mean) / scores.new_tensor(target.deviation)
        if gain is None:
            gain = best_gain(added(target, scores), added(target, targets.double()), weights)
        own = target.readout(torch.lerp(zero.expand_as(scores), scores, gain), targets, weights)
        return Readout(own.column, gain * own.gain, own.gain * ((1 - gain) * zero)[own.column] + own.shift)


def added(target: NumberTarget, z: Tensor) -> Tensor:
    """The contribution to the base forecast, in the scale of windows, of standardised numbers `(n, H F)`."""
    return z * z.new_tensor(target.deviation) + z.new_tensor(target.mean)


def best_gain(predicted: Tensor, wanted: Tensor, weights: Tensor | None = None) -> float:
    """The factor of GAINS with the smallest squared error between predicted and true contributions `(n, H F)`."""
    return min(GAINS, key=lambda gain: float(mean_of_all((wanted - gain * predicted).square(), weights)))


class Contributions(NamedTuple):
    """Contributions to the base forecast of n windows, `(n, H F)`."""

    predicted: Tensor
    true: Tensor


@torch.no_grad()
def gain_ahead(
    train: WindowSet, ends: Sequence[int], predict: Callable[[Tensor, Tensor], Contributions]
) -> float | None:
    """The gain of GAINS that is best in forward validation; None: there are too few windows.

    Each stretch of the second half is predicted by a fit to all windows before it. Cross-validation would also see
    samples after a stretch, which no forecast knows.

    Args:
        train: the training windows.
        ends: the numbers of training samples of each series.
        predict: the contributions to the windows at the second indices by a fit to those at the first.
    """
    stretch, size = train.stretches(ends), torch.tensor(ends)[train.places[:, 0]]
    found = list[Contributions]()
    for number in range(BLOCKS // 2, BLOCKS):
        own = (stretch == number).nonzero()[:, 0]
        before = ((train.places[:, 1] + train.horizon) * BLOCKS <= number * size).nonzero()[:, 0]
        if len(own) and len(before):
            found.append(predict(before, own))
    return best_gain(*(torch.cat(part) for part in zip(*found, strict=True))) if found else None
