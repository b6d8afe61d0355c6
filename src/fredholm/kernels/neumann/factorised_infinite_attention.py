"""Factorised infinite attention: series of hops whose scores split over the two points of a pair.

Legend
    q_i, k_j     query and key of a head, d channels          φ_i, ψ_j   features of a query and a key, r each, all ≥ 0
    c_i          norm of the hop (`infinite_attention.py`)               γ          discount of a hop, in (0, 1)
    V            [W_V, b_V], one per head                     ω_j        mass of a point

    a_ij = φ_i·ψ_j / c_i,   (A f)_i = Σ_j ω_j a_ij f_j,   κ = c V with c = (I - γ a Ω)⁻¹ γ a (all hops)

With c one number, s = γ / c and M = Σ_j ω_j ψ_j φ_jᵀ, an r x r matrix (Woodbury):

    Σ_{t ≥ 1} (γA)^t v at x  =  s φ(x)ᵀ (I - s M)⁻¹ Σ_j ω_j ψ_j v_jᵀ,
    c² = Σ_ij ω_i ω_j (φ_i·ψ_j)² = ⟨Σ_i ω_i φ_i φ_iᵀ, Σ_j ω_j ψ_j ψ_jᵀ⟩

With a norm for each row, c_i = φ_i·Σ_j ω_j ψ_j, the same holds with φ_i / c_i for φ_i and γ for s.

Source: InfSA (Infinite Self-Attention), eq. 7 and 11, with the feature maps of linear attention in place of
max(q·k, 0), φ = ψ(q) and ψ(k); deviations as in `infinite_attention.py`.
"""

import abc
import functools
from collections.abc import Sequence
from typing import Literal, final

import torch
from torch import Tensor

from fredholm._precision import without_autocast
from fredholm.kernels.attention.linear_attention import (
    FeatureMap,
    check_feature_map,
    elu_plus_one,
    in_range,
    own_features,
)
from fredholm.kernels.attention.scored import Dot
from fredholm.kernels.heads import HeadProjections, check_heads, each_query_head
from fredholm.kernels.kernel import State, Stateful, divided
from fredholm.kernels.neumann.infinite_attention import (
    Discount,
    FrobeniusNorm,
    HopForm,
    HopNorm,
    Neumann,
    RowNorm,
    block_norm,
    over_own_power,
)


class FactorisedNeumann(Neumann):
    """Marker: a series of hops with scores φ_i·ψ_j >= 0, so that points are summed before a query is applied.

    `score` is `Dot`, and `norm` is `FrobeniusNorm` or `RowNorm`.
    """

    @abc.abstractmethod
    def query_features(self, u: Tensor) -> Tensor:
        """φ, `(B, H, N, r)`, of a signal `(B, N, query_dim)`; under row norms up to a factor per point."""

    @abc.abstractmethod
    def key_features(self, u: Tensor) -> Tensor:
        """ψ, `(B, H', N, r)`, of a signal `(B, N, d_in)`; H' divides H, each serving several consecutive heads."""


def over_row_norms(phi: Tensor, total: Tensor) -> Tensor:
    """φ `(B, H, n, r)` over the norms of its rows φ·t, t = Σ ω ψ `(B, H, r)`; 0 where a norm is 0.

    t is scaled to size 1 first, since gradients divide by the square of a norm, which may underflow.
    """
    size = total.detach().amax(-1, keepdim=True)
    size = torch.where((size > 0) & size.isfinite(), size, 1.0)
    return divided(phi, phi @ (total / size)[..., None]) / size[..., None]


