"""Kernels that are a number for each pair and head, times a value matrix; and those whose number is a normalised score.

Legend
    a_ij         density of head h at a pair, 0 where the pair is hidden
    ω_j, m_ij    mass of a point, and its pair weight (`Domain.weigh_pairs`)
    V_h          value matrix, (d, d_in), or (d, d_in + 1) for affine kernels
    n_ij ≥ 0     numerator of a normalised kernel, up to a positive factor a query
    q_i, k_j     query and key of a head, d channels          b_j, ε   constant of a key; what softens a distance
    s_ij         score: a function of q_i·k_j + b_j, and of max(‖q_i - k_j‖², 0) + ε where it reads distances
    n(s), e      numerator that a normaliser makes of a score; floor of the sum        σ_i   reference score of a row

    κ_ij = a_ij V_h,   so that the integral is Σ_j ω_j m_ij a_ij V ũ_j; without m where a has it (`holds_pair_weights`)

    `Normalised`     a_ij = n_ij / Z_i,   Z_i = ∫ n m_i dμ = Σ_l ω_l m_il n_il,   so that the integral is a mean of V ũ
    `Scored`         a: densities that the normaliser makes of a row of scores, >= 0 unless it takes others:
                     competitive  a_ij = n(s_ij) / (e + Σ_l ω_l m_il n(s_il)),   elementwise  a_ij = n(s_ij)
                     softmax      n(s) = exp(s), e = 0

A content kernel of one's own is a `Score`, and a `Scored` kernel that says what queries and keys are. The score's value
is all that a tiled route needs: slopes are taken of it, unless `pull` gives them.

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
        """Which pairs the measure, the masks and causality leave, `(B', H', Nq or 1, N)` bool."""
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
        """Raises a ValueError unless pair weights, where there are some, are for one head or for all."""
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
        """ω_j m_ij a_ij, what each point contributes to a head's integral, `(B, H, Nq, N)`; m as in the legend."""
        density = self.density(u, domain, query, query_domain)
        if self.holds_pair_weights:
            return density * self.mass(domain).to(density.dtype)
        return density * self.pair_mass(domain, density.dtype)


