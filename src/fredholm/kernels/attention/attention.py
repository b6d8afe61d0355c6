"""Softmax attention.

Legend
    q_i, k_j     query and key of a head, d channels          σ      scale, 1/√d unless given
    V            [W_V, b_V], one per head

    κ(x_i, y_j, u(x_i), u(y_j)) = exp(σ q_i·k_j) / Z_i · V,   Z_i = ∫ exp(σ q_i·k) dμ

Source: ITNet (arXiv 2606.19538), theorem 2, eq. 57-64 and 92-93. Deviations: biases, heads that share keys and values,
a measure and pair weights that enter both the numerator and Z.
"""

import abc
from typing import NamedTuple, Self, final

import torch
from torch import Tensor, nn

from fredholm._settings import check_count, check_finite
from fredholm.domains import Domain
from fredholm.kernels.attention.rotary import Rotary, check_rotary, rotated, rotated_after, rotated_next
from fredholm.kernels.attention.scored import CachedScored, Dot, ScoreForm, Softmax, appended, num_cached
from fredholm.kernels.heads import HeadProjections, check_heads
from fredholm.kernels.kernel import State


class DotProductForm(NamedTuple):
    """n_ij = exp(scale q_i·k_j), and V ũ_j; each head of keys and values may serve several consecutive query heads."""

    query: Tensor  # (B, H, Nq, d)
    key: Tensor  # (B, H', N, d)
    value: Tensor  # (B, H', N, d_v)
    scale: float

    def scaled(self) -> ScoreForm:
        """The same scores with scale 1: queries are multiplied by the scale."""
        return ScoreForm(self.query * self.scale, self.key, self.value)


class DotProduct(CachedScored):
    """Marker: a softmax of dot products, which fused attention can compute."""

    score = Dot()
    normaliser = Softmax()

    @abc.abstractmethod
    def dot_product_form(self, u: Tensor, domain: Domain, query: Tensor, query_domain: Domain) -> DotProductForm:
        """Queries, keys and values on these signals, `(B, N, d_in)` and `(B, Nq, query_dim)`."""

    @final
    def score_form(self, u: Tensor, domain: Domain, query: Tensor, query_domain: Domain) -> ScoreForm:
        """See `Scored.score_form`."""
        return self.dot_product_form(u, domain, query, query_domain).scaled()


