"""Kernels of one number per pair and head, times a value matrix; among them normalised scores.

Legend
    a_ij         density of head h at a pair, 0 where the pair is hidden
    ω_j, m_ij    mass of a point, and its pair weight (`Domain.weigh_pairs`)
    V_h          value matrix, (d, d_in), or (d, d_in + 1) for affine kernels
    n_ij ≥ 0     numerator of a normalised kernel, up to a positive factor per query
    q_i, k_j     query and key of a head, d channels          b_j, ε   constant of a key; softening of a distance
    s_ij         score: a function of q_i·k_j + b_j, and of max(‖q_i - k_j‖², 0) + ε where it reads distances
    n(s), e      numerator that a normaliser makes of a score; floor of the sum        σ_i   reference score of a row

    κ_ij = a_ij V_h,   so that the integral is Σ_j ω_j m_ij a_ij V ũ_j; without m where a has it (`holds_pair_weights`)

    `Normalised`     a_ij = n_ij / Z_i,   Z_i = ∫ n m_i dμ = Σ_l ω_l m_il n_il,   so that the integral is a mean of V ũ
    `Scored`         a: densities that the normaliser makes of a row of scores, >= 0 unless it takes others:
                     competitive  a_ij = n(s_ij) / (e + Σ_l ω_l m_il n(s_il)),   elementwise  a_ij = n(s_ij)
                     softmax      n(s) = exp(s), e = 0

A custom content kernel is a `Score`, and a `Scored` kernel that defines queries and keys. A tiled route needs only the
score's `value`, which it differentiates, unless `pull` gives the slopes.

Source: ITNet (arXiv 2606.19538), eq. 57-64 and 91-93; there m is the causal mask alone. Normalisers: Yat, section 2.2.
"""

import abc
import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, Self, final

import torch
from torch import Tensor

from fredholm._precision import wide_dtype, without_autocast
from fredholm.domains import Domain, preceding_counts
from fredholm.kernels.heads import each_query_head
from fredholm.kernels.kernel import RANGE_OF_EXPONENTIALS, Kernel, State, Stateful, divided


