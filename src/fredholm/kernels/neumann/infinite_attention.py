"""Infinite attention: series of hops along all chains of points.

Legend
    q_i, k_j    query and key of a head, d channels         φ      relu, gelu or abs
    s_ij        score of a pair, σ q_i·k_j                  σ      scale, 1/√d unless given
    m_ij, ω_j   pair weight, 0 where hidden, and mass       γ      discount of a hop, in (0, 1)
    c_i         norm of a hop                               V      value matrix
    n_i         number of leading points that a query may see; all, unless causal

    a_ij = φ(s_ij) m_ij / c_i   (0 where c_i = 0),   (A f)_i = Σ_j ω_j a_ij f_j

    one hop:      κ = a V
    the series:   κ = c V  with  Σ_{t ≥ 1} (γA)^t = (I - γA)⁻¹ - I = c Ω,   c = γ a + γ² a Ω a + … = (I - γ a Ω)⁻¹ γ a

At a query x that is no point, c(x, ·) = γ a(x, ·) + γ a(x, ·) Ω c: only the first hop starts there. A learned γ is
sigmoid(ρ), one ρ per head.

Source: InfSA (Infinite Self-Attention), section 3.2, eq. 7, 11 and 12. Deviations: values have a constant, heads may
share keys and values; there are a measure, masks, pair weights, causality and other queries; no ε in the denominator,
since the hop is 0 where c = 0; the norm of the past for causal kernels; the norm of rows.
"""

import abc
import dataclasses
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, ClassVar, Literal, NamedTuple, Self, final

import torch
from torch import Tensor, nn

from fredholm._precision import at_least_float32, wide_dtype, without_autocast
from fredholm._settings import check_finite, refuse_idle
from fredholm.domains import Domain, preceding_counts
from fredholm.domains.checks import values_can_be_read
from fredholm.kernels.attention.scored import Score, ValueMixing
from fredholm.kernels.heads import HeadProjections, check_heads, each_query_head
from fredholm.kernels.kernel import State, Stateful, divided
from fredholm.kernels.linear_algebra import solve_each

CLOSEST = 1e-6
"""Smallest distance of a learned γ from 0 and 1: at 1 a series need not converge."""

LEAST_SQUARES = 1e-280
"""Smallest c² of a nonzero hop: gradients are of size 1 / c², which must not overflow."""


