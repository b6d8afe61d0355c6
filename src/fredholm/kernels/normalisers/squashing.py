"""Algebraic squashing of non-negative scores, each by itself.

Legend
    s ≥ 0   score      n   power

    soft-sigmoid σ_n(s) = s^n / (1 + s^n) in [0, 1),   soft-tanh τ_n(s) = 2 σ_n(s) - 1 in [-1, 1)

Source: Yat (No More DeLuLu), eq. 4 and 5. Deviation: where n < 1 the derivative at s = 0, infinite, is taken as 0.
"""

import dataclasses
from typing import ClassVar, final

import torch
from torch import Tensor

from fredholm.kernels.normalisers.normaliser import Elementwise, check_power
from fredholm.kernels.normalisers.softermax import positive_power


@dataclasses.dataclass(frozen=True)
class Squashing(Elementwise):
    """Marker: a = `gain` σ_n(s) + a constant.

    Args:
        power: n > 0; larger is steeper.

    Raises:
        ValueError: on a power that is not positive and finite.
    """

    gain: ClassVar[float]
    power: float = 1.0

    def __post_init__(self) -> None:
        check_power(type(self).__name__, self.power)

    @final
    def slope(self, score: Tensor, reference: Tensor | None, numerator: Tensor) -> Tensor:
        """See `Normaliser.slope`: n s^(n-1) / (1 + s^n)^2 = n σ (1 - σ) / s, times the gain."""
        share = soft_sigmoid(score, self.power)
        if self.power == 1:
            return (1 - share).square_().mul_(self.gain)
        least = score == 0
        rest = 1 / (1 + torch.where(least, 1.0, score).pow(self.power))
        return torch.where(least, 0.0, self.gain * self.power * share * rest / torch.where(least, 1.0, score))


@final
@dataclasses.dataclass(frozen=True)
class SoftSigmoid(Squashing):
    """a = s^n / (1 + s^n); see `Squashing`."""

    gain = 1.0

    def numerator(self, score: Tensor, reference: Tensor | None = None) -> Tensor:
        """See `Normaliser.numerator`."""
        return soft_sigmoid(score, self.power)


@final
@dataclasses.dataclass(frozen=True)
class SoftTanh(Squashing):
    """a = (s^n - 1) / (s^n + 1): pairs without likeness count -1; see `Squashing`."""

    gain = 2.0

    def numerator(self, score: Tensor, reference: Tensor | None = None) -> Tensor:
        """See `Normaliser.numerator`."""
        return soft_tanh(score, self.power)


@final
@dataclasses.dataclass(frozen=True)
class Unnormalised(Elementwise):
    """a = s."""

    def numerator(self, score: Tensor, reference: Tensor | None = None) -> Tensor:
        """See `Normaliser.numerator`."""
        return score

    def slope(self, score: Tensor, reference: Tensor | None, numerator: Tensor) -> Tensor:
        """See `Normaliser.slope`."""
        return score.new_ones(()).expand_as(score)


def soft_sigmoid(scores: Tensor, power: float = 1.0) -> Tensor:
    """s^n / (1 + s^n) of scores >= 0 (Yat, eq. 4), any shape."""
    check_power("soft_sigmoid", power)
    # of the two powers the one that cannot overflow
    above = scores > 1
    inverse = positive_power(torch.where(above, 1 / torch.where(above, scores, 1.0), 0.0), power)
    direct = positive_power(torch.where(above, 0.0, scores), power)
    return torch.where(above, 1 / (1 + inverse), direct / (1 + direct))


def soft_tanh(scores: Tensor, power: float = 1.0) -> Tensor:
    """(s^n - 1) / (s^n + 1) of scores >= 0 (Yat, eq. 5), any shape."""
    return 2 * soft_sigmoid(scores, power) - 1
