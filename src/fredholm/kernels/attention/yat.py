"""The Yat product, alignment squared over distance squared, as a score: against prototypes, and in attention.

Legend
    x, w; q, k   a point and a prototype; a query and a key, d channels
    b            a constant of the prototype or key; 0 unless given         s      scale by the number of units, or 1
    ε            softening, > 0: keeps the response finite where x = w      ρ      normaliser: softmax, softermax, ...
    V            [W_V, b_V], one per head                                   v_j    value of a prototype

    yat(x, w) = (x·w + b)² / (‖x - w‖² + ε)

    `Yat`            κ(x_i, y_j, u(x_i), u(y_j)) = ρ_j(s yat(q_i, w_j)) · [0 | I],   u(y_j) = [w_j; b_j; v_j]
    `YatAttention`   κ(x_i, y_j, u(x_i), u(y_j)) = ρ_j(yat(q_i, k_j)) · V

For b = 0 the product is a positive definite kernel, symmetric, unchanged by the sign of both arguments, and at most
‖w‖⁴/ε + ‖w‖², at x = (1 + ε/‖w‖²) w. The integral of `Yat` over n prototypes is Σ_j ρ(s yat(q_i, w_j)) v_j: a layer of
Yat units and the linear map after it; with v_j the j-th unit vector the layer alone (`layers.YatDense`).

Source: Yat (No More DeLuLu), eq. 1, sections 2.1 and 2.2 and appendix B. Deviations: the paper names ‖w‖⁴/ε, at x = w,
as the maximum; values v_j (the paper sums units themselves, v_j = 1, though its networks map them linearly),
normalisers other than softmax, biases, heads that share keys and values, rotary positions, a measure and pair weights
that enter the numerator and the sum below it.
"""

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Self, final

import torch
from torch import Tensor, nn

from fredholm._precision import at_least_float32, wide_dtype, without_autocast
from fredholm._settings import check_count, check_number, check_positive
from fredholm.domains import Domain
from fredholm.kernels.attention.normalisers import Unnormalised
from fredholm.kernels.attention.rotary import Rotary, check_rotary, rotated, rotated_after, rotated_next
from fredholm.kernels.attention.scored import (
    CachedScored,
    Normaliser,
    Score,
    Scored,
    ScoreForm,
    Softmax,
    appended,
    num_cached,
)
from fredholm.kernels.heads import HeadProjections, check_heads
from fredholm.kernels.kernel import State


def yat(x: Tensor, w: Tensor, b: Tensor | None = None, epsilon: float | Tensor = 1e-3) -> Tensor:
    """(x·w + b)² / (‖x - w‖² + ε) for every point and every prototype.

    The distance is ‖x‖² + ‖w‖² - 2 x·w, not below 0. Its rounding error is that of ‖x‖² + ‖w‖², so that an ε far below
    ‖x‖² 10⁻⁷ in float32 has no effect. Everything is computed in at least float32, under autocast too. NaN gives NaN;
    an infinite x or w gives NaN.

    Args:
        x: points, `(..., d)`.
        w: prototypes, `(n, d)`.
        b: a constant per prototype, `(n,)`, in the same units as x·w.
        epsilon: ε > 0, a number or a 0-dim tensor (which is not checked).

    Returns:
        `(..., n)` in the dtype that x and w promote to.

    Raises:
        ValueError: on shapes that do not fit and numbers ε that are not positive and finite.
        TypeError: for float16, whose range is too small for such squares, and for dtypes that are not real floating.
    """
    _check_shapes(x, w, b)
    if not isinstance(epsilon, Tensor):
        check_softening("kernels.yat", epsilon)
    dtype = torch.promote_types(x.dtype, w.dtype)
    check_range("kernels.yat", dtype)
    working = wide_dtype(x, w)
    with without_autocast(x):
        x, w = x.to(working), w.to(working)
        squares = x.square().sum(-1, keepdim=True), w.square().sum(-1)
        return response(x @ w.mT, *squares, None if b is None else b.to(working), epsilon).to(dtype)


def response(
    dot: Tensor, query_square: Tensor, key_square: Tensor, b: Tensor | None, epsilon: float | Tensor
) -> Tensor:
    """(S + b)² / (max(‖q‖² + ‖k‖² - 2 S, 0) + ε) from S = q·k and the squares, in their dtype; all broadcast."""
    distance = query_square + key_square - 2 * dot
    shifted = dot if b is None else dot + b
    return shifted.square() / (distance.clamp_min(0) + epsilon)


