"""Softmax of scores: n(s) = exp(s)."""

import dataclasses
from typing import final

from torch import Tensor

from fredholm.kernels.normalisers.normaliser import Competitive


@final
@dataclasses.dataclass(frozen=True)
class Softmax(Competitive):
    """a = exp(s) / Σ exp(s), with the masses in the sum (Yat, section 2.2)."""

    slope_reads_score = False
    neutral = 0.0

    def numerator(self, score: Tensor, reference: Tensor | None = None) -> Tensor:
        """See `Normaliser.numerator`."""
        return (score if reference is None else score.sub_(reference)).exp_()

    def slope(self, score: Tensor, reference: Tensor | None, numerator: Tensor) -> Tensor:
        """See `Normaliser.slope`."""
        return numerator

    def floor(self, reference: Tensor | None = None) -> float:
        """Nothing; see `Competitive.floor`."""
        return 0.0