class ValueMixing(Kernel):
    """Marker: in each of `num_heads` heads, κ is a number times a value matrix. A point without mass is hidden."""

    num_heads: int
    counts_points = True

    @abc.abstractmethod
    def density(self, u: Tensor, domain: Domain, query: Tensor | None, query_domain: Domain | None) -> Tensor:
        """a at every pair, `(B, H, Nq, N)`, 0 where not `visible`; arguments as in `matrix`."""

    @abc.abstractmethod
    def value_matrices(self) -> Tensor:
        """V, `(H, d, d_in)`, or with d_in + 1 columns from an affine kernel."""

    @final
    def visible(self, domain: Domain, query_domain: Domain) -> Tensor:
        """Mask of the pairs that the measure, masks and causality allow, `(B', H', Nq or 1, N)` bool."""
        seen = self.mass(domain) > 0
        if domain.pair_bias is not None:
            self.check_pair_weights(domain)
            bias = domain.pair_bias
            seen = seen & (bias if bias.dtype == torch.bool else bias > -torch.inf)
        if self.is_causal:
            counts = preceding_counts(query_domain, domain)[:, None, :, None]
            seen = seen & (torch.arange(domain.num_points, device=domain.device) < counts)
        return seen

    @final
    def check_pair_weights(self, domain: Domain) -> None:
        """Raises a ValueError unless pair weights, if any, are for one head or for all."""
        if domain.pair_bias is not None and domain.pair_bias.shape[1] not in (1, self.num_heads):
            raise ValueError(
                f"{type(self).__name__}: pair weights must be for 1 or {self.num_heads} heads; "
                f"the domain has them for {domain.pair_bias.shape[1]}"
            )

    @final
    def mass(self, domain: Domain) -> Tensor:
        """ω, as it applies to pairs, `(B', 1, 1, N)`."""
        mass = self.measure(domain)
        return (mass if mass.ndim == 2 else mass[None])[:, None, None]

    @final
    def pair_mass(self, domain: Domain, dtype: torch.dtype) -> Tensor:
        """ω_j m_ij, `(B', H', Nq or 1, N)`."""
        mass = self.mass(domain).to(dtype)
        return mass if domain.pair_weights is None else mass * domain.pair_weights.to(dtype)

    @final
    def matrix(
        self, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        """κ, `(B, Nq, N, H·d, d_in)`; see `Kernel.matrix`."""
        density = self.density(u, domain, query, query_domain)
        kappa = torch.einsum("bhqk,hoi->bqkhoi", density, self.value_matrices().to(density.dtype))
        return kappa.flatten(-3, -2)

    def coefficients(
        self, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        """ω_j m_ij a_ij, the weight of each point in a head's integral, `(B, H, Nq, N)`; m as in the legend."""
        density = self.density(u, domain, query, query_domain)
        if self.holds_pair_weights:
            return density * self.mass(domain).to(density.dtype)
        return density * self.pair_mass(domain, density.dtype)


class Normalised(ValueMixing):
    """Marker: in each of `num_heads` heads, κ is a numerator over its integral, times a value matrix.

    Multiplying the measure by a constant changes nothing, so that a running sum works along a sequence of unknown
    length. A query that sees no mass gets κ = 0; else `coefficients` sum to 1 in every row.
    """

    @abc.abstractmethod
    def numerator(self, u: Tensor, domain: Domain, query: Tensor, query_domain: Domain, visible: Tensor) -> Tensor:
        """n at every pair, `(B, H, Nq, N)`, 0 where not `visible`; up to a positive factor per row.

        Args:
            u: `(B, N, d_in)`.
            domain: its N points.
            query: `(B, Nq, query_dim)`.
            query_domain: the Nq queries.
            visible: bool, broadcastable to `(B, H, Nq, N)`.
        """

    @final
    def density(self, u: Tensor, domain: Domain, query: Tensor | None, query_domain: Domain | None) -> Tensor:
        """n / Z; see `ValueMixing.density`."""
        numerator, mass = self._numerator_and_mass(u, domain, query, query_domain)
        return divided(numerator, (mass * numerator).sum(-1, keepdim=True)).to(u.dtype)

    @final
    def coefficients(
        self, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        """ω m n / Z; see `ValueMixing.coefficients`."""
        numerator, mass = self._numerator_and_mass(u, domain, query, query_domain)
        weighed = mass / largest_mass(mass) * numerator
        return divided(weighed, weighed.sum(-1, keepdim=True)).to(u.dtype)

    def _numerator_and_mass(
        self, u: Tensor, domain: Domain, query: Tensor | None, query_domain: Domain | None
    ) -> tuple[Tensor, Tensor]:
        """n and ω m of every pair."""
        query, query_domain = (u if query is None else query), (domain if query_domain is None else query_domain)
        numerator = self.numerator(u, domain, query, query_domain, self.visible(domain, query_domain))
        return numerator, self.pair_mass(domain, numerator.dtype)


def largest_mass(mass: Tensor) -> Tensor:
    """The unit of masses `(..., N)` in each row, `(..., 1)`. Gradients of a quotient divide by the square of a sum over
    the row, which may leave the range of float32."""
    if mass.shape[-1:] == (0,):
        return mass.new_ones(())
    unit = mass.detach().amax(-1, keepdim=True)
    return torch.where((unit > 0) & unit.isfinite(), unit, 1.0)


class Numbered:
    """A frozen dataclass of numbers that can be passed to a PyTorch operator: index of its class, then its fields."""

    _classes: ClassVar[list[type]] = []
    _place: ClassVar[int]

    def __init_subclass__(cls) -> None:
        cls._place = len(Numbered._classes)
        Numbered._classes.append(cls)

    @final
    def not_numbers(self) -> list[str]:
        """Reasons why this value cannot be encoded for an operator; empty where it can."""
        if dataclasses.is_dataclass(self):
            sound = all(isinstance(field, int | float) for field in dataclasses.astuple(self))
        else:
            sound = not vars(self)
        return [] if sound else [f"{type(self).__name__} is no frozen dataclass of numbers, which tiles need"]

    @final
    def encoded(self) -> list[float]:
        """The value as numbers for `decoded`."""
        fields = dataclasses.astuple(self) if dataclasses.is_dataclass(self) else ()
        return [float(self._place), *map(float, fields)]

    @classmethod
    def decoded(cls, code: Sequence[float]) -> Self:
        """The value that was `encoded`, in this process."""
        return Numbered._classes[int(code[0])](*code[1:])


class Normaliser(Numbered, abc.ABC):
    """A map from scores to densities; a frozen dataclass of numbers, usable in any scored kernel.

    All tensors are in at least float32; `reference` has one entry per row and broadcasts against `score`, or is None.

    Attributes:
        is_competitive: whether the scores of a row compete, through a sum over the row.
        slope_reads_score: whether `slope` reads the score.
        is_its_slope: whether `slope` equals the numerator.
        takes_negative: whether scores may be below 0.
        hidden: the score that hidden pairs are given.
    """

    is_competitive: ClassVar[bool]
    slope_reads_score: ClassVar[bool] = True
    is_its_slope: ClassVar[bool] = False
    takes_negative: ClassVar[bool] = False
    hidden: ClassVar[float] = 0.0

    @abc.abstractmethod
    def numerator(self, score: Tensor, reference: Tensor | None = None) -> Tensor:
        """n(s) / n(reference), or n(s) itself without a reference and for elementwise kinds. May overwrite `score`."""

    @abc.abstractmethod
    def slope(self, score: Tensor, reference: Tensor | None, numerator: Tensor) -> Tensor:
        """The derivative of `numerator` by the score; `score` is read only where `slope_reads_score`."""

    @abc.abstractmethod
    def density(self, score: Tensor, mass: Tensor) -> Tensor:
        """a on whole rows: the definition.

        Args:
            score: `(..., N)`.
            mass: ω m, broadcastable to `score`; 0 hides a pair.

        Returns:
            As `score`; 0 where a pair is hidden.
        """

    def shares(self, score: Tensor, mass: Tensor) -> Tensor:
        """a ω m, the weights of the values in whole rows; arguments as in `density`."""
        return self.density(score, mass) * mass


TINY = 1e-30
"""Smallest reference score that a row is divided by."""


class Competitive(Normaliser):
    """Densities are divided by a sum over the row."""

    is_competitive = True
    neutral: ClassVar[float]
    """The neutral reference: n(neutral) = 1."""
    least: ClassVar[float] = TINY
    """Smallest reference: below it a row counts as zero."""

    @abc.abstractmethod
    def floor(self, reference: Tensor | None = None) -> Tensor | float:
        """e / n(reference), the constant term of the sum."""

    @final
    def reference(self, score: Tensor) -> Tensor:
        """The largest score of each row `(..., 1)`, at least `least`: `numerator` then stays within floating range."""
        if score.shape[-1] == 0:
            return score.new_full((*score.shape[:-1], 1), self.least)
        return score.amax(-1, keepdim=True).clamp_min_(self.least)

    @final
    def density(self, score: Tensor, mass: Tensor) -> Tensor:
        """See `Normaliser.density`; 0 in a row without mass."""
        return self._over_total(score, mass, torch.ones((), dtype=score.dtype, device=score.device))

    @final
    def shares(self, score: Tensor, mass: Tensor) -> Tensor:
        """See `Normaliser.shares`."""
        if score.shape[-1] == 0:
            return score
        unit = largest_mass(mass)
        return self._over_total(score, mass / unit, unit) * (mass / unit)

    def _over_total(self, score: Tensor, mass: Tensor, unit: Tensor) -> Tensor:
        """a, in units of 1 / `unit`, from masses in units of `unit`."""
        score = torch.where(mass > 0, score, self.hidden)
        reference = self.reference(score.detach())
        numerator = torch.where(mass > 0, self.numerator(score, reference), 0.0)
        total = (mass * numerator).sum(-1, keepdim=True)
        return divided(numerator, total + self.floor(reference) / unit)


class Elementwise(Normaliser):
    """Each density depends only on its own score."""

    is_competitive = False

    @final
    def density(self, score: Tensor, mass: Tensor) -> Tensor:
        """See `Normaliser.density`."""
        score = torch.where(mass > 0, score, 0.0)
        return torch.where(mass > 0, self.numerator(score), 0.0)


@final
@dataclasses.dataclass(frozen=True)
class Softmax(Competitive):
    """a = exp(s) / Σ exp(s), with the masses in the sum (Yat, section 2.2)."""

    slope_reads_score = False
    is_its_slope = takes_negative = True
    neutral = 0.0
    hidden = least = -1e30

    def numerator(self, score: Tensor, reference: Tensor | None = None) -> Tensor:
        """See `Normaliser.numerator`."""
        return (score if reference is None else score.sub_(reference)).exp_()

    def slope(self, score: Tensor, reference: Tensor | None, numerator: Tensor) -> Tensor:
        """See `Normaliser.slope`."""
        return numerator

    def floor(self, reference: Tensor | None = None) -> float:
        """0; see `Competitive.floor`."""
        return 0.0


class Score(Numbered, abc.ABC):
    """s of a query and a key, a frozen dataclass of numbers.

    Attributes:
        reads_distance: whether s depends on ‖q - k‖² besides q·k.
        is_nonnegative: whether s >= 0, as most normalisers need.
        is_homogeneous: whether s(c q, k) = c s(q, k) for c > 0.
        dot_gain, distance_gain: factors that the two slopes of `pull` leave out.
    """

    reads_distance: ClassVar[bool] = False
    is_nonnegative: ClassVar[bool] = False
    is_homogeneous: ClassVar[bool] = False
    dot_gain: ClassVar[float] = 1.0
    distance_gain: ClassVar[float] = 1.0

    @abc.abstractmethod
    def value(self, dot: Tensor, distance: Tensor | None, *numbers: Tensor) -> Tensor:
        """s, in differentiable operations.

        Args:
            dot: q·k + b, `(..., Nq, N)`, in at least float32.
            distance: ‖q - k‖² + ε, of the same shape; None unless `reads_distance`.
            numbers: `ScoreForm.numbers`, one after the other, broadcastable to `dot`.
        """

    def in_tile(self, dot: Tensor, distance: Tensor | None, numbers: Sequence[Tensor]) -> tuple[Tensor, Any]:
        """s of a tile, in memory that may be overwritten, and the residuals for `pull`; may overwrite its arguments."""
        s = self.value(dot, distance, *numbers)
        memory = s.untyped_storage().data_ptr()
        given = (t.untyped_storage().data_ptr() for t in (dot, distance) if t is not None)
        return (s.clone() if memory in given else s), (dot, distance)

    def pull(
        self, kept: Any, grad: Tensor, numbers: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor | None, Sequence[Tensor]]:
        """Gradients of `dot`, `distance` and each number, from the gradient of s; may overwrite `grad` and residuals.

        The first two may lack the factors `dot_gain` and `distance_gain`, and are in memory that may be overwritten.
        """
        with _autograd():
            leaves = [None if t is None else t.detach().requires_grad_() for t in (*kept, *numbers)]
            s = self.value(leaves[0], *leaves[1:])  # pyright: ignore[reportArgumentType]
            requested = [leaf for leaf in leaves if leaf is not None]
            if not s.requires_grad:
                found = iter([torch.zeros_like(t) for t in requested])
            else:
                found = iter(torch.autograd.grad(s, requested, grad, materialize_grads=True))
        by_dot, by_distance, *by_numbers = (None if leaf is None else next(found) for leaf in leaves)
        return by_dot, by_distance, by_numbers  # pyright: ignore[reportReturnType]


@contextlib.contextmanager
def _autograd() -> Iterator[None]:
    """Enables autograd inside a PyTorch operator, which disables it."""
    keys, unset = torch._C.DispatchKey, torch._C._SetExcludeDispatchKeyGuard
    with unset(keys.AutogradFunctionality, False), unset(keys.ADInplaceOrView, False), torch.enable_grad():
        yield


@final
@dataclasses.dataclass(frozen=True)
class Dot(Score):
    """s = q·k."""

    is_homogeneous = True

    def value(self, dot: Tensor, distance: Tensor | None, *numbers: Tensor) -> Tensor:
        """See `Score.value`."""
        return dot

    def in_tile(self, dot: Tensor, distance: Tensor | None, numbers: Sequence[Tensor]) -> tuple[Tensor, Any]:
        """See `Score.in_tile`."""
        return dot, None

    def pull(self, kept: Any, grad: Tensor, numbers: Sequence[Tensor]) -> tuple[Tensor, Tensor | None, list[Tensor]]:
        """See `Score.pull`."""
        return grad, None, []


class ScoreForm(NamedTuple):
    """The pieces of scores and values; each head of keys and values may serve several consecutive query heads."""

    query: Tensor  # (B, H, Nq, d)
    key: Tensor  # (B, H', N, d)
    value: Tensor  # V ũ: (B, H', N, d_v)
    key_bias: Tensor | None = None  # b: (B, H', N)
    softening: Tensor | None = None  # ε: ()
    numbers: Tensor | None = None  # further arguments of the score, (m,) or one per head, (m, H)


class Scored(ValueMixing):
    """Marker: in each head κ is `normaliser` applied to a score, times a value matrix.

    The measure counts points, so that a running sum works along a sequence.

    Attributes:
        score: s, applied to `score_form`.
        normaliser: ρ.
        reads_bias: whether keys have constants b.
    """

    score: Score
    normaliser: Normaliser
    reads_bias: bool = False
    signal_range = RANGE_OF_EXPONENTIALS

    @abc.abstractmethod
    def score_form(self, u: Tensor, domain: Domain, query: Tensor, query_domain: Domain) -> ScoreForm:
        """Queries, keys and values on these signals, `(B, N, d_in)` and `(B, Nq, query_dim)`."""

    @final
    def check_score(self) -> None:
        """Raises a ValueError where scores may be negative and the normaliser needs scores >= 0."""
        if not (self.score.is_nonnegative or self.normaliser.takes_negative):
            raise ValueError(
                f"{type(self).__name__}: {type(self.normaliser).__name__} takes scores >= 0, and those of "
                f"{type(self.score).__name__} may be below; take Softmax() or Unnormalised(), or a score with "
                "is_nonnegative = True"
            )

    @final
    def density(self, u: Tensor, domain: Domain, query: Tensor | None, query_domain: Domain | None) -> Tensor:
        """See `ValueMixing.density`."""
        query, query_domain = (u if query is None else query), (domain if query_domain is None else query_domain)
        self.check_score()
        visible = self.visible(domain, query_domain)
        scores = scores_of(self.score, self.score_form(u, domain, query, query_domain))
        mass = self.pair_mass(domain, scores.dtype)
        return self.normaliser.density(scores, torch.where(visible, mass, 0.0)).to(u.dtype)


class CachedScored(Scored, Stateful):
    """Marker: a scored kernel along a sequence, whose state is all keys and values."""

    reads_query = True
    sees_simultaneous = True
    has_growing_state = True

    @abc.abstractmethod
    def continued_form(self, u: Tensor, domain: Domain, state: State | None) -> ScoreForm:
        """Queries of the next points of a sequence, with keys and values of all points so far, which are the new state.

        Args:
            u: `(B, N, d_in)`.
            domain: the N next points.
            state: the state after the earlier points; None: there are none.
        """

    @final
    def attend(self, form: ScoreForm) -> tuple[Tensor, State]:
        """The integral over all keys of a form, `(B, Nq, H·d_v)`, and the state: its keys and values."""
        density = self.normaliser.density(scores_of(self.score, form), form.key.new_ones(()))
        out = density.to(form.value.dtype) @ each_query_head(form.value, self.num_heads)
        return out.transpose(1, 2).flatten(2), (form.key, form.value)


def num_cached(state: State | None) -> int:
    """Number of points whose keys a state of a `CachedScored` kernel holds."""
    return 0 if state is None else state[0].shape[2]


def appended(state: State | None, form: ScoreForm) -> ScoreForm:
    """A form with the state's keys and values prepended, in the state's dtypes."""
    if state is None:
        return form
    keys, values = state[0].to(form.key.dtype), state[1].to(form.value.dtype)
    return form._replace(key=torch.cat([keys, form.key], dim=2), value=torch.cat([values, form.value], dim=2))


def scores_of(score: Score, form: ScoreForm) -> Tensor:
    """s at every pair, `(B, H, Nq, N)`, in at least float32."""
    dtype, heads = wide_dtype(form.query), form.query.shape[1]
    with without_autocast(form.query):
        q, k = form.query.to(dtype), each_query_head(form.key.to(dtype), heads)
        dot = raw = q @ k.mT
        if form.key_bias is not None:
            dot = raw + each_query_head(form.key_bias.to(dtype), heads)[:, :, None]
        distance = None
        if score.reads_distance:
            distance = (q.square().sum(-1)[..., None] + k.square().sum(-1)[:, :, None] - 2 * raw).clamp_min(0)
            distance = distance if form.softening is None else distance + form.softening.to(dtype)
        return score.value(dot, distance, *numbers_by_head(form.numbers, heads, dtype))


def numbers_by_head(numbers: Tensor | None, heads: int, dtype: torch.dtype) -> list[Tensor]:
    """`ScoreForm.numbers` as they apply to scores `(..., H, Nq, N)`: `(H, 1, 1)` each."""
    if numbers is None:
        return []
    numbers = numbers if numbers.ndim == 2 else numbers[:, None].expand(-1, heads)
    return list(numbers.to(dtype)[..., None, None].unbind())