def check_range(name: str, dtype: torch.dtype) -> None:
    """Raises a TypeError that begins with `name` for float16 and for dtypes that are not real floating."""
    if dtype == torch.float16:
        raise TypeError(
            f"{name}: got float16, which ends at 65504, below the squares of ordinary inputs; use bfloat16 or float32"
        )
    if not dtype.is_floating_point:
        raise TypeError(f"{name}: expected float32, float64 or bfloat16; got {dtype}")


def check_softening(name: str, epsilon: float) -> None:
    """Raises a ValueError that begins with `name` unless ε is finite and at least the smallest normal float32."""
    check_number(name, "epsilon", epsilon)
    if not (math.isfinite(epsilon) and epsilon >= torch.finfo(torch.float32).tiny):
        raise ValueError(f"{name}: epsilon must be finite and above 0 (in float32, from 1.2e-38 on); got {epsilon}")


def _check_shapes(x: Tensor, w: Tensor, b: Tensor | None) -> None:
    if x.ndim < 1 or w.ndim != 2 or x.shape[-1] != w.shape[-1]:
        raise ValueError(
            f"kernels.yat: expected points (..., d) and prototypes (n, d); got {tuple(x.shape)} and {tuple(w.shape)}"
        )
    if b is not None and b.shape != w.shape[:1]:
        raise ValueError(f"kernels.yat: expected b of shape ({w.shape[0]},), one a prototype; got {tuple(b.shape)}")


