"""Linear attention.

Legend
    q_i, k_j     query and key of a head, d channels          φ      feature map with values ≥ 0
    V            [W_V, b_V], one per head                     R_t    turn by rotary positions at t; I without them

    κ(x_i, y_j, u(x_i), u(y_j)) = φ(R_i q_i)·φ(R_j k_j) / Z_i · V,   Z_i = ∫ φ(R_i q_i)·φ(R k) dμ

Source: ITNet (arXiv 2606.19538), proposition 5, eq. 91; Katharopoulos et al. 2020 for φ = elu + 1. Deviations: biases,
heads that share keys and values, a measure that enters both the numerator and Z, rotary positions. These rotate the
arguments of φ, as LoLCATs (Zhang et al. 2024) does to make the attention of trained models linear: features stay ≥ 0,
and κ depends on both positions. RoFormer (Su et al. 2021, eq. 19) rotates the features instead, in the numerator alone:
κ then depends on the difference of positions, may be negative, and does not integrate to 1.
"""

import abc
import warnings
from collections.abc import Callable
from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm._precision import wide_dtype, without_autocast
from fredholm.domains import Domain
from fredholm.domains.checks import values_can_be_read
from fredholm.kernels.attention.rotary import Rotary, check_rotary, rotated, rotated_after, rotated_next
from fredholm.kernels.attention.scored import Normalised
from fredholm.kernels.heads import HeadProjections, check_heads, each_query_head
from fredholm.kernels.kernel import State, Stateful, divided


class FeatureMapForm(NamedTuple):
    """n_ij = φ_i·ψ_j with r features, all ≥ 0, and V ũ_j; keys and values may have fewer heads than queries."""

    query: Tensor  # φ: (B, H, Nq, r)
    key: Tensor  # ψ: (B, H', N, r)
    value: Tensor  # (B, H', N, d)


class FeatureMapped(Normalised):
    """Marker: a normalised kernel with n_ij = φ_i·ψ_j, so that keys are summed before a query is applied.

    Along a sequence its state is Σ ψ ⊗ v `(B, H', r, d)`, Σ ψ `(B, H', r)` and, where features depend on the index, the
    number of points so far `(B,)`.
    """

    @abc.abstractmethod
    def feature_map_form(self, u: Tensor, domain: Domain, query: Tensor, query_domain: Domain) -> FeatureMapForm:
        """Features and values on these signals, `(B, N, d_in)` and `(B, Nq, query_dim)`."""

    def continued_features(self, u: Tensor, domain: Domain, query: Tensor, state: State | None) -> FeatureMapForm:
        """Features and values of the next points of a sequence, which may depend on the number of earlier points.

        Args:
            u: `(B, N, d_in)`.
            domain: the N next points.
            query: u(x) at the same points, `(B, N, query_dim)`.
            state: the state after the earlier points; None: there are none.
        """
        return self.feature_map_form(u, domain, query, domain)


FeatureMap = Callable[[Tensor], Tensor]
"""A map from `(..., d)` to `(..., r)` with values >= 0."""


def elu_plus_one(x: Tensor) -> Tensor:
    """elu(x) + 1: x + 1 above 0, exp(x) below."""
    # not elu(x) + 1, which cancels far below 0
    return torch.relu(x) + torch.exp(x.clamp_max(0))


REACH = 40.0
"""Largest size of projections for which products of two exponentials stay in the range of float32."""


def in_range(projected: Tensor) -> Tensor:
    """Converts projections to float64 if their exponentials, or products of two, would underflow in float32.

    Where values cannot be read, as under `torch.compile`, they are not converted.
    """
    if not values_can_be_read(projected) or projected.numel() == 0 or bool(projected.min() >= -REACH):
        return projected
    return projected.double()


def check_feature_map(name: str, feature_map: object) -> None:
    """Raises a TypeError that begins with `name` unless `feature_map` is callable or None."""
    if feature_map is not None and not callable(feature_map):
        raise TypeError(f"{name}: feature_map must be a function of a tensor, such as torch.relu; got {feature_map!r}")


