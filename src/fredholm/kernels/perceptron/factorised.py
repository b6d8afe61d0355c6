"""Kernels that factor through features of one point each.

Legend
    h_i, h'_j    features of query and key, w + 1 a head, the last of them 1 (`point_features.py`)
    M_ab         constant (d, d) matrices, one for each pair of features; a kernel says how it holds them

    κ_ij = Σ_ab h_ia h'_jb M_ab,   and with a measure ω, since nothing in M depends on a point,

    Σ_j ω_j κ_ij u_j = h_i T,   T = mix(S),   S = Σ_j ω_j h'_j ⊗ u_j  of (w + 1, d) numbers a head

A causal kernel takes the mean over the past: κ_ij = 1[j ≤ i] Σ_ab h_ia h'_jb M_ab / μ{l ≤ i}. At the last point of a
measure of total mass 1 that is the value without `is_causal`, and a step needs no number of points to come.
"""

import abc
from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm.domains import Domain, preceding_counts
from fredholm.kernels.heads import block_diagonal
from fredholm.kernels.kernel import Stateful
from fredholm.kernels.perceptron.point_features import FeaturePair


class FeatureFactorised(Stateful):
    """Marker: κ is bilinear in features of x and features of y, so that the sum over keys comes before the query.

    Head h reads and writes channels h·d … (h + 1)·d - 1 of the signal. Where `is_causal`, κ is divided by the mass of
    the past; such a kernel goes step by step, on points with times if it reads positions.

    Attributes:
        num_heads: heads H.
        features: the perceptrons of both sides; they hold G = 1 or H kernels.
    """

    num_heads: int
    features: FeaturePair
    sees_simultaneous = True

    @abc.abstractmethod
    def join(self, query: Tensor, key: Tensor) -> Tensor:
        """Σ_ab h_a h'_b M_ab at every pair, `(B, H, Nq, N, d, d)`, from `(B, H, Nq, w + 1)` and `(B, H, N, w + 1)`."""

    @abc.abstractmethod
    def mix(self, sums: Tensor) -> Tensor:
        """T with T_ao = Σ_bi M_ab[o, i] S_bi: `(B, H, w + 1, d)` to `(B, H, w + 1, d)`, in the dtype of S."""

    @final
    def head_matrices(
        self, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        """κ head by head, `(B, H, Nq, N, d, d)`."""
        query, query_domain = (u if query is None else query), (domain if query_domain is None else query_domain)
        own = self.features
        h = own.query(*own.inputs(own.query, query, own.lift(query_domain)))
        kappa = self.join(h, own.key(*own.inputs(own.key, u, own.lift(domain))))
        if not self.is_causal:
            return kappa
        seen = torch.arange(domain.num_points, device=u.device) < preceding_counts(query_domain, domain)[..., None]
        share = self.past_share(domain, query_domain)
        assert share is not None
        return kappa * (seen * share[..., None])[:, None, :, :, None, None].to(kappa.dtype)

    @final
    def matrix(
        self, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        """κ, `(B, Nq, N, embed_dim, embed_dim)`, block-diagonal over heads; see `Kernel.matrix`."""
        return block_diagonal(self.head_matrices(u, domain, query, query_domain))

    @final
    def step_features(self, u: Tensor, time: Tensor | None) -> tuple[Tensor, Tensor]:
        """h and h' of one point, `(B, H, w + 1)` each, from `(B, C)` and its time `(B,)`.

        Raises:
            ValueError: without a time, when positions are read.
        """
        own, name = self.features, type(self).__name__
        if time is None and own.reads_position:
            raise ValueError(
                f"kernels.{name}: a step needs the time of its point, because the kernel reads positions; "
                f"give it (Sequence(times=...) for a whole sequence), or switch positions off in inputs="
            )
        lifted = u.new_empty(1, 1, 0) if time is None else own.lift_positions(time[:, None, None])
        h, key = (side(*own.inputs(side, u[:, None], lifted))[:, :, 0] for side in (own.query, own.key))
        return h, key


class LowRankForm(NamedTuple):
    """M_ab = Φ_aᵀ Ψ_b (+ B where a = b = w): κ_ij = Φ_iᵀ Ψ_j + B with Φ_i = Σ_a h_ia Φ_a, Ψ_j = Σ_b h'_jb Ψ_b."""

    query: Tensor  # Φ: (G, r, w + 1, d)
    key: Tensor  # Ψ: (G, r, w + 1, d)
    constant: Tensor | None  # B: (G, d, d)


class LowRank(FeatureFactorised):
    """Marker: κ_ij = Φ_iᵀ Ψ_j + B; what a query needs of the past are the r numbers Σ_j ω_j Ψ_j u_j and Σ_j ω_j u_j."""

    @abc.abstractmethod
    def low_rank_form(self) -> LowRankForm:
        """Φ, Ψ and B."""


class SeparableForm(NamedTuple):
    """M_ab = m_ab V: κ_ij = (h_iᵀ m h'_j) V."""

    scores: Tensor  # m: (G, w + 1, w + 1)
    value: Tensor  # V: (G, d, d)


class Separable(FeatureFactorised):
    """Marker: κ_ij = (h_iᵀ m h'_j) V, one number a pair; what a query needs of the past is S."""

    @abc.abstractmethod
    def separable_form(self) -> SeparableForm:
        """m and V."""
