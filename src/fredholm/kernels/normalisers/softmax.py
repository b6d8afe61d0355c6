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

    def numerator(self, score: Tensor, reference: Tensor) -> Tensor:
        """See `Normaliser.numerator`."""
        return score.sub_(reference).exp_()

    def slope(self, score: Tensor, reference: Tensor, numerator: Tensor) -> Tensor:
        """See `Normaliser.slope`."""
        return numerator

    def floor(self, reference: Tensor) -> None:
        """Nothing; see `Competitive.floor`."""