def own_features(name: str, feature_map: FeatureMap, projected: Tensor) -> Tensor:
    """Features of projections by a user's map, in float64 where these reach beyond `REACH`.

    A map that does not accept float64, such as a module with parameters in float32, gets the projections unconverted;
    so do all maps where values cannot be read, as under `torch.compile`.

    Raises:
        ValueError: in the name of a kernel, on features below 0, or infinite ones. Underflow to 0 gives a warning.
    """
    if not values_can_be_read(projected) or not bool((projected.abs() > REACH).any()):
        features = feature_map(projected)
        _check_sign(name, features)
        return features
    try:
        features = feature_map(projected.double())
    except (RuntimeError, TypeError):  # PyTorch's errors for dtypes that do not fit
        features = feature_map(projected)
    _check_sign(name, features)
    _check_reach(name, feature_map, projected.detach(), features.detach())
    return features


def _check_sign(name: str, features: Tensor) -> None:
    if not values_can_be_read(features):
        return
    lowest = features.min().item() if features.numel() else 0.0
    if lowest < 0:
        raise ValueError(
            f"{name}: feature_map must be >= 0, so that sums over points cannot vanish by cancellation; "
            f"it gave {lowest:.3g}"
        )


def _check_reach(name: str, feature_map: FeatureMap, projected: Tensor, features: Tensor) -> None:
    """Raises ValueError where features overflow, and warns where all features of a point underflow to 0."""
    size = projected.abs().amax(-1)
    there = size.isfinite() & (size > REACH)
    if bool((there & features.isinf().any(-1)).any()):
        raise ValueError(
            f"{name}: feature_map gave infinite values in {features.dtype}, at queries or keys of size "
            f"{size[there].max().item():.3g}; normalise the signal, or take a feature map that grows less"
        )
    vanished = projected[there & (features == 0).all(-1)]
    # a map such as max(x, 0) is 0 there at any size
    if vanished.shape[0] and bool((feature_map(vanished * (REACH / vanished.abs().amax(-1, keepdim=True))) != 0).any()):
        warnings.warn(
            f"{name}: feature_map gave only zeros in {features.dtype} at queries or keys larger than {REACH:g}, but "
            "not at smaller ones; where no other point has weight either, the integral is 0. Normalise the signal if "
            "the features underflowed",
            stacklevel=2,
        )