@final
class Softening(nn.Module):
    """ε > 0 in the denominator of a Yat kernel, in the units of a squared distance.

    A fixed ε is no parameter and not in the state dict: it stays the float64 number it was made from, whatever dtype
    the module is moved to. A learned ε is softplus(ρ) of one parameter ρ, in at least float32.

    Args:
        epsilon: ε, or its start; at least 1.2e-38, the smallest normal float32.
        learned: whether it is a parameter.

    Attributes:
        raw: ρ, `(1,)`, where ε is learned; else None.

    Raises:
        ValueError: unless `epsilon` is finite and above 0.
    """

    value: Tensor | None

    def __init__(self, epsilon: float, learned: bool = False) -> None:
        super().__init__()
        check_softening("kernels.Softening", epsilon)
        self.epsilon, self.learned = float(epsilon), learned
        # log(exp(ε) - 1), which neither overflows nor cancels
        start = epsilon + math.log(-math.expm1(-epsilon))
        self.raw = nn.Parameter(torch.tensor([start])) if learned else None
        self.register_buffer("value", None if learned else self._number(), persistent=False)

    def forward(self) -> Tensor:
        """ε, 0-dim."""
        if self.raw is None:
            assert self.value is not None
            return self.value
        raw = at_least_float32(self.raw[0])
        return nn.functional.softplus(raw).clamp_min(torch.finfo(torch.float32).tiny)

    def _number(self, device: torch.device | None = None) -> Tensor:
        return torch.tensor(self.epsilon, dtype=torch.float64, device=device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # a fixed ε follows the device only: not a rounded dtype, nor the empty memory of `to_empty`
        super()._apply(fn, recurse)
        if self.value is not None:
            self.value = self._number(self.value.device)
        return self

    def extra_repr(self) -> str:
        """The options that `print(module)` shows."""
        return f"epsilon={self.epsilon:.4g}, learned={self.learned}"


@final
class UnitScale(nn.Module):
    """s = (n / log(1 + n))^α, > 0, in at least float32.

    Args:
        num_units: n, >= 1.

    Attributes:
        alpha: α, `(1,)`.

    Raises:
        ValueError: on a number of units below 1.
    """

    def __init__(self, num_units: int) -> None:
        super().__init__()
        check_count("kernels.UnitScale", "num_units", num_units)
        self.num_units = num_units
        self.alpha = nn.Parameter(torch.ones(1))

    def forward(self) -> Tensor:
        """s, 0-dim."""
        base = self.num_units / math.log1p(self.num_units)
        return torch.exp(math.log(base) * at_least_float32(self.alpha[0]))

    def extra_repr(self) -> str:
        """The options that `print(module)` shows."""
        return f"num_units={self.num_units}"


@final
@dataclasses.dataclass(frozen=True)
class YatScore(Score):
    """s = (q·k + b)² / (‖q - k‖² + ε); its slopes are 2 r and -r² with r = (q·k + b) / (‖q - k‖² + ε)."""

    reads_distance = True
    is_nonnegative = True
    dot_gain, distance_gain = 2.0, -1.0

    def value(self, dot: Tensor, distance: Tensor | None, *numbers: Tensor) -> Tensor:
        """See `Score.value`."""
        assert distance is not None
        return dot.square() / distance

    def in_tile(self, dot: Tensor, distance: Tensor | None, numbers: Sequence[Tensor]) -> tuple[Tensor, Any]:
        """See `Score.in_tile`; keeps r."""
        assert distance is not None
        ratio = torch.div(dot, distance, out=distance)
        return dot.mul_(ratio), ratio

    def pull(self, kept: Any, grad: Tensor, numbers: Sequence[Tensor]) -> tuple[Tensor, Tensor | None, list[Tensor]]:
        """See `Score.pull`."""
        by_dot = grad.mul_(kept)
        return by_dot, torch.mul(by_dot, kept, out=kept), []


class YatScored(Scored):
    """Marker: a scored kernel of Yat products. A factor c of all scores is √c q, √c k, c b and c ε in its form."""

    score = YatScore()

    @property
    @abc.abstractmethod
    def product_dim(self) -> int:
        """Channels of the queries and keys of a head."""


@final
class Yat(YatScored):
    """κ = s (q·w + b)² / (‖q - w‖² + ε): points against prototypes, or points against points.

    The signal at a key is [w; v], or [w; b; v] with `reads_bias`; at a query it is q. Positions are not read, and the
    measure counts points: the integral is a sum over prototypes, however many there are.

    Args:
        dim: channels d of queries and prototypes.
        value_dim: channels of v, and of the integral.
        reads_bias: whether the signal at a key has its constant b, one channel between w and v.
        num_units: n of the scale s = (n / log(1 + n))^α with learned α; None: s = 1.
        epsilon: ε > 0.
        learn_epsilon: whether ε is learned, as a softplus, starting at `epsilon`.
        normaliser: ρ; None: no normaliser.

    Raises:
        ValueError: on sizes below 1, or an epsilon that is not positive and finite.
    """

    pos_dim = None
    is_causal = False
    reads_query = True
    num_heads = 1

    def __init__(
        self,
        dim: int,
        value_dim: int,
        *,
        reads_bias: bool = False,
        num_units: int | None = None,
        epsilon: float = 1e-3,
        learn_epsilon: bool = False,
        normaliser: Normaliser | None = None,
    ) -> None:
        super().__init__()
        for name, size in (("dim", dim), ("value_dim", value_dim)):
            check_count("kernels.Yat", name, size)
        self.dim, self.reads_bias = dim, reads_bias
        self.in_dim, self.out_dim = dim + reads_bias + value_dim, value_dim
        self.softening = Softening(epsilon, learn_epsilon)
        self.scale = None if num_units is None else UnitScale(num_units)
        self.normaliser = Unnormalised() if normaliser is None else normaliser

    @property
    def query_dim(self) -> int:
        """Channels of u(x): those of a prototype."""
        return self.dim

    @property
    def product_dim(self) -> int:
        """Channels of a prototype."""
        return self.dim

    def value_matrices(self) -> Tensor:
        """[0 | I]; see `ValueMixing.value_matrices`."""
        chosen = torch.eye(self.in_dim, device=self._device)[-self.out_dim :]
        return chosen[None]

    def score_form(self, u: Tensor, domain: Domain, query: Tensor, query_domain: Domain) -> ScoreForm:
        """See `Scored.score_form`."""
        key, rest = u[:, None].split([self.dim, self.in_dim - self.dim], dim=-1)
        bias, value = (rest[..., 0], rest[..., 1:]) if self.reads_bias else (None, rest)
        query, epsilon = query[:, None], self.softening()
        if self.scale is not None:
            s = self.scale().to(wide_dtype(u))
            root = s.sqrt()
            query, key, epsilon = query * root, key * root, epsilon * s
            bias = None if bias is None else bias * s
        check_range("kernels.Yat", query.dtype)
        return ScoreForm(query, key, value, bias, epsilon)

    @property
    def _device(self) -> torch.device | None:
        tensor = next(self.parameters(), next(self.buffers(), None))
        return None if tensor is None else tensor.device

    def extra_repr(self) -> str:
        """The options that `print(module)` shows."""
        return f"reads_bias={self.reads_bias}, normaliser={self.normaliser}"


@final
class YatAttention(YatScored, CachedScored):
    """κ = ρ(yat(q, k)) W_V, head by head; the output projection is the operator's W^O.

    Scores grow with the square of queries and keys; where these are random with coordinates of variance σ², a score has
    mean σ²/2 in any dimension. Queries and keys start with coordinates of variance `score_gain`, for a signal whose
    channels have variance 1.

    Args:
        embed_dim: channels of u(x), and of the integral; a multiple of `num_heads`.
        num_heads: heads H; head h writes channels h·d … (h + 1)·d - 1, d = embed_dim / H.
        num_kv_heads: heads of keys and values, a divisor of H; None: H.
        normaliser: ρ; None: softmax. With an elementwise one the integral is a sum that grows with the number of
            points.
        epsilon: ε > 0.
        learn_epsilon: whether ε is learned, as a softplus, starting at `epsilon`.
        rotary: rotary positions: queries and keys are rotated by their times, or by their indices where the domain has
            no times; needs an even d, and points in an order. None: no rotation.
        bias: whether the projections to queries, keys and values have biases; that of the values makes κ affine.
        is_causal: κ = 0 where y comes after x; such a kernel can go step by step, its state being all keys and values.
        score_gain: see above.

    Raises:
        ValueError: on heads that do not divide, sizes below 1, or numbers out of range.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int = 1,
        *,
        num_kv_heads: int | None = None,
        normaliser: Normaliser | None = None,
        epsilon: float = 1e-3,
        learn_epsilon: bool = False,
        rotary: Rotary | None = None,
        bias: bool = False,
        is_causal: bool = False,
        score_gain: float = 1.0,
    ) -> None:
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        check_heads("kernels.YatAttention", embed_dim, num_heads, num_kv_heads)
        head_dim = embed_dim // num_heads
        check_rotary("kernels.YatAttention", rotary, head_dim)
        check_positive("kernels.YatAttention", "score_gain", score_gain)
        self.projections = HeadProjections(
            embed_dim, embed_dim, embed_dim, num_heads, num_kv_heads, head_dim, bias=bias
        )
        for weight in (self.projections.query_weight, self.projections.key_weight):
            nn.init.normal_(weight, std=(score_gain / embed_dim) ** 0.5)
        self.softening = Softening(epsilon, learn_epsilon)
        self.normaliser = Softmax() if normaliser is None else normaliser
        self.rotary, self.reads_order = rotary, rotary is not None
        self.pos_dim = None if rotary is None else 1
        self.in_dim = self.out_dim = embed_dim
        self.num_heads, self.is_causal, self.is_affine = num_heads, is_causal, bias

    @property
    def product_dim(self) -> int:
        """See `YatScored.product_dim`."""
        return self.projections.head_dim

    def value_matrices(self) -> Tensor:
        """See `ValueMixing.value_matrices`."""
        return self.projections.value_matrices()

    def score_form(self, u: Tensor, domain: Domain, query: Tensor, query_domain: Domain) -> ScoreForm:
        """See `Scored.score_form`."""
        check_range("kernels.YatAttention", query.dtype)
        own = self.projections
        q, k = rotated("kernels.YatAttention", self.rotary, own.queries(query), own.keys(u), domain, query_domain)
        return self._form(q, k, u)

    def continued_form(self, u: Tensor, domain: Domain, state: State | None) -> ScoreForm:
        """See `CachedScored.continued_form`."""
        check_range("kernels.YatAttention", u.dtype)
        own, before = self.projections, num_cached(state)
        q, k = rotated_after("kernels.YatAttention", self.rotary, own.queries(u), own.keys(u), domain, before)
        return appended(state, self._form(q, k, u))

    def _form(self, query: Tensor, key: Tensor, u: Tensor) -> ScoreForm:
        return ScoreForm(query, key, self.projections.values(u), None, self.softening())

    def initial_state(self, batch_size: int) -> State:
        """No keys and no values: two tensors `(B, num_kv_heads, 0, d)`; see `Stateful.initial_state`."""
        own = self.projections
        empty = own.key_weight.new_zeros(batch_size, own.num_kv_heads, 0, own.head_dim)
        return empty, empty

    def step(self, u: Tensor, state: State, time: Tensor | None = None) -> tuple[Tensor, State]:
        """Appends a key and a value, and attends to all so far; see `Stateful.step`."""
        check_range("kernels.YatAttention", u.dtype)
        u, own = u[:, None], self.projections
        q, k = rotated_next(self.rotary, own.queries(u), own.keys(u), num_cached(state), time)
        out, state = self.attend(appended(state, self._form(q, k, u)))
        return out[:, 0], state

    def extra_repr(self) -> str:
        """The options that `print(module)` shows."""
        return f"is_causal={self.is_causal}, normaliser={self.normaliser}, rotary={self.rotary}"
