"""Yat attention.

Legend
    q_i, k_j     query and key of a head, d channels, turned by their places where positions are rotary
    ρ            normaliser: softmax, softermax, ...
    V            [W_V, b_V], one a head

    κ(x_i, y_j, u(x_i), u(y_j)) = ρ_j((q_i·k_j)² / (‖q_i - k_j‖² + ε)) · V

Source: Yat (No More DeLuLu), section 2.2 and appendix B. Deviations: normalisers other than softmax, biases, heads that
share keys and values, rotary positions, a measure and pair weights that enter the numerator and the sum below it.
"""

from typing import final

import torch
from torch import Tensor

from fredholm.domains import Domain, order_times
from fredholm.kernels.attention.head_projections import HeadProjections, check_heads
from fredholm.kernels.attention.normalisers import Normaliser, Softmax
from fredholm.kernels.attention.rotary import check_rotary, rotate
from fredholm.kernels.attention.yat import StatefulYat, YatForm, yat_scores
from fredholm.kernels.attention.yat_product import Softening
from fredholm.kernels.heads import each_query_head
from fredholm.kernels.kernel import State


@final
class YatAttention(StatefulYat):
    """κ = ρ(yat(q, k)) W_V, head by head; the output projection is the operator's W^O.

    Scores grow with the square of queries and keys; where these are random with coordinates of variance σ², a score has
    mean σ²/2 in any dimension. Queries and keys start with coordinates of variance `score_gain`, for a signal whose
    channels have variance 1.

    Args:
        embed_dim: channels of u(x), and of the integral; a multiple of `num_heads`.
        num_heads: heads H; head h writes channels h·d … (h + 1)·d - 1, d = embed_dim / H.
        num_kv_heads: heads of keys and values, a divisor of H; None: H.
        normaliser: ρ; None: softmax. With an elementwise one the integral is a sum, over as many points as there are.
        epsilon: ε > 0.
        learn_epsilon: whether ε is learned (softplus), starting there.
        rotary_base: base of rotary positions, which turn queries and keys by their times, or their indices where the
            domain has none; needs an even d, and points in an order. None: no positions.
        bias: whether queries, keys and values have constants; that of the values makes the kernel affine.
        is_causal: κ = 0 where y comes after x; such a kernel can go step by step, its state being all keys and values.
        score_gain: see above.

    Raises:
        ValueError: on heads that do not divide, sizes below 1, or numbers out of range.
    """

    reads_query = True
    sees_simultaneous = True
    has_growing_state = True

    def __init__(
        self,
        embed_dim: int,
        num_heads: int = 1,
        *,
        num_kv_heads: int | None = None,
        normaliser: Normaliser | None = None,
        epsilon: float = 1e-3,
        learn_epsilon: bool = False,
        rotary_base: float | None = None,
        bias: bool = False,
        is_causal: bool = False,
        score_gain: float = 1.0,
    ) -> None:
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        check_heads("kernels.YatAttention", embed_dim, num_heads, num_kv_heads)
        head_dim = embed_dim // num_heads
        check_rotary("kernels.YatAttention", rotary_base, head_dim)
        if not 0 < score_gain < float("inf"):
            raise ValueError(f"kernels.YatAttention: score_gain must be positive and finite; got {score_gain}")
        self.projections = HeadProjections(
            embed_dim, embed_dim, embed_dim, num_heads, num_kv_heads, head_dim, bias=bias
        )
        for weight in (self.projections.query_weight, self.projections.key_weight):
            torch.nn.init.normal_(weight, std=(score_gain / embed_dim) ** 0.5)
        self.softening = Softening(epsilon, learn_epsilon)
        self.normaliser = Softmax() if normaliser is None else normaliser
        self.rotary_base = rotary_base
        self.pos_dim = None if rotary_base is None else 1
        self.in_dim = self.out_dim = embed_dim
        self.num_heads, self.is_causal, self.is_affine = num_heads, is_causal, bias

    def value_matrices(self) -> Tensor:
        """See `ValueMixing.value_matrices`."""
        return self.projections.value_matrices()

    def yat_form(self, u: Tensor, domain: Domain, query: Tensor, query_domain: Domain) -> YatForm:
        """See `YatScored.yat_form`."""
        if self.rotary_base is not None:
            for where in (domain, query_domain):
                if where.times is None and not where.has_index_order:
                    raise ValueError(
                        f"kernels.YatAttention: rotary positions turn by times, or by places in an order; {where!r} "
                        "has neither; give a Sequence or a Grid, or build the kernel with rotary_base=None"
                    )
        return self._form(u, query, *reversed(order_times(query_domain, domain)))

    def continued_form(self, u: Tensor, domain: Domain, state: State | None) -> YatForm:
        """See `StatefulYat.continued_form`."""
        place = order_times(domain, domain)[0]
        if state is None:
            return self._form(u, u, place, place)
        if domain.times is None:
            place = place + state[0].shape[2]
        return _appended(state, self._form(u, u, place, place))

    def _form(self, u: Tensor, query: Tensor, place: Tensor, query_place: Tensor) -> YatForm:
        own = self.projections
        q, k = own.queries(query), own.keys(u)
        if self.rotary_base is not None:
            q, k = rotate(q, query_place, self.rotary_base), rotate(k, place, self.rotary_base)
        return YatForm(q, k, own.values(u), None, self.softening())

    def initial_state(self, batch_size: int) -> State:
        """No keys and no values: two tensors `(B, num_kv_heads, 0, d)`; see `Stateful.initial_state`."""
        own = self.projections
        empty = own.key_weight.new_zeros(batch_size, own.num_kv_heads, 0, own.head_dim)
        return empty, empty

    def step(self, u: Tensor, state: State, time: Tensor | None = None) -> tuple[Tensor, State]:
        """Appends a key and a value, and attends to all so far; see `Stateful.step`."""
        u = u[:, None]
        if time is None:
            time = torch.full((1,), state[0].shape[2], dtype=torch.float64, device=u.device)
        form = _appended(state, self._form(u, u, time[:, None], time[:, None]))
        density = self.normaliser.density(yat_scores(form), form.key.new_ones(()))
        out = density.to(form.value.dtype) @ each_query_head(form.value, self.num_heads)
        return out.flatten(1), (form.key, form.value)

    def extra_repr(self) -> str:
        """The options that `print(module)` shows."""
        return f"is_causal={self.is_causal}, normaliser={self.normaliser}, rotary_base={self.rotary_base}"


def _appended(state: State, form: YatForm) -> YatForm:
    """A form with the state's keys and values before its own, in the dtype of those."""
    keys, values = state[0].to(form.key.dtype), state[1].to(form.value.dtype)
    return form._replace(key=torch.cat([keys, form.key], dim=2), value=torch.cat([values, form.value], dim=2))
