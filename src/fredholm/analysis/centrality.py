"""Centrality of points in the attention graph, by walks of every length with discounted steps.

Legend
    A ≥ 0        weights from point i to point j, `(..., N, N)`        γ    discount of a step, in (0, 1)
    M = γA       one step                                              e    ones
    R_i          1 - γ Σ_j A_ij, the chance that a walk ends at i

    M holds probabilities of steps, and R those of ending, where R_i > 0 for every i: the Markov reading.

    N = (I - M)⁻¹ = Σ_{t≥0} Mᵗ,   outgoing N e,   incoming Nᵀ e,   Katz N e - e,   absorption B = N diag(R)

Source: Infinite Self-Attention, eq. 6-8 and 13-15. Deviation: ‖A‖_F = 1 makes the series converge, but not M
substochastic, which the paper takes for granted: rows may sum to √N. N is then still Σ Mᵗ, and no longer a number of
visits; `markov_reading` decides which holds.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from fredholm.analysis.checks import checked_discount, checked_matrix
from fredholm.kernels.linear_algebra import solve_each


def expected_visits(A: Tensor, gamma: float | Tensor) -> Tensor:
    """N = (I - γA)⁻¹, `(..., N, N)`: under a Markov reading, visits of a walk from i to j, its start included.

    A point without mass is visited once by its own walk, and by no other.

    Args:
        A: weights >= 0, `(..., N, N)`, such as one of `attention_weights`.
        gamma: γ in (0, 1), one number, or a tensor for the leading dimensions, such as `(H,)`.

    Raises:
        TypeError, ValueError: on invalid weights, an invalid discount, or a series that diverges.
    """
    step = _step("expected_visits", A, gamma)
    return _inverse(step)


def outgoing_influence(A: Tensor, gamma: float | Tensor) -> Tensor:
    """N e, `(..., N)`: under a Markov reading, the expected visits of a walk from each point; see `expected_visits`."""
    step = _step("outgoing_influence", A, gamma)
    return _solved(step)


def incoming_influence(A: Tensor, gamma: float | Tensor) -> Tensor:
    """Nᵀ e, `(..., N)`: under a Markov reading, the expected visits to each point by walks, one from every point."""
    step = _step("incoming_influence", A, gamma)
    return _solved(step.mT)


def katz_centrality(A: Tensor, gamma: float | Tensor) -> Tensor:
    """((I - γA)⁻¹ - I) e, `(..., N)`: the discounted weight of all paths that begin at a point (eq. 8)."""
    step = _step("katz_centrality", A, gamma)
    # Σ_{t≥1} Mᵗ e = N (M e), without cancellation against the term t = 0
    return _solved(step, step.sum(-1, keepdim=True))


def absorption_probabilities(A: Tensor, gamma: float | Tensor) -> Tensor:
    """B = N diag(R), `(..., N, N)`: the chance that a walk from i ends at j; every row sums to 1.

    Args:
        A, gamma: as in `expected_visits`.

    Raises:
        ValueError: where γ Σ_j A_ij > 1, since a chance to end would be negative; otherwise as `expected_visits`.
    """
    step = _step("absorption_probabilities", A, gamma)
    leave = 1 - step.sum(-1)
    if bool((leave < 0).any()):
        raise ValueError(
            f"analysis.absorption_probabilities: gamma times the largest row sum is {1 - leave.min().item():.4g}, "
            "above 1, so that these are no probabilities; see markov_reading, or use a row-bounded normaliser"
        )
    return _inverse(step) * leave[..., None, :]


def _step(name: str, A: Tensor, gamma: float | Tensor) -> Tensor:
    """γA, after a check that Σ (γA)ᵗ converges."""
    matrix = checked_matrix(name, A)
    step = checked_discount(name, gamma, matrix) * matrix
    if step.shape[-1] == 0:
        return step
    # three upper bounds of the spectral radius that are cheaper than the radius itself
    bound = torch.stack([step.sum(-1).amax(-1), step.sum(-2).amax(-1), torch.linalg.matrix_norm(step)]).amin(0)
    doubtful = step[bound >= 1]
    if doubtful.numel():
        radius = torch.linalg.eigvals(doubtful).abs().max().item()
        if not radius < 1:
            raise ValueError(
                f"analysis.{name}: the series of (gamma A)^t diverges; the spectral radius of gamma A is {radius:.4g}, "
                "and must be below 1"
            )
    return step


def _identity(step: Tensor) -> Tensor:
    return torch.eye(step.shape[-1], dtype=step.dtype, device=step.device)


def _inverse(step: Tensor) -> Tensor:
    identity = _identity(step)
    return solve_each(identity - step, identity.expand_as(step))


def _solved(step: Tensor, right: Tensor | None = None) -> Tensor:
    """(I - M)⁻¹ right; the right side defaults to ones."""
    right = step.new_ones(*step.shape[:-1], 1) if right is None else right
    return solve_each(_identity(step) - step, right)[..., 0]


class MarkovReading(NamedTuple):
    """Whether γA is a walk that may end at every point, for each matrix of a batch."""

    holds: Tensor
    """`(...)` bool: γ max_i Σ_j A_ij < 1."""
    margin: Tensor
    """`(...)`: 1 - γ max_i Σ_j A_ij; negative where the reading fails."""
    ending: Tensor
    """R, `(..., N)`: the probability that a walk ends at a point; not a probability where it is negative."""
    fails: Tensor
    """`(..., N)` bool: the points with R <= 0."""


def markov_reading(A: Tensor, gamma: float | Tensor) -> MarkovReading:
    """Tests whether γA is the walk of an absorbing Markov chain, with the margin and the points where it is not.

    Args:
        A: weights >= 0, `(..., N, N)`.
        gamma: γ in (0, 1), one number or one for each of the leading dimensions.

    Raises:
        TypeError, ValueError: on invalid weights, an invalid discount, or no points.
    """
    matrix = checked_matrix("markov_reading", A)
    if matrix.shape[-1] == 0:
        raise ValueError("analysis.markov_reading: there are no points, so nothing can be read")
    ending = 1 - (checked_discount("markov_reading", gamma, matrix) * matrix).sum(-1)
    margin = ending.amin(-1)
    return MarkovReading(margin > 0, margin, ending, ending <= 0)
