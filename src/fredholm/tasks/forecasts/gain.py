"""How much is taken of what a regression adds to what answers are counted from.

Of a few stretches a regression, and a mean too, may predict worse than nothing.
"""

from typing import final

import torch
from torch import Tensor

from fredholm.models.fitted.ridge_head import Readout, Regressand
from fredholm.tasks.targets import NumberTarget

GAINS = (1.0, 0.5, 0.0)
"""By which what is added is multiplied, as it suits."""


@final
class Shrunk(Regressand):
    """A target whose scores are drawn to what answers are counted from.

    Args:
        target: what is fitted.
        gain: by which scores are multiplied, counted from there; None: the one of GAINS with the smallest errors.
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
    """What is added to what answers are counted from, in the scale of windows, by standardised numbers `(n, H F)`."""
    return z * z.new_tensor(target.deviation) + z.new_tensor(target.mean)


def best_gain(predicted: Tensor, wanted: Tensor) -> float:
    """That of GAINS with which what is predicted to be added is nearest to what was added, both `(n, H F)`."""
    return min(GAINS, key=lambda gain: float((wanted - gain * predicted).square().mean()))
