"""Whether discounted weights are the transitions of a random walk that ends.

Legend
    A ≥ 0        weights, `(..., N, N)`        γ    discount in (0, 1)        R_i    1 - γ Σ_j A_ij

    γA holds probabilities of steps, and R those of ending, where R_i > 0 for every i.

Source: Infinite Self-Attention, eq. 13-15, and the condition γ max_i Σ_j A_ij < 1 beside them. The paper then takes it
for granted; ‖A‖_F = 1 does not give it, since a row may sum to √N.
"""

from typing import NamedTuple

from torch import Tensor

from fredholm.analysis.checks import checked_discount, checked_matrix


class MarkovReading(NamedTuple):
    """Whether γA is a walk that may end at every point, for each matrix of a batch."""

    holds: Tensor
    """`(...)` bool: γ max_i Σ_j A_ij < 1."""
    margin: Tensor
    """`(...)`: 1 - γ max_i Σ_j A_ij, by how much; negative where the reading fails."""
    ending: Tensor
    """R, `(..., N)`: the chance that a walk ends at a point, and no chance where it is negative."""
    fails: Tensor
    """`(..., N)` bool: the points with R <= 0."""


def markov_reading(A: Tensor, gamma: float | Tensor) -> MarkovReading:
    """Whether γA is the walk of an absorbing Markov chain for this input, by how much, and where not.

    Args:
        A: weights >= 0, `(..., N, N)`.
        gamma: γ in (0, 1), one number or one for each of the leading dimensions.

    Raises:
        TypeError, ValueError: on weights or a discount that are none, or no points.
    """
    matrix = checked_matrix("markov_reading", A)
    if matrix.shape[-1] == 0:
        raise ValueError("analysis.markov_reading: there are no points, so nothing can be read")
    ending = 1 - (checked_discount("markov_reading", gamma, matrix) * matrix).sum(-1)
    margin = ending.amin(-1)
    return MarkovReading(margin > 0, margin, ending, ending <= 0)