@final
class LinearAttention(FeatureMapped, Stateful):
    """κ = φ(q)·φ(k) W_V, normalised, head by head: attention whose cost grows with N, not N².

    Args:
        embed_dim: channels of u(x), and of the integral; a multiple of `num_heads`.
        num_heads: heads H.
        num_kv_heads: heads of keys and values, a divisor of H; None: H.
        feature_map: φ, a function or module from `(..., d)` to `(..., r)` with values >= 0; where a row of φ(q)·φ(k)
            is all 0, the integral is 0. None: elu(x) + 1. Where queries or keys are so large that exponentials leave
            the range of float32, it is computed in float64, if the map accepts that.
        bias: whether the projections to queries, keys and values have biases; that of the values makes κ affine.
        is_causal: κ = 0 where y comes after x; such a kernel can go step by step, with the state Σ φ(k) ⊗ [v, 1].
        rotary: rotary positions: queries and keys are rotated, before φ, by their times, or by their indices where the
            domain has no times; needs an even d, and points in an order. None: no rotation.

    Raises:
        ValueError: on heads that do not divide, sizes below 1, or rotary positions with an odd d.
    """

    reads_query = True
    sees_simultaneous = True

    def __init__(
        self,
        embed_dim: int,
        num_heads: int = 1,
        *,
        num_kv_heads: int | None = None,
        feature_map: FeatureMap | None = None,
        bias: bool = True,
        is_causal: bool = False,
        rotary: Rotary | None = None,
    ) -> None:
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        check_heads("kernels.LinearAttention", embed_dim, num_heads, num_kv_heads)
        check_rotary("kernels.LinearAttention", rotary, embed_dim // num_heads)
        self.projections = HeadProjections(
            embed_dim, embed_dim, embed_dim, num_heads, num_kv_heads, embed_dim // num_heads, bias=bias
        )
        check_feature_map("kernels.LinearAttention", feature_map)
        self.feature_map = feature_map
        self.in_dim = self.out_dim = embed_dim
        self.num_heads, self.is_causal, self.is_affine = num_heads, is_causal, bias
        self.rotary, self.reads_order = rotary, rotary is not None
        self.pos_dim = None if rotary is None else 1

    def value_matrices(self) -> Tensor:
        """See `Normalised.value_matrices`."""
        return self.projections.value_matrices()

    def numerator(self, u: Tensor, domain: Domain, query: Tensor, query_domain: Domain, visible: Tensor) -> Tensor:
        """φ(q)·φ(k); see `Normalised.numerator`."""
        phi, psi, _ = self.feature_map_form(u, domain, query, query_domain)
        dtype = wide_dtype(phi, psi)
        with without_autocast(u):
            scores = phi.to(dtype) @ each_query_head(psi.to(dtype), self.num_heads).mT
        return torch.where(visible, scores, 0.0)

    def feature_map_form(self, u: Tensor, domain: Domain, query: Tensor, query_domain: Domain) -> FeatureMapForm:
        """See `FeatureMapped.feature_map_form`.

        Raises:
            ValueError: when the feature map gives a negative value, or an infinite one; see `own_features`.
        """
        own = self.projections
        q, k = own.queries(query), own.keys(u)
        return self._form(u, *rotated("kernels.LinearAttention", self.rotary, q, k, domain, query_domain))

    def continued_features(self, u: Tensor, domain: Domain, query: Tensor, state: State | None) -> FeatureMapForm:
        """See `FeatureMapped.continued_features`."""
        own, counted = self.projections, state[2:] if state else ()
        q, k = own.queries(query), own.keys(u)
        before = counted[0] if counted else 0
        return self._form(u, *rotated_after("kernels.LinearAttention", self.rotary, q, k, domain, before))

    def _form(self, u: Tensor, query: Tensor, key: Tensor) -> FeatureMapForm:
        phi, psi = self._features(query), self._features(key)
        dtype = torch.promote_types(phi.dtype, psi.dtype)
        return FeatureMapForm(phi.to(dtype), psi.to(dtype), self.projections.values(u))

    def _features(self, projected: Tensor) -> Tensor:
        if self.feature_map is None:
            return elu_plus_one(in_range(projected))
        return own_features("kernels.LinearAttention", self.feature_map, projected)

    def initial_state(self, batch_size: int) -> State:
        """Zeros, of `num_kv_heads` heads; see `FeatureMapped` and `Stateful.initial_state`."""
        own = self.projections
        some = own.key_weight.new_zeros(1, own.head_dim)
        rank = (some if self.feature_map is None else self.feature_map(some)).shape[-1]
        shape = (batch_size, own.num_kv_heads, rank)
        # sums of exponentials, whose range is that of float64
        total = torch.zeros(*shape, own.head_dim, dtype=torch.float64, device=own.key_weight.device)
        sums = total, total.new_zeros(shape)
        return sums if self.rotary is None else (*sums, total.new_zeros(batch_size))

    def unsteppable(self, domain: Domain) -> list[str]:
        """A reason where rotary positions are indices and some points do not exist; see `Stateful.unsteppable`."""
        passes_over = self.rotary is not None and domain.mask is not None
        return ["rotary positions by index count points that do not exist, which steps skip"] if passes_over else []

    def step(self, u: Tensor, state: State, time: Tensor | None = None) -> tuple[Tensor, State]:
        """Adds φ(k) ⊗ v to the state and reads it with φ(q); see `Stateful.step`."""
        u, own, (total, mass, *counted) = u[:, None], self.projections, state
        q, k = rotated_next(self.rotary, own.queries(u), own.keys(u), counted[0] if counted else 0, time)
        phi, psi, value = (part[:, :, 0] for part in self._form(u, q, k))
        psi = psi.to(total.dtype)
        total = total + psi[..., None] * value.to(total.dtype)[..., None, :]
        mass = mass + psi
        shared = self.num_heads // self.projections.num_kv_heads
        phi = phi.to(total.dtype).unflatten(1, (-1, shared))  # (B, H', H / H', r)
        out = divided(phi @ total, phi @ mass[..., None])
        return out.flatten(1).to(value.dtype), (total, mass, *(each + 1 for each in counted))

    def extra_repr(self) -> str:
        """The options that `print(module)` shows."""
        return f"is_causal={self.is_causal}, rotary={self.rotary}"