class Normalised(ValueMixing):
    """Marker: in each of `num_heads` heads, κ is a numerator over its integral, times a value matrix.

    Multiplying the measure by a constant changes nothing, so that a sum over the points so far may be carried along a
    sequence of unknown length. A query that sees no mass gets κ = 0; else `coefficients` sum to 1 in every row.
    """

    @abc.abstractmethod
    def numerator(self, u: Tensor, domain: Domain, query: Tensor, query_domain: Domain, visible: Tensor) -> Tensor:
        """n at every pair, `(B, H, Nq, N)`, 0 where not `visible`; a positive factor a row is free.

        Args:
            u: `(B, N, d_in)`.
            domain: where its N points lie.
            query: `(B, Nq, query_dim)`.
            query_domain: where the Nq queries do.
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
    """The unit of masses `(..., N)` in each row, `(..., 1)`: what is divided by a sum over a row has it twice in its
    gradients, and their square may leave the range of float32."""
    if mass.shape[-1:] == (0,):
        return mass.new_ones(())
    unit = mass.detach().amax(-1, keepdim=True)
    return torch.where((unit > 0) & unit.isfinite(), unit, 1.0)


class Numbered:
    """A frozen dataclass of numbers, as an operator of PyTorch is told it: the place of its class and its fields."""

    _classes: ClassVar[list[type]] = []
    _place: ClassVar[int]

    def __init_subclass__(cls) -> None:
        cls._place = len(Numbered._classes)
        Numbered._classes.append(cls)

    @final
    def not_numbers(self) -> list[str]:
        """Why no operator can be told this value; empty where it can."""
        if dataclasses.is_dataclass(self):
            sound = all(isinstance(field, int | float) for field in dataclasses.astuple(self))
        else:
            sound = not vars(self)
        return [] if sound else [f"{type(self).__name__} is no frozen dataclass of numbers, which tiles need"]

    @final
    def encoded(self) -> list[float]:
        """The numbers that `decoded` makes this value of."""
        fields = dataclasses.astuple(self) if dataclasses.is_dataclass(self) else ()
        return [float(self._place), *map(float, fields)]

    @classmethod
    def decoded(cls, code: Sequence[float]) -> Self:
        """The value that was `encoded`, in this process."""
        return Numbered._classes[int(code[0])](*code[1:])


class Normaliser(Numbered, abc.ABC):
    """How scores become densities; a frozen dataclass of numbers, which any scored kernel may hold.

    All tensors are in at least float32; `reference` has one entry a row and broadcasts against `score`, or is None.

    Attributes:
        is_competitive: whether the scores of a row compete.
        slope_reads_score: whether `slope` reads the score.
        is_its_slope: whether `slope` gives the numerator itself.
        takes_negative: whether scores may be below 0.
        hidden: the score of a pair that is hidden.
    """

    is_competitive: ClassVar[bool]
    slope_reads_score: ClassVar[bool] = True
    is_its_slope: ClassVar[bool] = False
    takes_negative: ClassVar[bool] = False
    hidden: ClassVar[float] = 0.0

    @abc.abstractmethod
    def numerator(self, score: Tensor, reference: Tensor | None = None) -> Tensor:
        """n(s) over n(reference), or n(s) itself: without one, and of elementwise kinds. May overwrite `score`."""

    @abc.abstractmethod
    def slope(self, score: Tensor, reference: Tensor | None, numerator: Tensor) -> Tensor:
        """The derivative of `numerator` by the score; `score` is read only where `slope_reads_score`."""

    @abc.abstractmethod
    def density(self, score: Tensor, mass: Tensor) -> Tensor:
        """a on whole rows, the definition.

        Args:
            score: `(..., N)`.
            mass: ω m, broadcastable to `score`; 0 hides a pair.

        Returns:
            As `score`; 0 where a pair is hidden.
        """

    def shares(self, score: Tensor, mass: Tensor) -> Tensor:
        """a ω m, by which whole rows weigh values; arguments as in `density`."""
        return self.density(score, mass) * mass


TINY = 1e-30
"""The least score that a row is divided by."""


class Competitive(Normaliser):
    """Scores of a row compete: every density has the sum over the row below it."""

    is_competitive = True
    neutral: ClassVar[float]
    """The reference that is none: n(neutral) = 1."""
    least: ClassVar[float] = TINY
    """The least reference: below it a row counts as zero."""

    @abc.abstractmethod
    def floor(self, reference: Tensor | None = None) -> Tensor | float:
        """e over n(reference): what the sum has beside its terms."""

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
        """a, in units of 1 / `unit`, from masses in units of it."""
        score = torch.where(mass > 0, score, self.hidden)
        reference = self.reference(score.detach())
        numerator = torch.where(mass > 0, self.numerator(score, reference), 0.0)
        total = (mass * numerator).sum(-1, keepdim=True)
        return divided(numerator, total + self.floor(reference) / unit)


class Elementwise(Normaliser):
    """Every density depends on its own score alone."""

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
        """Nothing; see `Competitive.floor`."""
        return 0.0


class Score(Numbered, abc.ABC):
    """s of a query and a key, a frozen dataclass of numbers.

    Attributes:
        reads_distance: whether s depends on ‖q - k‖² beside q·k.
        is_nonnegative: whether s >= 0, as most normalisers need.
        is_homogeneous: whether c q, c > 0, has c times the score of q.
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
            distance: ‖q - k‖² + ε, alike; None unless `reads_distance`.
            numbers: `ScoreForm.numbers`, one after the other, broadcastable to `dot`.
        """

    def in_tile(self, dot: Tensor, distance: Tensor | None, numbers: Sequence[Tensor]) -> tuple[Tensor, Any]:
        """s of a tile, in memory that may be overwritten, and what `pull` needs; may overwrite what it is given."""
        s = self.value(dot, distance, *numbers)
        memory = s.untyped_storage().data_ptr()
        given = (t.untyped_storage().data_ptr() for t in (dot, distance) if t is not None)
        return (s.clone() if memory in given else s), (dot, distance)

    def pull(
        self, kept: Any, grad: Tensor, numbers: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor | None, Sequence[Tensor]]:
        """Gradients of `dot`, of `distance` and of each number, from that of s; may overwrite `grad` and what was kept.

        The first two may lack the factors `dot_gain` and `distance_gain`, and are in memory that may be overwritten.
        """
        with _autograd():
            leaves = [None if t is None else t.detach().requires_grad_() for t in (*kept, *numbers)]
            s = self.value(leaves[0], *leaves[1:])  # pyright: ignore[reportArgumentType]
            asked = [leaf for leaf in leaves if leaf is not None]
            if not s.requires_grad:
                found = iter([torch.zeros_like(t) for t in asked])
            else:
                found = iter(torch.autograd.grad(s, asked, grad, materialize_grads=True))
        by_dot, by_distance, *by_numbers = (None if leaf is None else next(found) for leaf in leaves)
        return by_dot, by_distance, by_numbers  # pyright: ignore[reportReturnType]


@contextlib.contextmanager
def _autograd() -> Iterator[None]:
    """Records gradients where an operator of PyTorch runs, which has turned that off."""
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
    """What scores and values are made of; keys and values may have fewer heads, each serving several in a row."""

    query: Tensor  # (B, H, Nq, d)
    key: Tensor  # (B, H', N, d)
    value: Tensor  # V ũ: (B, H', N, d_v)
    key_bias: Tensor | None = None  # b: (B, H', N)
    softening: Tensor | None = None  # ε: ()
    numbers: Tensor | None = None  # what else the score is given, (m,) or a number a head, (m, H)


class Scored(ValueMixing):
    """Marker: in each head κ is a score that went through `normaliser`, times a value matrix.

    The measure counts points, so that a sum over the points so far may be carried along a sequence.

    Attributes:
        score: s, of what `score_form` gives.
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
        """Raises a ValueError where scores may be below 0 and the normaliser takes no such."""
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
        """Queries of the next points of a sequence; keys and values of all so far, which are the state after them.

        Args:
            u: `(B, N, d_in)`.
            domain: the N next points.
            state: what earlier points left behind; None: nothing.
        """

    @final
    def attend(self, form: ScoreForm) -> tuple[Tensor, State]:
        """The integral over all keys of a form, `(B, Nq, H·d_v)`, and the state: its keys and values."""
        density = self.normaliser.density(scores_of(self.score, form), form.key.new_ones(()))
        out = density.to(form.value.dtype) @ each_query_head(form.value, self.num_heads)
        return out.transpose(1, 2).flatten(2), (form.key, form.value)


def num_cached(state: State | None) -> int:
    """How many points' keys a state of a `CachedScored` kernel has."""
    return 0 if state is None else state[0].shape[2]


def appended(state: State | None, form: ScoreForm) -> ScoreForm:
    """A form with the state's keys and values before its own, in the dtypes of those."""
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
