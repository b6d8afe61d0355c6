"""Shrinkage of the contribution of a regression towards the base forecast.

With few stretches a regression, and even a mean, may predict worse than the base forecast alone.
"""

from typing import final

import torch
from torch import Tensor

from fredholm.models.fitted.ridge_head import Readout, Regressand
from fredholm.tasks.targets import NumberTarget

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

    def readout(self, scores: Tensor, targets: Tensor) -> Readout:
        target, gain = self._target, self._gain
        zero = -scores.new_tensor(target.mean) / scores.new_tensor(target.deviation)
        if gain is None:
            gain = best_gain(added(target, scores), added(target, targets.double()))
        own = target.readout(torch.lerp(zero.expand_as(scores), scores, gain), targets)
        return Readout(own.column, gain * own.gain, own.gain * ((1 - gain) * zero)[own.column] + own.shift)


def added(target: NumberTarget, z: Tensor) -> Tensor:
    """The contribution to the base forecast, in the scale of windows, of standardised numbers `(n, H F)`."""
    return z * z.new_tensor(target.deviation) + z.new_tensor(target.mean)


def best_gain(predicted: Tensor, wanted: Tensor) -> float:
    """The factor of GAINS with the smallest squared error between predicted and true contributions `(n, H F)`."""
    return min(GAINS, key=lambda gain: float((wanted - gain * predicted).square().mean()))
