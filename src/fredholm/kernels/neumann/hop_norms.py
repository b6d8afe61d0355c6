"""What a hop of infinite attention is divided by.

Legend
    φ_ij        scores of pairs, pair weights included, 0 where hidden         ω_j    mass of a point
    n_i         how many leading points a query may see; all, unless causal

    a_ij = φ_ij / c_i   (0 where c_i = 0),   (A f)_i = Σ_j ω_j a_ij f_j

Source: InfSA (Infinite Self-Attention), eq. 11. Deviations: no ε, since where c = 0 there is no hop; the measure; the
norm of the past for causal kernels; the norm of rows.
"""

import abc
import dataclasses
from typing import ClassVar, NamedTuple, final

import torch
from torch import Tensor


class HopScores(NamedTuple):
    """Everything that a norm may depend on, in at least float32. B' is 1 or B."""

    query: Tensor  # φ at the queries, (B, H, Nq, N)
    own: Tensor  # φ among the points themselves, (B, H, N, N)
    mass: Tensor  # ω: (B', 1, 1, N)
    seen: Tensor | None  # n: (B', Nq); None: all


class HopNorm(abc.ABC):
    """c of a hop; a frozen value.

    Attributes:
        is_contractive: whether no eigenvalue of a hop exceeds 1, whatever the scores, so that a discounted series
            converges; where it is not, the spectral radius is measured.
    """

    is_contractive: ClassVar[bool] = False

    @abc.abstractmethod
    def norm(self, scores: HopScores) -> Tensor:
        """c >= 0, broadcastable to `(B, H, Nq, 1)`."""

    @abc.abstractmethod
    def following(self, row: Tensor, before: Tensor) -> Tensor:
        """c of the next row of a causal kernel where every point weighs 1.

        Args:
            row: its scores, `(B, H, 1, n)`, n points so far, itself included.
            before: c of the row before, `(B, H)`; 0 for the first.

        Returns:
            `(B, H)`.
        """


@final
@dataclasses.dataclass(frozen=True)
class FrobeniusNorm(HopNorm):
    """c² = Σ_ij ω_i ω_j φ_ij²: the Hilbert-Schmidt norm of the hop in L²(μ), one number a head.

    With equal masses it is the Frobenius norm of the paper. A causal row may not see the future: there the sum is over
    the block of the points up to x, so that c_i never decreases.
    """

    is_contractive = True

    def norm(self, scores: HopScores) -> Tensor:
        """See `HopNorm.norm`; squares are summed in float64, so that scores of any size have a norm."""
        mass = scores.mass.double()
        rows = (scores.own.double().square() * mass).sum(-1) * mass[:, :, 0]  # (B, H, N)
        if scores.seen is None:
            squares = rows.sum(-1)[..., None, None]
        else:
            running = torch.nn.functional.pad(rows.cumsum(-1), (1, 0))
            seen = scores.seen[:, None].expand(*rows.shape[:2], -1)
            squares = running.gather(-1, seen)[..., None]
        root = torch.where(squares == 0, 1.0, squares).sqrt()  # at 0 a root has no gradient
        return torch.where(squares == 0, 0.0, root).to(scores.own.dtype)

    def following(self, row: Tensor, before: Tensor) -> Tensor:
        """See `HopNorm.following`."""
        squares = before.double().square() + row.double().square().sum((-2, -1))
        root = torch.where(squares == 0, 1.0, squares).sqrt()  # at 0 a root has no gradient
        return torch.where(squares == 0, 0.0, root).to(row.dtype)


@final
@dataclasses.dataclass(frozen=True)
class RowNorm(HopNorm):
    """``c_i = Σ_j ω_j |φ_ij|``: rows of a hop sum to 1 at most, and with φ >= 0 to exactly 1, or 0.

    Then γA is the transition matrix of an absorbing Markov chain for every γ < 1, as InfSA's eq. 13-15 need it.
    """

    is_contractive = True

    def norm(self, scores: HopScores) -> Tensor:
        """See `HopNorm.norm`."""
        return (scores.query.abs() * scores.mass.to(scores.query.dtype)).sum(-1, keepdim=True)

    def following(self, row: Tensor, before: Tensor) -> Tensor:
        """See `HopNorm.following`."""
        return row.abs().sum((-2, -1))
