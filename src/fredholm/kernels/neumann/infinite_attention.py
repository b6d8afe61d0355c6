"""Infinite self-attention.

Legend
    q_i, k_j     query and key of a head, d channels          σ      scale, 1/√d unless given
    φ            relu, gelu or abs                            c      norm of the hop
    V            [W_V, b_V], one a head                       γ      discount of a hop, in (0, 1)

    a_ij = φ(σ q_i·k_j) / c_i,   κ = a V (one hop)   or   κ = c V with c = (I - γ a Ω)⁻¹ γ a (all hops)

Source: InfSA (Infinite Self-Attention), eq. 7, 11 and 12; deviations as in `neumann.py`.
"""

from collections.abc import Sequence
from typing import Literal, final

import torch
from torch import Tensor

from fredholm._settings import refuse_idle
from fredholm.kernels.attention.scored import Score
from fredholm.kernels.kernel import HeadProjections, State, Stateful, check_heads, divided, each_query_head, wide_dtype
from fredholm.kernels.neumann.neumann import (
    Absolute,
    Discount,
    FrobeniusNorm,
    Gelu,
    HopForm,
    HopNorm,
    Neumann,
    Relu,
    RowNorm,
    check_radius,
)

ACTIVATIONS: dict[str, Score] = {"relu": Relu(), "gelu": Gelu(), "abs": Absolute()}
"""φ, by name."""


