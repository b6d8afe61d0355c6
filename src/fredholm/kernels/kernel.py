"""The abstract kernel, its markers for states and heads, sums and multiples of kernels, and ranges of signals.

    κ = Σ_m κ_m,   κ = g κ_1 with a scalar gate g

A pretrained layer plus a kernel behind a gate at 0 starts as that layer, and learns the rest. The state of a sum is the
concatenation of its terms' states.
"""

import abc
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import final

import torch
from torch import Tensor, nn

from fredholm._settings import check_number
from fredholm.domains import Domain, past_mass, whole_grid
from fredholm.domains.checks import values_can_be_read
from fredholm.kernels.heads import weigh_by_head
from fredholm.storage.rebuildable import Rebuildable

Range = Mapping[torch.dtype, tuple[float, float]]
"""Range of root mean squares of a signal in which a kernel keeps its accuracy, by dtype."""

WIDE_RANGE: Range = {
    torch.float64: (1e-4, 1e4),
    torch.float32: (1e-4, 1e4),
    torch.bfloat16: (1e-4, 30.0),
    torch.float16: (1e-2, 1.0),
}
"""Range of most kernels."""

RANGE_OF_EXPONENTIALS: Range = {
    torch.float64: (1e-4, 100.0),
    torch.float32: (1e-4, 100.0),
    torch.bfloat16: (1e-4, 10.0),
    torch.float16: (1e-2, 1.0),
}
"""Range of kernels with exponentials of the signal: a rounded score of size S gives a relative error of S ε."""


