"""The normalisers of the Yat paper: powers of scores, divided by their sum or elementwise.

Legend: as in `scored.py`

    softermax      n(s) = s^n, e > 0
    soft-sigmoid   σ_n(s) = s^n / (1 + s^n)               soft-tanh      τ_n(s) = 2 σ_n(s) - 1

Source: Yat (No More DeLuLu), eq. 3 to 5 and appendix B. Deviations: masses enter the sum; scores are divided by the
row's largest before powers are taken, so that none overflows; where n < 1 the infinite derivative at s = 0 is set to 0.
"""

import dataclasses
from typing import ClassVar, final

import torch
from torch import Tensor

from fredholm._precision import at_least_float32
from fredholm._settings import check_positive
from fredholm.kernels.attention.scored import Competitive, Elementwise


def check_power(name: str, power: float) -> None:
    """Raises ValueError, in the name of a normaliser, unless a power is positive and finite."""
    check_positive(f"kernels.{name}", "power", power)


@final
@dataclasses.dataclass(frozen=True)
class Softermax(Competitive):
    """a = s^n / (e + Σ s^n). A row of zeros gives zeros, with gradient 0 for n > 1.

    Args:
        power: n > 0; larger is sharper.
        epsilon: e > 0. Scores well below e^(1/n) give densities near 0 instead of shares.

    Raises:
        ValueError: on a power or epsilon that is not positive and finite.
    """

    neutral = 1.0
    power: float = 1.0
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        check_power("Softermax", self.power)
        check_positive("kernels.Softermax", "epsilon", self.epsilon)

    def numerator(self, score: Tensor, reference: Tensor | None = None) -> Tensor:
        """See `Normaliser.numerator`."""
        return positive_power(score if reference is None else score.div_(reference), self.power)

    def slope(self, score: Tensor, reference: Tensor | None, numerator: Tensor) -> Tensor:
        """See `Normaliser.slope`."""
        if self.power == 1:
            return (score.new_ones(()) if reference is None else reference.reciprocal()).expand_as(score)
        return torch.where(score == 0, 0.0, numerator / score.clamp_min(SMALLEST)).mul_(self.power)

    def floor(self, reference: Tensor | None = None) -> Tensor | float:
        """e / reference^n; see `Competitive.floor`."""
        return self.epsilon if reference is None else self.epsilon / reference.pow(self.power)


SMALLEST = 1e-38
"""About the smallest normal float32: keeps a quotient of zeros from being NaN."""


def positive_power(x: Tensor, power: float) -> Tensor:
    """x^power for x >= 0, with derivative 0, not infinity, where x = 0 and power < 1."""
    if power == 1:
        return x
    if power >= 1 or not x.requires_grad:
        return x.pow(power)
    return torch.where(x == 0, 0.0, torch.where(x == 0, 1.0, x).pow(power))


def softermax(scores: Tensor, power: float = 1.0, epsilon: float = 1e-6, dim: int = -1) -> Tensor:
    """s^n / (e + Σ s^n) along `dim` (Yat, eq. 3), of scores >= 0 in any shape; zeros where all scores are 0.

    Raises:
        ValueError: on a power or epsilon that is not positive and finite.
    """
    rows = at_least_float32(scores).movedim(dim, -1)
    return Softermax(power, epsilon).density(rows, rows.new_ones(())).movedim(-1, dim).to(scores.dtype)


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
    """a = (s^n - 1) / (s^n + 1): pairs with score 0 count -1; see `Squashing`."""

    gain = 2.0

    def numerator(self, score: Tensor, reference: Tensor | None = None) -> Tensor:
        """See `Normaliser.numerator`."""
        return soft_tanh(score, self.power)


@final
@dataclasses.dataclass(frozen=True)
class Unnormalised(Elementwise):
    """a = s."""

    takes_negative = True

    def numerator(self, score: Tensor, reference: Tensor | None = None) -> Tensor:
        """See `Normaliser.numerator`."""
        return score

    def slope(self, score: Tensor, reference: Tensor | None, numerator: Tensor) -> Tensor:
        """See `Normaliser.slope`."""
        return score.new_ones(()).expand_as(score)


def soft_sigmoid(scores: Tensor, power: float = 1.0) -> Tensor:
    """s^n / (1 + s^n) of scores >= 0 (Yat, eq. 4), any shape."""
    check_power("soft_sigmoid", power)
    # s^n for s <= 1, s^-n above: neither can overflow
    above = scores > 1
    inverse = positive_power(torch.where(above, 1 / torch.where(above, scores, 1.0), 0.0), power)
    direct = positive_power(torch.where(above, 0.0, scores), power)
    return torch.where(above, 1 / (1 + inverse), direct / (1 + direct))


def soft_tanh(scores: Tensor, power: float = 1.0) -> Tensor:
    """(s^n - 1) / (s^n + 1) of scores >= 0 (Yat, eq. 5), any shape."""
    return 2 * soft_sigmoid(scores, power) - 1
