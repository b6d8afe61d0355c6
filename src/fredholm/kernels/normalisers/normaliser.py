"""From non-negative scores to densities: the abstract normaliser, and its two kinds.

Legend
    s_ij ≥ 0     score of a pair
    ω_j m_ij     its mass; 0 hides it
    σ_i          a reference score of a row, positive where the row has a positive score

    competitive:   a_ij = n(s_ij) / (e + Σ_l ω_l m_il n(s_il)),   elementwise:   a_ij = n(s_ij)

Source: Yat (No More DeLuLu), appendix B, where all masses are 1.
"""

import abc
from typing import ClassVar, final

import torch
from torch import Tensor


class Normaliser(abc.ABC):
    """How scores become densities; a frozen value, which any kernel with scores >= 0 may hold.

    All tensors are in at least float32; `reference` has one entry a row and broadcasts against `score`, or is None.
    """

    is_competitive: ClassVar[bool]
    slope_reads_score: ClassVar[bool] = True

    @abc.abstractmethod
    def numerator(self, score: Tensor, reference: Tensor | None = None) -> Tensor:
        """n(s) over n(reference), or n(s) itself: without one, and of elementwise kinds. May overwrite `score`."""

    @abc.abstractmethod
    def slope(self, score: Tensor, reference: Tensor | None, numerator: Tensor) -> Tensor:
        """The derivative of `numerator` by the score; `score` is read only where `slope_reads_score`."""

    @abc.abstractmethod
    def density(self, score: Tensor, mass: Tensor) -> Tensor:
        """a on whole rows, the definition.

        Args:
            score: `(..., N)`, >= 0.
            mass: ω m, broadcastable to `score`; 0 hides a pair.

        Returns:
            As `score`; 0 where a pair is hidden.
        """


class Competitive(Normaliser):
    """Scores of a row compete: every density has the sum over the row below it."""

    is_competitive = True
    neutral: ClassVar[float]
    """The reference that is none: n(neutral) = 1."""

    @abc.abstractmethod
    def floor(self, reference: Tensor | None = None) -> Tensor | float:
        """e over n(reference): what the sum has beside its terms."""

    @final
    def reference(self, score: Tensor) -> Tensor:
        """The largest score of each row `(..., 1)`, and never 0: in `numerator` the row stays within floating range."""
        if score.shape[-1] == 0:
            return score.new_full((*score.shape[:-1], 1), TINY)
        return score.amax(-1, keepdim=True).clamp_min_(TINY)

    @final
    def density(self, score: Tensor, mass: Tensor) -> Tensor:
        """See `Normaliser.density`; 0 in a row without mass."""
        score = torch.where(mass > 0, score, 0.0)
        reference = self.reference(score.detach())
        numerator = torch.where(mass > 0, self.numerator(score, reference), 0.0)
        total = (mass * numerator).sum(-1, keepdim=True)
        total = total + self.floor(reference)
        # not `total > 0`: NaN stays NaN
        return torch.where(total == 0, 0.0, numerator / torch.where(total == 0, 1.0, total))


class Elementwise(Normaliser):
    """Every density depends on its own score alone."""

    is_competitive = False

    @final
    def density(self, score: Tensor, mass: Tensor) -> Tensor:
        """See `Normaliser.density`."""
        score = torch.where(mass > 0, score, 0.0)
        return torch.where(mass > 0, self.numerator(score), 0.0)


TINY = 1e-30
"""The least reference: below it a row counts as zero."""


def check_power(name: str, power: float) -> None:
    """Raises ValueError, in the name of a normaliser, unless a power is positive and finite."""
    if not 0 < power < float("inf"):
        raise ValueError(f"kernels.{name}: power must be positive and finite; got {power}")