@final
class FactorisedInfiniteAttention(FactorisedNeumann, Stateful):
    """Attention along all chains of points, κ = (γA + γ²A² + …) W_V, whose cost grows with N, not N².

    A is ψ(q)·ψ(k) over a norm, and the series is exact: y solves y = γA(v + y), v the values. The output projection is
    the operator's W^O.

    Args:
        embed_dim: channels of u(x), and of the integral; a multiple of `num_heads`.
        num_heads: heads H; head h writes channels h·d … (h + 1)·d - 1, d = embed_dim / H.
        num_kv_heads: heads of keys and values, a divisor of H; None: H.
        feature_map: ψ, a function or module from `(..., d)` to `(..., r)` with values >= 0. It must map every point
            independently of the others.
        normaliser: "frobenius": c is the Hilbert-Schmidt norm of the hop; rows of A may then sum to more than 1.
            "rows": c_i is the integral over the row, so that rows of A sum to 1, or 0.
        gamma: γ, a number for all heads or one for each.
        learn_gamma: whether γ is learned, as a sigmoid, starting at `gamma`.
        bias: whether the projections to queries, keys and values have biases; that of the values makes κ affine.
        is_causal: a = 0 where y comes after x, and the norm of a row is that of the points up to x. Such a kernel can
            go step by step, with a state of fixed size.

    Raises:
        ValueError: on heads that do not divide, sizes below 1, γ outside (0, 1), or an unknown normaliser.
    """

    pos_dim = None
    sees_simultaneous = True
    score = Dot()

    def __init__(
        self,
        embed_dim: int,
        num_heads: int = 1,
        *,
        num_kv_heads: int | None = None,
        feature_map: FeatureMap | None = None,
        normaliser: Literal["frobenius", "rows"] = "frobenius",
        gamma: float | Sequence[float] = 0.7,
        learn_gamma: bool = False,
        bias: bool = True,
        is_causal: bool = False,
    ) -> None:
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        check_heads("kernels.FactorisedInfiniteAttention", embed_dim, num_heads, num_kv_heads)
        if normaliser not in ("frobenius", "rows"):
            raise ValueError(
                f"kernels.FactorisedInfiniteAttention: normaliser must be 'frobenius' or 'rows'; got {normaliser!r}"
            )
        self.projections = HeadProjections(
            embed_dim, embed_dim, embed_dim, num_heads, num_kv_heads, embed_dim // num_heads, bias=bias
        )
        check_feature_map("kernels.FactorisedInfiniteAttention", feature_map)
        self.feature_map = feature_map
        self.norm: HopNorm = FrobeniusNorm() if normaliser == "frobenius" else RowNorm()
        self.discount = Discount(gamma, num_heads, learn_gamma)
        self.in_dim = self.out_dim = embed_dim
        self.num_heads, self.is_causal, self.is_affine = num_heads, is_causal, bias

    def value_matrices(self) -> Tensor:
        """See `ValueMixing.value_matrices`."""
        return self.projections.value_matrices()

    def query_features(self, u: Tensor) -> Tensor:
        """See `FactorisedNeumann.query_features`; raises a ValueError when a value is negative."""
        features = self._features(self.projections.queries(u))
        return over_own_power(features) if isinstance(self.norm, RowNorm) else features

    def key_features(self, u: Tensor) -> Tensor:
        """See `FactorisedNeumann.key_features`; raises a ValueError when a value is negative."""
        return self._features(self.projections.keys(u))

    def _features(self, projected: Tensor) -> Tensor:
        if self.feature_map is None:
            # with row norms, all values of a row may underflow in float32
            own_norms = self.is_causal or isinstance(self.norm, RowNorm)
            return elu_plus_one(projected.double() if own_norms else in_range(projected))
        return own_features("kernels.FactorisedInfiniteAttention", self.feature_map, projected)

    def hop_form(self, u: Tensor, query: Tensor | None) -> HopForm:
        """See `Neumann.hop_form`."""
        at_points, key, value = self.query_features(u), self.key_features(u), self.projections.values(u)
        at_queries = at_points if query is None else self.query_features(query)
        dtype = functools.reduce(torch.promote_types, (part.dtype for part in (at_queries, at_points, key)))
        at_points, key, at_queries = at_points.to(dtype), key.to(dtype), at_queries.to(dtype)
        return HopForm(at_queries, None if query is None else at_points, key, value)

    def initial_state(self, batch_size: int) -> State:
        """Zeros, in float64: Σ ψ(k) ⊗ (v + y) `(B, H, r, d)`, and the sums for the norms.

        These are Σ ψ(k) ⊗ ψ(k) `(B, num_kv_heads, r, r)` and c² `(B, H)`; for row norms Σ ψ(k) `(B, num_kv_heads, r)`.
        """
        own = self.projections
        like = own.key_weight
        with torch.no_grad():
            some = like.new_zeros(1, own.head_dim)
            rank = (some if self.feature_map is None else self.feature_map(some)).shape[-1]
        # sums of exponentials, whose range is that of float64
        total = torch.zeros(batch_size, self.num_heads, rank, own.head_dim, dtype=torch.float64, device=like.device)
        if isinstance(self.norm, RowNorm):
            return total, total.new_zeros(batch_size, own.num_kv_heads, rank)
        grams = total.new_zeros(batch_size, own.num_kv_heads, rank, rank)
        return total, grams, grams.new_zeros(batch_size, self.num_heads)

    def step(self, u: Tensor, state: State, time: Tensor | None = None) -> tuple[Tensor, State]:
        """Solves y = γA(v + y) for the next point, given the sums over those before; see `Stateful.step`."""
        assert self.discount is not None
        form = self.hop_form(u[:, None], None)
        total, *sums = state
        with without_autocast(u):
            phi, psi = form.query[:, :, 0].double(), form.key[:, :, 0].double()
            value = each_query_head(form.value[:, :, 0], self.num_heads).to(total.dtype)
            if isinstance(self.norm, RowNorm):
                sums = [sums[0] + psi]
                phi = over_row_norms(phi[:, :, None], each_query_head(sums[0], self.num_heads))[:, :, 0]
            else:
                grams = sums[0] + psi[..., None] * psi[..., None, :]
                image = (each_query_head(grams, self.num_heads) @ phi[..., None])[..., 0]
                sums = [grams, sums[1] + (phi * image).sum(-1)]
                phi = divided(phi, block_norm(sums[1])[..., None])
            psi = each_query_head(psi, self.num_heads)
            phi = self.discount().double()[:, None] * phi
            here = (phi * psi).sum(-1, keepdim=True)
            out = ((phi[..., None, :] @ total)[..., 0, :] + here * value) / (1 - here)
            total = total + psi[..., None] * (value + out)[..., None, :]
        return out.flatten(1).to(form.value.dtype), (total, *sums)

    def extra_repr(self) -> str:
        """The options that `print(module)` shows."""
        return f"normaliser={self.norm}, is_causal={self.is_causal}"