@final
class Discount(nn.Module):
    """γ in (0, 1), one for each head.

    A fixed γ is no parameter and not in the state dict: it stays the float64 numbers it was made from, whatever dtype
    the module is moved to. A learned γ is the sigmoid of parameters, in at least float32, kept 1e-6 away from 0 and 1.

    Args:
        gamma: γ, or its start; a number for all heads, or one for each.
        num_heads: heads H.
        learned: whether it is a parameter.

    Attributes:
        raw: ρ, `(H,)`, where γ is learned; else None.

    Raises:
        ValueError: unless every number is in (0, 1) and there is one for all heads or for each.
        TypeError: on a gamma that is neither a number nor a sequence of numbers.
    """

    value: Tensor | None

    def __init__(self, gamma: float | Sequence[float], num_heads: int, learned: bool = False) -> None:
        super().__init__()
        listed = gamma if isinstance(gamma, Sequence) and not isinstance(gamma, str) else [gamma]
        if not all(isinstance(g, Real) for g in listed):
            raise TypeError(f"infinite attention: gamma must be a number, or one for each head; got {gamma!r}")
        numbers = [float(g) for g in listed] * (1 if isinstance(gamma, Sequence) else num_heads)
        if len(numbers) != num_heads:
            raise ValueError(
                f"infinite attention: gamma must be a number, or one for each of {num_heads} heads; got {len(numbers)}"
            )
        if not all(0 < g < 1 for g in numbers):
            raise ValueError(f"infinite attention: gamma must be in (0, 1), so that the series converges; got {gamma}")
        self.gamma, self.learned = tuple(numbers), learned
        start = self._numbers()
        self.raw = nn.Parameter(torch.logit(start).to(torch.get_default_dtype())) if learned else None
        self.register_buffer("value", None if learned else start, persistent=False)

    def forward(self) -> Tensor:
        """γ, `(H,)`."""
        if self.raw is None:
            assert self.value is not None
            return self.value
        raw = at_least_float32(self.raw)
        return torch.sigmoid(raw).clamp(CLOSEST, 1 - CLOSEST)

    def _numbers(self, device: torch.device | None = None) -> Tensor:
        return torch.tensor(self.gamma, dtype=torch.float64, device=device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # a fixed γ follows the device only: not a rounded dtype, nor the empty memory of `to_empty`
        super()._apply(fn, recurse)
        if self.value is not None:
            self.value = self._numbers(self.value.device)
        return self

    def extra_repr(self) -> str:
        """The options that `print(module)` shows."""
        same = len(set(self.gamma)) == 1
        shown = f"{self.gamma[0]:.4g}" if same else "(" + ", ".join(f"{g:.4g}" for g in self.gamma) + ")"
        return f"gamma={shown}, learned={self.learned}"


class HopScores(NamedTuple):
    """Inputs of a hop norm, in at least float32. B' is 1 or B."""

    query: Tensor  # φ at the queries, (B, H, Nq, N)
    own: Tensor  # φ among the points themselves, (B, H, N, N)
    mass: Tensor  # ω: (B', 1, 1, N)
    seen: Tensor | None  # n: (B', Nq); None: all


class HopNorm(abc.ABC):
    """Norm c of a hop; a frozen value.

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
            row: its scores, `(B, H, 1, n)`, for the n points so far, itself included.
            before: c of the previous row, `(B, H)`; 0 for the first.

        Returns:
            `(B, H)`.
        """


@final
@dataclasses.dataclass(frozen=True)
class FrobeniusNorm(HopNorm):
    """c² = Σ_ij ω_i ω_j φ_ij²: the Hilbert-Schmidt norm of the hop in L²(μ), one number per head.

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
        return block_norm(squares).to(scores.own.dtype)

    def following(self, row: Tensor, before: Tensor) -> Tensor:
        """See `HopNorm.following`."""
        squares = before.double().square() + row.double().square().sum((-2, -1))
        return block_norm(squares).to(row.dtype)


def block_norm(squares: Tensor) -> Tensor:
    """c from c², in float64; 0, with gradient 0, for c² below `LEAST_SQUARES`."""
    is_nothing = squares < LEAST_SQUARES
    return torch.where(is_nothing, 0.0, torch.where(is_nothing, 1.0, squares).sqrt())


def over_own_power(rows: Tensor) -> Tensor:
    """Divides each row `(..., d)` by a power of two of about its largest entry.

    For queries the factor cancels under row norms with a homogeneous score, and keeps the scores of a tiny row from
    underflow; for masses it cancels under any norm.
    """
    size = rows.detach().abs().amax(-1, keepdim=True)
    exponent = torch.frexp(torch.where((size > 0) & size.isfinite(), size, 1.0)).exponent
    # in two factors, since either is within the range
    half = exponent // 2
    one = torch.ones_like(size)
    return rows * torch.ldexp(one, -half) * torch.ldexp(one, half - exponent)


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


@final
@dataclasses.dataclass(frozen=True)
class Relu(Score):
    """s = max(q·k, 0)."""

    is_nonnegative = True
    is_homogeneous = True

    def value(self, dot: Tensor, distance: Tensor | None, *numbers: Tensor) -> Tensor:
        """See `Score.value`."""
        return dot.relu()

    def pull(self, kept: Any, grad: Tensor, numbers: Sequence[Tensor]) -> tuple[Tensor, Tensor | None, list[Tensor]]:
        """See `Score.pull`; 0 at the corner."""
        return torch.ops.aten.threshold_backward.grad_input(grad, kept[0], 0, grad_input=grad), None, []


@final
@dataclasses.dataclass(frozen=True)
class Absolute(Score):
    """s = |q·k|."""

    is_nonnegative = True
    is_homogeneous = True

    def value(self, dot: Tensor, distance: Tensor | None, *numbers: Tensor) -> Tensor:
        """See `Score.value`."""
        return dot.abs()


@final
@dataclasses.dataclass(frozen=True)
class Gelu(Score):
    """s = q·k Φ(q·k), Φ the normal distribution; scores may be negative."""

    def value(self, dot: Tensor, distance: Tensor | None, *numbers: Tensor) -> Tensor:
        """See `Score.value`."""
        return dot * normal_distribution(dot)


class HopForm(NamedTuple):
    """s_ij = q_i·k_j, and V ũ_j; each head of keys and values may serve several consecutive query heads."""

    query: Tensor  # q at the queries, times the scale: (B, H, Nq, d)
    own: Tensor | None  # q at the points themselves: (B, H, N, d); None: the queries are the points
    key: Tensor  # (B, H', N, d)
    value: Tensor  # (B, H', N, d_v)


class Neumann(ValueMixing):
    """Marker: κ is a normalised hop, or the discounted series of all hops, times a value matrix.

    Multiplying the measure by a constant changes nothing. Where a norm is 0 there is no hop: the integral is 0.

    Attributes:
        score: φ of s, of dot products.
        norm: c.
        discount: γ; None: κ is one hop, without it.
    """

    skips_massless = True
    reads_query = True
    is_pairwise = False  # a chain passes through all points
    holds_pair_weights = True
    score: Score
    norm: HopNorm
    discount: Discount | None

    @abc.abstractmethod
    def hop_form(self, u: Tensor, query: Tensor | None) -> HopForm:
        """Queries, keys and values on signals `(B, N, d_in)` and `(B, Nq, query_dim)`; None: queries at the points."""

    @final
    def elsewhere(self, domain: Domain, query_domain: Domain | None) -> list[str]:
        """Reasons why the series is not defined at these queries (None: the points themselves), a sentence each."""
        if domain.pair_bias is not None and query_domain is not None and not query_domain.has_points_of(domain):
            return ["pair weights are for other queries than the points, which later hops start from"]
        return []

    @final
    def density(self, u: Tensor, domain: Domain, query: Tensor | None, query_domain: Domain | None) -> Tensor:
        """a, or c; see `ValueMixing.density`.

        Raises:
            ValueError: for pair weights at queries that are not the points; when the series diverges.
        """
        for reason in self.elsewhere(domain, query_domain):
            raise ValueError(f"{type(self).__name__}: {reason}; give the queries as points of the signal")
        own_queries = query is None and query_domain is None
        query_domain = domain if query_domain is None else query_domain
        form = self.hop_form(u, None if own_queries else u if query is None else query)
        with without_autocast(u):
            dtype = wide_dtype(form.query, form.value)
            rows = self._scores(form.query, form.key, domain, query_domain, dtype)
            own = rows if form.own is None else self._scores(form.own, form.key, domain, domain, dtype)
            mass = self.mass(domain).to(dtype)
            seen = preceding_counts(query_domain, domain) if self.is_causal else None
            hop = divided(rows, self.norm.norm(HopScores(rows, own, mass, seen)))
            if self.discount is None:
                return _readable(hop, query_domain, form.value.dtype)
            among = hop
            if form.own is not None:
                seen = preceding_counts(domain, domain) if self.is_causal else None
                among = divided(own, self.norm.norm(HopScores(own, own, mass, seen)))
            gamma = self.discount().to(dtype)[:, None, None]
            # the series at a point without mass is not needed, and its row of a may be nearly infinite
            read = (gamma * among).where(mass.mT > 0, 0.0)
            first = gamma * hop
            series = first + (first * mass) @ self._series(read, mass)
            # exactly 0 where no hop continues, despite rounding of the factorisation
            series = torch.where((hop != 0).any(-1, keepdim=True), series, 0.0)
            return _readable(series, query_domain, form.value.dtype)

    def _series(self, hop: Tensor, mass: Tensor) -> Tensor:
        """(I - h Ω)⁻¹ h of a discounted hop h, `(B, H, N, N)`."""
        step = hop * mass
        if not self.norm.is_contractive:
            check_radius(type(self).__name__, step)
        return solve_each(torch.eye(step.shape[-1], dtype=step.dtype, device=step.device) - step, hop)

    def _scores(self, query: Tensor, key: Tensor, domain: Domain, query_domain: Domain, dtype: torch.dtype) -> Tensor:
        """φ m, `(B, H, Nq, N)`, 0 where hidden."""
        visible = self.visible(domain, query_domain)
        keys = each_query_head(key.to(dtype), query.shape[1])
        scores = self.score.value(query.to(dtype) @ keys.mT, None)
        if domain.pair_weights is not None:
            scores = scores * domain.pair_weights.to(dtype)
        return torch.where(visible, scores, 0.0)


def _readable(density: Tensor, query_domain: Domain, dtype: torch.dtype) -> Tensor:
    """a in another dtype, bounded at queries that do not exist, whose norm may be nearly 0.

    a is not used there, but 0 times an infinite a would give NaN gradients.
    """
    if query_domain.mask is not None:
        bounded = density.clamp_max(torch.finfo(dtype).max ** 0.5)
        density = torch.where(query_domain.mask[..., None, :, None], density, bounded)
    return density.to(dtype)


ACTIVATIONS: dict[str, Score] = {"relu": Relu(), "gelu": Gelu(), "abs": Absolute()}
"""φ, by name."""


@final
class InfiniteAttention(Neumann, Stateful):
    """Attention along all chains of points: κ = (γA + γ²A² + …) W_V, or κ = A W_V, head by head.

    A is φ(σ q·k) over a norm. The integral y solves y = γA(v + y), v the values: each point reads the values of the
    others, and what these have read in turn. The output projection is the operator's W^O.

    Args:
        embed_dim: channels of u(x), and of the integral; a multiple of `num_heads`.
        num_heads: heads H; head h writes channels h·d … (h + 1)·d - 1, d = embed_dim / H.
        num_kv_heads: heads of keys and values, a divisor of H; None: H.
        form: "resolvent": the whole series. "hop": A alone, without γ: the paper's layer, whose model sums over layers.
        activation: φ; "gelu" has negative scores too.
        normaliser: "frobenius": c is the Hilbert-Schmidt norm of the hop; rows of A may then sum to more than 1.
            "rows": c_i is the integral of ``|φ|`` over the row: γA is substochastic. Or a custom `HopNorm`.
        gamma: γ, a number for all heads or one for each; refused with a hop, which has none.
        learn_gamma: whether γ is learned, as a sigmoid, starting at `gamma`.
        bias: whether the projections to queries, keys and values have biases; that of the values makes κ affine.
        is_causal: a = 0 where y comes after x, and the norm of a row is that of the points up to x. Such a kernel can
            go step by step, its state being all keys, all v + y (of a hop: v), and the norm.
        scale: σ; None: 1/√d. It cancels in a hop of relu or abs under one of the library's norms, and is refused there.

    Raises:
        ValueError: on heads that do not divide, sizes below 1, γ outside (0, 1), unknown options, or options without
            effect.
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
        if scale is not None:
            check_finite(name, "scale", scale)
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
        at_points = self._wide(self.scale * own.queries(u))
        key, value = self._wide(own.keys(u)), own.values(u)
        if query is None:
            return HopForm(at_points, None, key, value)
        return HopForm(self._wide(self.scale * own.queries(query)), at_points, key, value)

    def _wide(self, projected: Tensor) -> Tensor:
        """Converts to float64 under row norms, where all scores of a row may underflow in float32."""
        has_own_norms = self.is_causal or not isinstance(self.norm, FrobeniusNorm)
        return projected.double() if self.activation == "gelu" and has_own_norms else projected

    def initial_state(self, batch_size: int) -> State:
        """No keys `(B, num_kv_heads, 0, d)`, no v + y `(B, H, 0, d)` (of a hop v, as keys), and norm 0 `(B, H)`."""
        own = self.projections
        like = self._wide(own.key_weight[:0])
        wide = wide_dtype(like)
        keys = like.new_zeros(batch_size, own.num_kv_heads, 0, own.head_dim)
        heads = own.num_kv_heads if self.discount is None else self.num_heads
        carried = torch.zeros(batch_size, heads, 0, own.head_dim, dtype=wide, device=like.device)
        return keys, carried, carried.new_zeros(batch_size, self.num_heads)

    def step(self, u: Tensor, state: State, time: Tensor | None = None) -> tuple[Tensor, State]:
        """Solves y = γA(v + y) for the next point, given those before; see `Stateful.step`.

        Raises:
            ValueError: when the series diverges, under a custom norm.
        """
        form = self.hop_form(u[:, None], None)
        keys = torch.cat([state[0].to(form.key.dtype), form.key], dim=2)
        with without_autocast(u):
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


def normal_distribution(x: Tensor) -> Tensor:
    """Φ(x), accurate in both tails; `ndtr` and `gelu` use 1 + erf, which has no correct digits below -5."""
    return 0.5 * torch.special.erfc(x * -(2**-0.5))


def check_radius(name: str, step: Tensor) -> None:
    """Raises ValueError, in the name of a kernel, unless the eigenvalues of γ a Ω `(..., N, N)` are below 1 in size."""
    if step.numel() == 0 or not values_can_be_read(step):
        return
    radius = torch.linalg.eigvals(step.detach()).abs().amax().item()
    if not radius < 1:
        raise ValueError(
            f"{name}: the series of hops diverges, the spectral radius of γA is {radius:.4g} and must be below 1; "
            "divide hops by a larger norm, or take a smaller gamma"
        )


def _check_choice(name: str, got: object, allowed: tuple[str, ...]) -> None:
    if got not in allowed:
        options = " or ".join(map(repr, allowed))
        raise ValueError(f"kernels.InfiniteAttention: {name} must be {options}; got {got!r}")
