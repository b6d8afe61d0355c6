"""Softermax: shares of powers of non-negative scores.

Legend
    s_k ≥ 0      score                  n     power
    e            floor > 0 of the sum

    softermax_n(s)_k = s_k^n / (e + Σ_i s_i^n)

Source: Yat (No More DeLuLu), eq. 3. Deviations: masses enter the sum; powers are taken of scores over the row's
largest, so that none overflows; where n < 1 the derivative at s = 0, infinite, is taken as 0.
"""

import dataclasses
from typing import final

import torch
from torch import Tensor

from fredholm.kernels.normalisers.normaliser import Competitive, check_power


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
        if not 0 < self.epsilon < float("inf"):
            raise ValueError(f"kernels.Softermax: epsilon must be positive and finite; got {self.epsilon}")

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
"""Near the least normal float32: keeps a quotient of zeros from being NaN."""


def positive_power(x: Tensor, power: float) -> Tensor:
    """x^power for x >= 0, of which autograd takes a derivative of 0, not infinity, where x = 0 and power < 1."""
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
    rows = scores.to(torch.promote_types(scores.dtype, torch.float32)).movedim(dim, -1)
    return Softermax(power, epsilon).density(rows, rows.new_ones(())).movedim(-1, dim).to(scores.dtype)
