"""Algebraic squashing of non-negative scores, each by itself.

Legend
    s ≥ 0   score      n   power

    soft-sigmoid σ_n(s) = s^n / (1 + s^n) in [0, 1),   soft-tanh τ_n(s) = 2 σ_n(s) - 1 in [-1, 1)

Source: Yat (No More DeLuLu), eq. 4 and 5. Deviation: where n < 1 the derivative at s = 0, infinite, is taken as 0.
"""

import dataclasses
from typing import final

import torch
from torch import Tensor

from fredholm.kernels.normalisers.normaliser import Elementwise, check_power
from fredholm.kernels.normalisers.softermax import positive_power


@final
@dataclasses.dataclass(frozen=True)
class SoftSigmoid(Elementwise):
    """a = s^n / (1 + s^n).

    Args:
        power: n > 0; larger is steeper.

    Raises:
        ValueError: on a power that is not positive and finite.
    """

    power: float = 1.0

    def __post_init__(self) -> None:
        check_power("SoftSigmoid", self.power)

    def numerator(self, score: Tensor, reference: Tensor) -> Tensor:
        """See `Normaliser.numerator`."""
        return soft_sigmoid(score, self.power)

    def slope(self, score: Tensor, reference: Tensor, numerator: Tensor) -> Tensor:
        """See `Normaliser.slope`."""
        return _slope(score, self.power)


@final
@dataclasses.dataclass(frozen=True)
class SoftTanh(Elementwise):
    """a = (s^n - 1) / (s^n + 1): pairs without likeness count -1.

    Args:
        power: n > 0; larger is steeper.

    Raises:
        ValueError: on a power that is not positive and finite.
    """

    power: float = 1.0

    def __post_init__(self) -> None:
        check_power("SoftTanh", self.power)

    def numerator(self, score: Tensor, reference: Tensor) -> Tensor:
        """See `Normaliser.numerator`."""
        return soft_tanh(score, self.power)

    def slope(self, score: Tensor, reference: Tensor, numerator: Tensor) -> Tensor:
        """See `Normaliser.slope`."""
        return 2 * _slope(score, self.power)


@final
@dataclasses.dataclass(frozen=True)
class Unnormalised(Elementwise):
    """a = s."""

    def numerator(self, score: Tensor, reference: Tensor) -> Tensor:
        """See `Normaliser.numerator`."""
        return score

    def slope(self, score: Tensor, reference: Tensor, numerator: Tensor) -> Tensor:
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


def _slope(score: Tensor, power: float) -> Tensor:
    """n s^(n-1) / (1 + s^n)^2 = n a (1 - a) / s."""
    share = soft_sigmoid(score, power)
    if power == 1:
        return (1 - share).square_()
    positive = score > 0
    rest = 1 / (1 + torch.where(positive, score, 1.0).pow(power))
    return torch.where(positive, power * share * rest / torch.where(positive, score, 1.0), 0.0)
