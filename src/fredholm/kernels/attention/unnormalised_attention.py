"""Linear attention without a normaliser.

Legend
    q_i, k_j     query and key of a head, d channels          V     W_V, one per head

    κ(x_i, y_j, u(x_i), u(y_j)) = (q_i·k_j) V

Source: Neural Fields Meet Attention, theorems 3 and 14. With keys Φ_j, values r_j and queries e_k the integral is the
negative gradient of ½ Σ_j ω_j ‖r_j‖² by the coefficients c_k of a field Σ_k c_k Φ_k(x) (`of_features`).
"""

import abc
from typing import NamedTuple, Self, final

import torch
from torch import Tensor, nn

from fredholm._precision import wide_dtype
from fredholm._settings import check_count
from fredholm.domains import Domain
from fredholm.kernels.attention.scored import ValueMixing
from fredholm.kernels.heads import check_heads
from fredholm.kernels.kernel import State, Stateful


class BilinearForm(NamedTuple):
    """a_ij = φ_i·ψ_j with r features of any sign, and V ũ_j."""

    query: Tensor  # φ: (B, H, Nq, r)
    key: Tensor  # ψ: (B, H, N, r)
    value: Tensor  # (B, H, N, d)


class Bilinear(ValueMixing):
    """Marker: κ_ij = (φ_i·ψ_j) V in each head, so that keys are summed before a query is applied."""

    @abc.abstractmethod
    def bilinear_form(self, u: Tensor, query: Tensor) -> BilinearForm:
        """Features and values on these signals, `(B, N, d_in)` and `(B, Nq, query_dim)`."""

    @final
    def density(self, u: Tensor, domain: Domain, query: Tensor | None, query_domain: Domain | None) -> Tensor:
        """φ·ψ; see `ValueMixing.density`."""
        query, query_domain = (u if query is None else query), (domain if query_domain is None else query_domain)
        phi, psi, _ = self.bilinear_form(u, query)
        return torch.where(self.visible(domain, query_domain), phi @ psi.mT, 0.0)


@final
class UnnormalisedAttention(Bilinear, Stateful):
    """κ = (q·k) W_V, head by head, any sign: a sum over points that grows with their mass.

    Args:
        embed_dim: channels of u(x); a multiple of `num_heads` where `head_dim` is not given.
        num_heads: heads H.
        kdim, vdim: channels of keys and of values where they are not the same signal: u(y) is then [key; value], with
            kdim + vdim channels; None for both: both read u(y) with embed_dim channels; None for one: embed_dim.
        head_dim: channels d of a query and a key; None: embed_dim / H.
        value_head_dim: channels of a head's values, so that the integral has H of them; None: d.
        is_causal: κ = 0 where y comes after x; such a kernel can go step by step, with the state Σ k ⊗ v.

    Attributes:
        query_weight: W_Q, `(H·d, embed_dim)`; key_weight and value_weight likewise. There are no biases.

    Raises:
        ValueError: on heads that do not divide, or sizes below 1.
    """

    pos_dim = None
    reads_query = True
    sees_simultaneous = True

    def __init__(
        self,
        embed_dim: int,
        num_heads: int = 1,
        *,
        kdim: int | None = None,
        vdim: int | None = None,
        head_dim: int | None = None,
        value_head_dim: int | None = None,
        is_causal: bool = False,
    ) -> None:
        super().__init__()
        name = "kernels.UnnormalisedAttention"
        if head_dim is None:
            check_heads(name, embed_dim, num_heads, num_heads)
        check_count(name, "num_heads", num_heads)
        d = embed_dim // num_heads if head_dim is None else head_dim
        e = d if value_head_dim is None else value_head_dim
        key_dim, value_dim = (embed_dim if size is None else size for size in (kdim, vdim))
        sizes = {"embed_dim": embed_dim, "kdim": key_dim, "vdim": value_dim, "head_dim": d, "value_head_dim": e}
        for what, size in sizes.items():
            check_count(name, what, size)
        self.separate_values = kdim is not None or vdim is not None
        self.in_dim = key_dim + value_dim if self.separate_values else embed_dim
        self.out_dim, self.num_heads, self.is_causal = num_heads * e, num_heads, is_causal
        self.query_weight = nn.Parameter(torch.empty(num_heads * d, embed_dim))
        self.key_weight = nn.Parameter(torch.empty(num_heads * d, key_dim))
        self.value_weight = nn.Parameter(torch.empty(num_heads * e, value_dim))
        for weight in (self.query_weight, self.key_weight, self.value_weight):
            nn.init.xavier_uniform_(weight)

    @property
    def query_dim(self) -> int:
        """Channels of u(x)."""
        return self.query_weight.shape[1]

    @classmethod
    def of_features(cls, num_features: int, value_dim: int) -> Self:
        """One head, all maps the identity, on signals [Φ_j; r_j]: at the query q the integral is q·Σ_j ω_j Φ_j r_jᵀ.

        At q = e_k that is -∂L/∂c_k of L = ½ Σ_j ω_j ‖y_j - Σ_k c_k Φ_jk‖², r the residual; at any other q it is that
        combination of the gradient's entries.

        Args:
            num_features: K.
            value_dim: channels m of a residual.
        """
        kernel = cls(num_features, kdim=num_features, vdim=value_dim, value_head_dim=value_dim)
        with torch.no_grad():
            for weight in kernel.parameters():
                weight.copy_(torch.eye(len(weight)))
        return kernel

    def value_matrices(self) -> Tensor:
        """See `ValueMixing.value_matrices`."""
        weight = self.value_weight
        if self.separate_values:
            weight = torch.cat([weight.new_zeros(weight.shape[0], self.key_weight.shape[1]), weight], dim=1)
        return weight.unflatten(0, (self.num_heads, -1))

    def bilinear_form(self, u: Tensor, query: Tensor) -> BilinearForm:
        """See `Bilinear.bilinear_form`."""
        key, value = u, u
        if self.separate_values:
            key, value = u.split([self.key_weight.shape[1], self.value_weight.shape[1]], dim=-1)
        return BilinearForm(
            self._heads(query, self.query_weight),
            self._heads(key, self.key_weight),
            self._heads(value, self.value_weight),
        )

    def initial_state(self, batch_size: int) -> State:
        """Zeros: Σ k ⊗ v, `(B, H, d, e)`; see `Stateful`."""
        H, like = self.num_heads, self.key_weight
        dtype = wide_dtype(like)
        shape = (batch_size, H, like.shape[0] // H, self.out_dim // H)
        return (torch.zeros(shape, dtype=dtype, device=like.device),)

    def step(self, u: Tensor, state: State, time: Tensor | None = None) -> tuple[Tensor, State]:
        """Adds k ⊗ v to the state and reads it with q; see `Stateful.step`."""
        q, k, v = (part[:, :, 0] for part in self.bilinear_form(u[:, None], u[:, None]))
        total = state[0] + k.to(state[0].dtype)[..., None] * v.to(state[0].dtype)[..., None, :]
        out = (q.to(total.dtype)[..., None, :] @ total)[..., 0, :]
        return out.flatten(1).to(v.dtype), (total,)

    def _heads(self, signal: Tensor, weight: Tensor) -> Tensor:
        projected = nn.functional.linear(signal, weight)
        return projected.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def extra_repr(self) -> str:
        """The sizes that `print(module)` shows."""
        return f"in_dim={self.in_dim}, out_dim={self.out_dim}, num_heads={self.num_heads}, is_causal={self.is_causal}"