@final
class Attention(DotProduct):
    """κ = softmax(q·k) W_V, head by head; the output projection is the operator's W^O.

    Args:
        embed_dim: channels of u(x), and of the integral; a multiple of `num_heads`.
        num_heads: heads H; head h writes channels h·d … (h + 1)·d - 1, d = embed_dim / H.
        num_kv_heads: heads of keys and values, a divisor of H (grouped-query attention); None: H.
        kdim, vdim: channels of keys and of values where they are not the same signal: u(y) is then [key; value], with
            kdim + vdim channels; None for both: keys and values both read u(y) with embed_dim channels; None for one:
            embed_dim.
        bias: whether the projections to queries, keys and values have biases; that of the values makes κ affine.
        is_causal: κ = 0 where y comes after x; such a kernel can go step by step, its state being all keys and values.
        scale: σ; None: 1/√d.
        rotary: rotary positions: queries and keys are rotated by their times, or by their indices where the domain has
            no times; needs an even d, and points in an order. None: no rotation.

    Raises:
        ValueError: on heads that do not divide, sizes below 1, or rotary positions with an odd d.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int = 1,
        *,
        num_kv_heads: int | None = None,
        kdim: int | None = None,
        vdim: int | None = None,
        bias: bool = True,
        is_causal: bool = False,
        scale: float | None = None,
        rotary: Rotary | None = None,
    ) -> None:
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        check_heads("kernels.Attention", embed_dim, num_heads, num_kv_heads)
        key_dim, value_dim = (embed_dim if size is None else size for size in (kdim, vdim))
        for name, size in (("kdim", key_dim), ("vdim", value_dim)):
            check_count("kernels.Attention", name, size)
        head_dim = embed_dim // num_heads
        check_rotary("kernels.Attention", rotary, head_dim)
        if scale is not None:
            check_finite("kernels.Attention", "scale", scale)
        self.projections = HeadProjections(
            embed_dim,
            key_dim,
            value_dim,
            num_heads,
            num_kv_heads,
            head_dim,
            separate_values=kdim is not None or vdim is not None,
            bias=bias,
        )
        self.in_dim, self.out_dim = self.projections.signal_dim, embed_dim
        self.num_heads, self.is_causal, self.is_affine = num_heads, is_causal, bias
        self.scale = head_dim**-0.5 if scale is None else scale
        self.rotary, self.reads_order = rotary, rotary is not None
        self.pos_dim = None if rotary is None else 1

    @property
    def query_dim(self) -> int:
        """Channels of u(x)."""
        return self.out_dim

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention, *, is_causal: bool = False) -> Self:
        """The kernel of a `torch.nn.MultiheadAttention`, with copies of its weights.

        Its output projection belongs to the operator; `fredholm.from_torch` converts the whole layer.

        Raises:
            ValueError: for `add_bias_kv` and `add_zero_attn`, which add points that the domain does not have.
        """
        for option, is_on in (
            ("add_bias_kv", module.bias_k is not None),
            ("add_zero_attn", bool(module.add_zero_attn)),
        ):
            if is_on:
                raise ValueError(
                    f"kernels.Attention.from_torch: {option} adds a key that no point of the signal has; "
                    "append such a point to the signal and its domain (domains.Union) instead"
                )
        dim, bias = module.embed_dim, module.in_proj_bias
        assert module.kdim is not None
        assert module.vdim is not None
        same = module.kdim == dim and module.vdim == dim
        sizes = {} if same else {"kdim": module.kdim, "vdim": module.vdim}
        kernel = cls(dim, module.num_heads, bias=bias is not None, is_causal=is_causal, **sizes)
        if module.in_proj_weight is not None:
            weights = module.in_proj_weight.chunk(3)
        else:
            weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
        own = kernel.projections
        with torch.no_grad():
            kernel.to(device=weights[0].device, dtype=weights[0].dtype)
            for mine, theirs in zip((own.query_weight, own.key_weight, own.value_weight), weights, strict=True):
                mine.copy_(theirs)
            if bias is not None:
                assert own.query_bias is not None
                assert own.key_bias is not None
                assert own.value_bias is not None
                for mine, theirs in zip((own.query_bias, own.key_bias, own.value_bias), bias.chunk(3), strict=True):
                    mine.copy_(theirs)
        return kernel

    def value_matrices(self) -> Tensor:
        """See `ValueMixing.value_matrices`."""
        return self.projections.value_matrices()

    def dot_product_form(self, u: Tensor, domain: Domain, query: Tensor, query_domain: Domain) -> DotProductForm:
        """See `DotProduct.dot_product_form`."""
        own = self.projections
        q, k = rotated("kernels.Attention", self.rotary, own.queries(query), own.keys(u), domain, query_domain)
        return DotProductForm(q, k, own.values(u), self.scale)

    def continued_form(self, u: Tensor, domain: Domain, state: State | None) -> ScoreForm:
        """See `CachedScored.continued_form`."""
        own = self.projections
        q, k = rotated_after("kernels.Attention", self.rotary, own.queries(u), own.keys(u), domain, num_cached(state))
        return appended(state, DotProductForm(q, k, own.values(u), self.scale).scaled())

    def initial_state(self, batch_size: int) -> State:
        """No keys and no values: two tensors `(B, num_kv_heads, 0, d)`; see `Stateful.initial_state`."""
        own = self.projections
        empty = own.key_weight.new_zeros(batch_size, own.num_kv_heads, 0, own.head_dim)
        return empty, empty

    def step(self, u: Tensor, state: State, time: Tensor | None = None) -> tuple[Tensor, State]:
        """Appends a key and a value, and attends to all so far; see `Stateful.step`."""
        u, own = u[:, None], self.projections
        q, k = rotated_next(self.rotary, own.queries(u), own.keys(u), num_cached(state), time)
        out, state = self.attend(appended(state, DotProductForm(q, k, own.values(u), self.scale).scaled()))
        return out[:, 0], state

    def extra_repr(self) -> str:
        """The options that `print(module)` shows."""
        return f"is_causal={self.is_causal}, scale={self.scale:.4g}, rotary={self.rotary}"