@final
class InfiniteAttention(Neumann, Stateful):
    """Attention along all chains of points: κ = (γA + γ²A² + …) W_V, or κ = A W_V, head by head.

    A is φ(σ q·k) over a norm. The integral y solves y = γA(v + y), v the values: each point reads the values of the
    others, and what those have read. The output projection is the operator's W^O.

    Args:
        embed_dim: channels of u(x), and of the integral; a multiple of `num_heads`.
        num_heads: heads H; head h writes channels h·d … (h + 1)·d - 1, d = embed_dim / H.
        num_kv_heads: heads of keys and values, a divisor of H; None: H.
        form: "resolvent": the whole series. "hop": A alone, without γ: the paper's layer, whose model sums over layers.
        activation: φ; "gelu" has negative scores too.
        normaliser: "frobenius": c is the Hilbert-Schmidt norm of the hop; rows of A may then sum to more than 1.
            "rows": c_i is the integral of ``|φ|`` over the row: γA is substochastic. Or a `HopNorm` of one's own.
        gamma: γ, a number for all heads or one for each; refused with a hop, which has none.
        learn_gamma: whether γ is learned, as a sigmoid, starting there.
        bias: whether queries, keys and values have constants; that of the values makes the kernel affine.
        is_causal: a = 0 where y comes after x, and the norm of a row is that of the points up to x. Such a kernel can
            go step by step, its state being all keys, all v + y (of a hop: v), and the norm.
        scale: σ; None: 1/√d. It cancels in a hop of relu or abs under a norm of the library's, and is refused there.

    Raises:
        ValueError: on heads that do not divide, sizes below 1, γ outside (0, 1), options that do not exist, or those
            without effect.
    """

    pos_dim = None
    sees_simultaneous = True
    has_growing_state = True

    def __init__(
        self,
        embed_dim: int,
        num_heads: int = 1,
        *,
        num_kv_heads: int | None = None,
        form: Literal["resolvent", "hop"] = "resolvent",
        activation: Literal["relu", "gelu", "abs"] = "relu",
        normaliser: Literal["frobenius", "rows"] | HopNorm = "frobenius",
        gamma: float | Sequence[float] = 0.7,
        learn_gamma: bool = False,
        bias: bool = True,
        is_causal: bool = False,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        check_heads("kernels.InfiniteAttention", embed_dim, num_heads, num_kv_heads)
        _check_choice("form", form, ("resolvent", "hop"))
        _check_choice("activation", activation, tuple(ACTIVATIONS))
        if not isinstance(normaliser, HopNorm):
            _check_choice("normaliser", normaliser, ("frobenius", "rows"))
            normaliser = FrobeniusNorm() if normaliser == "frobenius" else RowNorm()
        name = "kernels.InfiniteAttention"
        if form == "hop":
            hop = "form='hop', which is not discounted"
            refuse_idle(name, InfiniteAttention, hop, "take form='resolvent'", gamma=gamma, learn_gamma=learn_gamma)
        if activation != "gelu" and isinstance(normaliser, FrobeniusNorm | RowNorm):
            cancels = f"activation={activation!r}, where the norm divides it out"
            refuse_idle(name, InfiniteAttention, cancels, "take activation='gelu'", scale=scale)
        head_dim = embed_dim // num_heads
        self.projections = HeadProjections(
            embed_dim, embed_dim, embed_dim, num_heads, num_kv_heads, head_dim, bias=bias
        )
        self.discount = Discount(gamma, num_heads, learn_gamma) if form == "resolvent" else None
        self.activation, self.score, self.norm = activation, ACTIVATIONS[activation], normaliser
        self.in_dim = self.out_dim = embed_dim
        self.num_heads, self.is_causal, self.is_affine = num_heads, is_causal, bias
        self.scale = head_dim**-0.5 if scale is None else scale

    def value_matrices(self) -> Tensor:
        """See `ValueMixing.value_matrices`."""
        return self.projections.value_matrices()

    def hop_form(self, u: Tensor, query: Tensor | None) -> HopForm:
        """See `Neumann.hop_form`."""
        own = self.projections
        at_points = self.scale * own.queries(u)
        key, value = own.keys(u), own.values(u)
        if query is None:
            return HopForm(at_points, None, key, value)
        return HopForm(self.scale * own.queries(query), at_points, key, value)

    def initial_state(self, batch_size: int) -> State:
        """No keys `(B, num_kv_heads, 0, d)`, no v + y `(B, H, 0, d)` (of a hop v, as keys), and norm 0 `(B, H)`."""
        own = self.projections
        like, wide = own.key_weight, wide_dtype(own.key_weight)
        keys = like.new_zeros(batch_size, own.num_kv_heads, 0, own.head_dim)
        heads = own.num_kv_heads if self.discount is None else self.num_heads
        carried = torch.zeros(batch_size, heads, 0, own.head_dim, dtype=wide, device=like.device)
        return keys, carried, carried.new_zeros(batch_size, self.num_heads)

    def step(self, u: Tensor, state: State, time: Tensor | None = None) -> tuple[Tensor, State]:
        """Solves y = γA(v + y) for the next point, given those before; see `Stateful.step`.

        Raises:
            ValueError: when the series diverges, under a norm of one's own.
        """
        form = self.hop_form(u[:, None], None)
        keys = torch.cat([state[0].to(form.key.dtype), form.key], dim=2)
        with torch.autocast(u.device.type, enabled=False):
            wide = state[1].dtype
            query, value = form.query.to(wide), form.value.to(wide)
            scores = self.score.value(query @ each_query_head(keys.to(wide), self.num_heads).mT, None)
            norm = self.norm.following(scores, state[2])
            hop = divided(scores, norm[..., None, None])  # (B, H, 1, n)
            if self.discount is None:
                carried = torch.cat([state[1], value], dim=2)
                out = hop @ each_query_head(carried, self.num_heads)
            else:
                hop = self.discount().to(wide)[:, None, None] * hop
                past, here = hop[..., :-1], hop[..., -1:]
                if not self.norm.is_contractive:
                    check_radius(type(self).__name__, here)
                value = each_query_head(value, self.num_heads)
                out = (past @ state[1] + here * value) / (1 - here)
                carried = torch.cat([state[1], value + out], dim=2)
        return out.flatten(1).to(form.value.dtype), (keys, carried, norm)

    def extra_repr(self) -> str:
        """The options that `print(module)` shows."""
        form = "hop" if self.discount is None else "resolvent"
        return f"form={form}, activation={self.activation}, normaliser={self.norm}, is_causal={self.is_causal}"


def _check_choice(name: str, got: object, allowed: tuple[str, ...]) -> None:
    if got not in allowed:
        options = " or ".join(map(repr, allowed))
        raise ValueError(f"kernels.InfiniteAttention: {name} must be {options}; got {got!r}")