class Kernel(nn.Module, Rebuildable, abc.ABC):
    """κ(x, y, u(x), u(y)), the integrand, with values in the d_out x d_in matrices.

    `matrix` is the definition; a kernel that also carries a marker class below gives an evaluation what its fast route
    needs, with the same result.

    Attributes:
        in_dim, out_dim: channels d_in of u(y) and d_out of the integral.
        pos_dim: number of coordinates that positions must have; None when positions are not read.
        is_causal: κ = 0 unless y comes before x or is x, in the order of `domains.preceding_counts`.
        reads_past_by_position: whether causality is by position, which κ reads itself, not by the order of points.
        reads_order: whether κ depends on times or indices, apart from causality.
        is_recursive: whether `matrix` is computed point by point.
        reads_query: whether κ depends on u(x).
        is_affine: whether κ multiplies [u(y); 1] instead of u(y), one column more for a constant.
        counts_points: whether the measure defaults to mass 1 per point instead of total mass 1 (`Domain.counts`): a
            stencil or a recurrence sums over samples, however many there are.
        skips_massless: whether a point of weight 0 is left out of the integral and of all norms, so that the weight
            gets the gradient 0.
        averages_past: whether κ is divided by the mass of the past, μ{y ≤ x}: then the integral is a mean over the
            points that a causal kernel sees, and later points change nothing.
        is_pairwise: whether κ(x, y, u(x), u(y)) needs the two points and nothing else, so that it may be integrated
            over other nodes; a stencil needs its grid, a recurrence all points between the two.
        holds_pair_weights: whether κ contains the pair weights of a measure (`Domain.weigh_pairs`), as a sum over
            chains of pairs must; else the integral multiplies κ by them.
        edge_dim: number of features of a listed pair that κ reads (`Domain.list_pairs`); 0: none.
        no_weight_decay: local names of parameters that an optimiser should not decay.
        signal_range: range of root mean squares of u, with parameters of size about 1, in which every route keeps the
            accuracy of a dtype, forward and in all gradients. Outside of it, normalise the signal or compute in a
            wider dtype.
    """

    in_dim: int
    out_dim: int
    pos_dim: int | None
    is_causal: bool
    reads_query: bool
    reads_past_by_position: bool = False
    reads_order: bool = False
    is_recursive: bool = False
    is_affine: bool = False
    counts_points: bool = False
    skips_massless: bool = False
    averages_past: bool = False
    is_pairwise: bool = True
    holds_pair_weights: bool = False
    edge_dim: int = 0
    no_weight_decay: frozenset[str] = frozenset()
    signal_range: Range = WIDE_RANGE

    @property
    def query_dim(self) -> int:
        """Channels of u(x); by default those of u(y)."""
        return self.in_dim

    @property
    def is_drawn(self) -> bool:
        """Whether κ is random, drawn for every integral, as with dropout of its weights in training."""
        return False

    @abc.abstractmethod
    def matrix(
        self, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        """κ itself at every pair of points, for small N.

        Args:
            u: the signal at the keys, `(B, N, d_in)`.
            domain: the N points of u.
            query: the signal at the queries, `(B, Nq, d_in)`; None: `u`.
            query_domain: the Nq queries; None: `domain`.

        Returns:
            `(B, Nq, N, d_out, d_in)`, or with d_in + 1 columns from an affine kernel.
        """

    @final
    def forward(self, *args: object, **settings: object) -> Tensor:
        """Raises TypeError: a kernel is a function of two points; an operator acts on signals."""
        raise TypeError(
            f"{type(self).__name__} is a kernel, which is not called; fredholm.IntegralOperator(kernel) acts on "
            "signals, and kernel.matrix(u, domain) is κ itself"
        )

    @final
    def measure(self, domain: Domain) -> Tensor:
        """Mass of each point under the measure that this kernel is integrated against, `(N,)` or `(B, N)`."""
        mass = domain.counts if self.counts_points else domain.weights
        # detached where 0: a skipped point has no part in a norm either, which only its gradient would show
        return torch.where(mass > 0, mass, 0.0) if self.skips_massless and mass.requires_grad else mass

    @final
    def past_share(self, domain: Domain, query_domain: Domain | None = None) -> Tensor | None:
        """1 / μ{y ≤ x} at each query, `(1 or B, Nq)`, 0 where the past is empty; None unless `averages_past`."""
        if not self.averages_past:
            return None
        mass = past_mass(domain if query_domain is None else query_domain, domain)
        if self.counts_points:
            mass = mass * domain.counts_per_mass
        return divided(1.0, mass)

    @final
    def multiplicand(self, u: Tensor) -> Tensor:
        """The factor of κ: u, or [u; 1] for an affine kernel."""
        return torch.cat([u, u.new_ones(*u.shape[:-1], 1)], dim=-1) if self.is_affine else u

    @final
    def __add__(self, other: "Kernel") -> "Kernel":
        """κ + κ'; see `kernels.Sum`."""
        return Sum([self, other])

    @final
    def __rmul__(self, gate: float) -> "Kernel":
        """g κ with a learned scalar that starts at `gate`; see `kernels.Scaled`."""
        if not isinstance(gate, int | float):
            return NotImplemented
        return Scaled(self, gate)

    __mul__ = __rmul__

    def output_domain(self, domain: Domain) -> Domain:
        """The default queries: the points of u itself, unless overridden."""
        return domain


State = tuple[Tensor, ...]
"""State of a stateful kernel after the points so far: tensors with the batch first."""


class Stateful(Kernel):
    """Marker: a causal kernel whose integral can be carried along a sequence in a state of bounded or growing size.

    Its result is at the points of u. A class whose causality is an option is stateful where `is_causal` is set, and any
    kernel only where it is not `unsteppable`.

    Attributes:
        has_growing_state: whether the state grows with every point, as a cache of keys does.
        sees_simultaneous: whether points at one time see each other (`domains.preceding_counts`), so that the order of
            indices is not the order of the integral where times coincide.
        reads_time: whether a step needs the time of its point.
    """

    has_growing_state: bool = False
    sees_simultaneous: bool = False
    reads_time: bool = False

    @abc.abstractmethod
    def initial_state(self, batch_size: int) -> State:
        """The state before the first point, in the parameters' dtype and device.

        Raises:
            ValueError, TypeError: where the kernel does not go step by step.
        """

    def unsteppable(self, domain: Domain) -> list[str]:
        """Reasons why a sequence on this domain does not go step by step, a sentence each; empty where it does."""
        return []

    @abc.abstractmethod
    def step(self, u: Tensor, state: State, time: Tensor | None = None) -> tuple[Tensor, State]:
        """The integral at the next point, and the state after it.

        Args:
            u: the signal at the next point, `(B, d_in)`.
            state: the state before the point.
            time: of the point, `(B,)`, for kernels in continuous time; None: a unit step later.

        Returns:
            `(B, d_out)`, and the new state.
        """


def stateful(kernel: Kernel) -> Stateful:
    """The kernel as a `Stateful` one.

    Raises:
        TypeError: where the kernel has no state.
    """
    if not isinstance(kernel, Stateful):
        raise TypeError(f"{type(kernel).__name__} carries no state along a sequence")
    return kernel


def joined_states(parts: Iterable[State]) -> State:
    """Concatenates several states."""
    return tuple(part for state in parts for part in state)


def _common_range(ranges: Sequence[Range]) -> Range:
    """Intersection of the ranges."""
    return {dtype: (max(r[dtype][0] for r in ranges), min(r[dtype][1] for r in ranges)) for dtype in ranges[0]}


class MultiHead(Kernel):
    """Marker: κ is block-diagonal over `num_heads` heads.

    Head h reads and writes only channels h·d … (h + 1)·d - 1 of the signal, d = in_dim / num_heads.
    """

    num_heads: int

    @abc.abstractmethod
    def head(self, index: int) -> Kernel:
        """κ of one head, on d channels, with the parameters of this kernel."""


def divided(numerator: Tensor | float, denominator: Tensor) -> Tensor:
    """Quotient; 0, with gradient 0, where the denominator is 0."""
    # not `denominator > 0`: NaN stays NaN
    is_zero = denominator == 0
    denominator = torch.where(is_zero, 1.0, denominator)
    if not denominator.requires_grad:
        return torch.where(is_zero, 0.0, numerator / denominator)
    # the gradient divides by the denominator twice, and the square of a small mass leaves the range of float32
    unit = denominator.detach()
    unit = torch.where(unit.abs() < torch.inf, unit, 1.0)
    return torch.where(is_zero, 0.0, numerator / (denominator / unit) / unit)


def added(parts: Iterable[Tensor]) -> Tensor:
    """The sum of at least one tensor."""
    total, *others = parts
    for other in others:
        total = total + other
    return total


@final
class Sum(Stateful):
    """κ = Σ_m κ_m, for kernels on the same channels; `a + b` builds it, and sums of sums are one sum.

    Each term is integrated against its own measure (`Kernel.counts_points`) by its own route. `matrix` expresses all
    terms for the measure that counts points if any term counts them. A sum goes step by step where all terms do.

    Args:
        terms: at least one kernel; `in_dim`, `out_dim`, `query_dim` must agree, and `pos_dim` where it is read.

    Raises:
        ValueError, TypeError: on terms that do not fit each other.
    """

    def __init__(self, terms: Sequence[Kernel]) -> None:
        super().__init__()
        flat = [part for term in terms for part in (term.kernels if isinstance(term, Sum) else [term])]
        _check_terms(flat)
        self.terms = nn.ModuleList(flat)
        self.in_dim, self.out_dim = flat[0].in_dim, flat[0].out_dim
        self.pos_dim = next((term.pos_dim for term in flat if term.pos_dim is not None), None)
        self.is_causal = all(term.is_causal for term in flat)
        self.signal_range = _common_range([term.signal_range for term in flat])
        self.reads_query = any(term.reads_query for term in flat)
        self.reads_past_by_position = all(term.reads_past_by_position for term in flat)
        self.reads_order = any(term.reads_order for term in flat)
        self.is_affine = any(term.is_affine for term in flat)
        self.counts_points = any(term.counts_points for term in flat)
        self.is_pairwise = all(term.is_pairwise for term in flat)
        self.holds_pair_weights = any(term.holds_pair_weights for term in flat)
        self.edge_dim = max(term.edge_dim for term in flat)
        with_state = [term for term in flat if isinstance(term, Stateful)]
        self.has_growing_state = any(term.has_growing_state for term in with_state)
        self.sees_simultaneous = any(term.sees_simultaneous for term in with_state)
        self.reads_time = any(term.reads_time for term in with_state)

    @property
    def query_dim(self) -> int:
        """Channels of u(x)."""
        return self.kernels[0].query_dim

    @property
    def kernels(self) -> list[Kernel]:
        """The terms."""
        return [term for term in self.terms if isinstance(term, Kernel)]

    def output_domain(self, domain: Domain) -> Domain:
        """See `Kernel.output_domain`; all terms must agree."""
        return _common_output_domain(self.kernels, domain)

    def initial_state(self, batch_size: int) -> State:
        """The states of all terms, concatenated; see `Stateful.initial_state`."""
        return joined_states(stateful(term).initial_state(batch_size) for term in self.kernels)

    def unsteppable(self, domain: Domain) -> list[str]:
        """See `Stateful.unsteppable`: terms without a state, and the reasons of the others."""
        return [reason for term in self.kernels for reason in _unsteppable(term, domain)]

    def states_of_terms(self, state: State) -> list[State]:
        """The part of a state that belongs to each term."""
        parts, first = [], 0
        for term in self.kernels:
            stop = first + len(stateful(term).initial_state(0))
            parts.append(state[first:stop])
            first = stop
        return parts

    def step(self, u: Tensor, state: State, time: Tensor | None = None) -> tuple[Tensor, State]:
        """The sum of the terms' steps, each from its part of the state; see `Stateful.step`."""
        before = zip(self.kernels, self.states_of_terms(state), strict=True)
        steps = [stateful(term).step(u, own, time) for term, own in before]
        return added(out for out, _ in steps), joined_states(after for _, after in steps)

    def matrix(
        self, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        """Σ_m κ_m; see `Kernel.matrix`."""
        total = None
        for term in self.kernels:
            kappa = term.matrix(u, domain, query, query_domain)
            if self.is_affine and not term.is_affine:
                kappa = nn.functional.pad(kappa, (0, 1))
            if self.counts_points and not term.counts_points:
                scale = torch.atleast_2d(torch.where(domain.counts_per_mass > 0, domain.counts_per_mass, 1.0))
                kappa = kappa / scale[:, None, :, None, None].to(kappa.dtype)
            if self.holds_pair_weights and not term.holds_pair_weights and domain.pair_weights is not None:
                kappa = weigh_by_head(kappa, domain.pair_weights)
            total = kappa if total is None else total + kappa
        assert total is not None
        return total


@final
class Scaled(Stateful):
    """κ = g κ_1 with a learned scalar gate g; `g * kernel` builds it. Its state is that of κ_1.

    Args:
        kernel: κ_1.
        gate: g at the start. At 0 the term is absent at first, and only g gets a gradient.

    Raises:
        ValueError, TypeError: κ_1 is no kernel, or the gate no finite number.
    """

    no_weight_decay = frozenset({"gate"})

    def __init__(self, kernel: Kernel, gate: float = 0.0) -> None:
        super().__init__()
        if not isinstance(kernel, Kernel):
            raise TypeError(f"kernels.Scaled: kernel must be a fredholm kernel; got {type(kernel).__name__}")
        check_number("kernels.Scaled", "gate", gate)
        if not math.isfinite(gate):
            raise ValueError(f"kernels.Scaled: gate must be finite; got {gate}")
        self.kernel = kernel
        like = next(kernel.parameters(), torch.empty(0))
        self.gate = nn.Parameter(torch.tensor([float(gate)], dtype=like.dtype, device=like.device))
        self.in_dim, self.out_dim, self.pos_dim = kernel.in_dim, kernel.out_dim, kernel.pos_dim
        self.is_causal, self.reads_query = kernel.is_causal, kernel.reads_query
        self.signal_range = kernel.signal_range
        self.reads_past_by_position, self.reads_order = kernel.reads_past_by_position, kernel.reads_order
        self.is_affine, self.counts_points = kernel.is_affine, kernel.counts_points
        self.is_pairwise, self.holds_pair_weights = kernel.is_pairwise, kernel.holds_pair_weights
        self.edge_dim = kernel.edge_dim
        if isinstance(kernel, Stateful):
            self.has_growing_state, self.reads_time = kernel.has_growing_state, kernel.reads_time
            self.sees_simultaneous = kernel.sees_simultaneous

    @property
    def query_dim(self) -> int:
        """Channels of u(x)."""
        return self.kernel.query_dim

    def output_domain(self, domain: Domain) -> Domain:
        """See `Kernel.output_domain`."""
        return self.kernel.output_domain(domain)

    def initial_state(self, batch_size: int) -> State:
        """The state of κ_1; see `Stateful.initial_state`."""
        return stateful(self.kernel).initial_state(batch_size)

    def unsteppable(self, domain: Domain) -> list[str]:
        """See `Stateful.unsteppable`: κ_1 has no state, or its own reasons."""
        return _unsteppable(self.kernel, domain)

    def step(self, u: Tensor, state: State, time: Tensor | None = None) -> tuple[Tensor, State]:
        """g times the step of κ_1; see `Stateful.step`."""
        out, state = stateful(self.kernel).step(u, state, time)
        return self.gate[0] * out, state

    def matrix(
        self, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        """g κ_1; see `Kernel.matrix`."""
        return self.gate[0] * self.kernel.matrix(u, domain, query, query_domain)


def _unsteppable(part: Kernel, domain: Domain) -> list[str]:
    """Reasons why a part of a kernel does not go step by step, a sentence each."""
    if not isinstance(part, Stateful):
        return [f"{type(part).__name__} carries no state along a sequence"]
    return part.unsteppable(domain)


def _check_terms(terms: Sequence[Kernel]) -> None:
    if not terms:
        raise ValueError("kernels.Sum: needs at least one kernel; got none")
    for term in terms:
        if not isinstance(term, Kernel):
            raise TypeError(f"kernels.Sum: every term must be a fredholm kernel; got {type(term).__name__}")
    for what in ("in_dim", "out_dim", "query_dim"):
        sizes = [getattr(term, what) for term in terms]
        if len(set(sizes)) > 1:
            named = ", ".join(f"{type(t).__name__} {size}" for t, size in zip(terms, sizes, strict=True))
            raise ValueError(f"kernels.Sum: all terms need the same {what}; got {named}")
    edge_dims = {term.edge_dim for term in terms if term.edge_dim}
    if len(edge_dims) > 1:
        raise ValueError(f"kernels.Sum: terms read different numbers of features of a pair, {sorted(edge_dims)}")
    read = {term.pos_dim for term in terms if term.pos_dim is not None}
    if len(read) > 1:
        raise ValueError(f"kernels.Sum: terms read positions of different dimensions, {sorted(read)}")


def _common_output_domain(terms: Sequence[Kernel], domain: Domain) -> Domain:
    first, *others = (term.output_domain(domain) for term in terms)
    for other in others:
        if not _same_points(first, other):
            raise ValueError(
                f"kernels.Sum: the terms give their results at different points, {first!r} and {other!r}; "
                "choose stride and padding so that they agree"
            )
    return first


def _same_points(one: Domain, other: Domain) -> bool:
    """Whether two domains have the same positions; True where that depends on values that cannot be read."""
    if other is one:
        return True
    if other.pos.shape[-2:] != one.pos.shape[-2:]:
        return False
    grids = whole_grid(one), whole_grid(other)
    if grids[0] is not None and grids[1] is not None and grids[0].shape == grids[1].shape:
        numbers = zip(grids[0].spacing + grids[0].origin, grids[1].spacing + grids[1].origin, strict=True)
        return all(math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-8) for a, b in numbers)
    if not values_can_be_read(one.pos, other.pos):
        return True
    return torch.allclose(other.pos.to(one.pos.dtype), one.pos)
