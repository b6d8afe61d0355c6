"""The integral as a value; an evaluation, a way to it; a route, one way with its conditions; the first of several."""

import abc
import dataclasses
import enum
from collections.abc import Callable, Iterable, Iterator
from types import UnionType
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, cast, final

import torch
from torch import Tensor

from fredholm._precision import product_dtype
from fredholm.domains import Domain, Points, is_ordered_by_index, order_times, past_mass
from fredholm.domains.checks import is_open
from fredholm.domains.order import check_order
from fredholm.kernels import Kernel, MultiHead, State, Stateful
from fredholm.kernels.kernel import stateful

K = TypeVar("K", bound=Kernel, covariant=True)
Answer = TypeVar("Answer")

NOTHING = "no route: there is no batch entry, no point, no query or no pair, and the integral is 0 at every query"
"""What `explain` says of an empty integral."""


@final
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class Integral(Generic[K]):
    """∫ κ(x, y, u(x), u(y)) u(y) dμ(y) at every query x, with all defaults resolved.

    Whether the queries are the points is decided here, once, by what they are: nobody else compares them.

    Args:
        kernel: κ, with d_in input and d_out output channels.
        u: signal at the keys, `(B, N, d_in)`; 0 at points that do not exist.
        domain: where u lives, N points; `kernel.measure` says what they weigh.
        query: signal at the queries, `(B, Nq, query_dim)`; None: u, where the queries are the points.
        query_domain: where the queries lie, Nq points; None: `domain`.

    Attributes:
        query: zeros, which nobody reads, where the queries lie elsewhere and their signal was not given.
        has_query_signal: whether u(x) is known.
        at_points: whether the queries lie at the points: the same positions, times and masks, in one order.
        own_queries: whether, besides, u(x) is the signal itself, or is not read.
        differentiable_twice: whether a gradient of the gradient is wanted, or a forward-mode derivative.

    Raises:
        ValueError: where the kernel reads u(x) at queries whose signal was not given, or is not that of the points.
    """

    kernel: K
    u: Tensor
    domain: Domain
    query: Tensor
    query_domain: Domain
    has_query_signal: bool
    at_points: bool
    own_queries: bool
    differentiable_twice: bool
    _answers: dict[Any, Any]

    def __init__(
        self, kernel: K, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> None:
        at_points = query_domain is None or query_domain.has_points_of(domain)
        query_domain = domain if query_domain is None else query_domain
        known = query is not None or at_points
        if kernel.reads_query and not known:
            raise ValueError(
                f"{type(kernel).__name__} reads u(x), and the queries {query_domain!r} are not the points of u; "
                "give query=, the signal there"
            )
        if query is None and kernel.reads_query and kernel.query_dim != u.shape[-1]:
            raise ValueError(
                f"{type(kernel).__name__} reads u(x) with {kernel.query_dim} channels, and the signal at the points "
                f"has {u.shape[-1]}; give query=, the signal at the queries"
            )
        own = at_points and (query is None or query is u or not kernel.reads_query)
        if query is None:
            query = u
            if not at_points:
                query = u.new_zeros(()).expand(u.shape[0], query_domain.num_points, kernel.query_dim)
        found = {
            "kernel": kernel,
            "u": u,
            "domain": domain,
            "query": query,
            "query_domain": query_domain,
            "has_query_signal": known,
            "at_points": at_points,
            "own_queries": own,
            "differentiable_twice": False,
            "_answers": {},
        }
        for name, value in found.items():
            object.__setattr__(self, name, value)  # a frozen dataclass refuses the plain form

    @property
    def arguments(self) -> tuple[Tensor, Domain, Tensor | None, Domain | None]:
        """What a kernel's functions take: u, domain, query and query domain, None where they are the points' own."""
        query = None if self.own_queries and self.own_positions else self.query
        return self.u, self.domain, query, None if self.own_positions else self.query_domain

    @property
    def own_positions(self) -> bool:
        """Whether the queries lie at the points, and no gradient tells their positions from those of the points."""
        asked, pos = self.query_domain.pos, self.domain.pos
        return self.at_points and (asked is pos or not (asked.requires_grad or pos.requires_grad))

    @property
    def working_dtype(self) -> torch.dtype:
        """The dtype of products and of the result: the signal's, or autocast's, which leaves float64 as it is."""
        return product_dtype(self.u)

    @property
    def is_empty(self) -> bool:
        """Whether there is no batch entry, no point, no query or no listed pair, so that the integral is `nothing`."""
        if self.has_no_points or self.num_queries == 0:
            return True
        pairs = None if self.domain.pair_list is None else self.domain.pair_list.num_pairs
        return pairs is not None and not is_open(pairs) and pairs == 0

    @property
    def has_no_points(self) -> bool:
        """Whether no batch entry has a point, so that a state stays as it is."""
        return 0 in (self.u.shape[0], self.domain.num_points)

    def state_after_nothing(self, state: State | None) -> State:
        """The state at the end of an empty sequence that goes on from `state`: without a batch entry its sizes alone.

        Raises:
            TypeError: where the kernel carries no state.
        """
        kernel, (batch, length) = stateful(self.kernel), self.u.shape[:2]
        before = kernel.initial_state(batch) if state is None else state
        if not length or not kernel.has_growing_state:
            return before
        # every point adds as much as the first, and there are no times to tell
        _, after = kernel.step(self.u[:, 0], before, self.u.new_zeros(0, dtype=torch.float64))
        grown = [
            [size + length * (larger - size) for size, larger in zip(old.shape, new.shape, strict=True)]
            for old, new in zip(before, after, strict=True)
        ]
        return tuple(new.new_zeros(shape) for new, shape in zip(after, grown, strict=True))

    def nothing(self) -> Tensor:
        """0 at every query, `(B, Nq, d_out)`; its gradients are 0, whatever it would have been made of."""
        places = (self.domain.pos, self.domain.weights, self.query_domain.pos)
        parts = (self.u, self.query, *places, *self.kernel.parameters())
        # sums of no element: their gradients are there, and 0 even where a value is not finite
        zero = sum((part.flatten()[:0].sum().to(self.working_dtype) for part in parts), start=self.u.new_zeros(()))
        return zero.to(self.working_dtype).expand(self.u.shape[0], self.num_queries, self.kernel.out_dim)

    @property
    def is_shared(self) -> bool:
        """Whether other processes hold some of the points."""
        return self.domain.whole is not None

    @property
    def has_open_sizes(self) -> bool:
        """Whether a graph that is exported leaves open how many points or queries there are."""
        return is_open(self.domain.num_points) or is_open(self.num_queries)

    @property
    def num_queries(self) -> int:
        """Nq."""
        return self.query_domain.num_points

    @property
    def num_heads(self) -> int:
        """Heads that can be taken apart, each with an equal share of the channels; 1: none."""
        return self.kernel.num_heads if isinstance(self.kernel, MultiHead) else 1

    def once(self, question: Callable[["Integral[K]"], Answer]) -> Answer:
        """What a function says of this integral, computed at most once however many routes ask."""
        if question not in self._answers:
            self._answers[question] = question(self)
        return self._answers[question]

    def of(self, kernel: Kernel) -> "Integral[Kernel]":
        """The integral of another kernel on the same channels."""
        return Integral(kernel, self.u, self.domain, *self.arguments[2:]).wanted_as(self)

    def wanted_twice(self) -> "Integral[K]":
        """The same integral, of which a gradient of the gradient is wanted."""
        other = object.__new__(Integral)
        vars(other).update(vars(self), differentiable_twice=True)
        return other

    def wanted_as(self, whole: "Integral[Any]") -> "Integral[K]":
        """The same integral as a part of another, of which the same derivatives are wanted."""
        return self.wanted_twice() if whole.differentiable_twice else self

    def head(self, index: int) -> "Integral[Kernel]":
        """The integral of one of `num_heads` heads, on its share of the channels."""
        if not isinstance(self.kernel, MultiHead):
            return self
        u, domain, query, query_domain = self.arguments
        heads = self.num_heads
        query = None if query is None else share(query, index, heads)
        return Integral(self.kernel.head(index), share(u, index, heads), domain, query, query_domain).wanted_as(self)


def share(signal: Tensor, head: int, num_heads: int) -> Tensor:
    """The channels of one head, `(B, N, C / H)`."""
    size = signal.shape[-1] // num_heads
    return signal[..., head * size : (head + 1) * size]


def order_read(kernel: Kernel, query_domain: Domain, domain: Domain) -> tuple[Tensor | None, Tensor | None]:
    """Times by which a kernel reads the order, of the queries and of the points, `(1 or B, n)` each.

    None where it reads none, and where there is none, of which the kernel then says that it needs one.

    Raises:
        ValueError: of a causal kernel; see `domains.preceding_counts`.
    """
    precedes = kernel.is_causal and not kernel.reads_past_by_position
    if kernel.reads_order and not (query_domain.is_ordered and domain.is_ordered):
        return None, None
    if precedes:
        check_order(query_domain, domain)
    return order_times(query_domain, domain) if precedes or kernel.reads_order else (None, None)


def ordered_queries(integral: Integral[Any]) -> tuple[Domain, Tensor | None]:
    """The queries' domain and the points' times, `(1 or B, N)`, by which nodes keep their order; None: no order.

    Of a causal kernel the queries also keep the mass of their past, which nodes alone do not tell.
    """
    queries, kernel = integral.query_domain, integral.kernel
    asked, times = order_read(kernel, queries, integral.domain) if kernel.is_causal else (None, None)
    if asked is None:
        return queries, None
    past = past_mass(queries, integral.domain)
    pos = queries.pos if queries.pos.ndim == 3 else queries.pos[None]
    batch = max(pos.shape[0], asked.shape[0])
    pos, asked = pos.expand(batch, -1, -1), asked.expand(batch, -1)
    return Points.derived(queries, pos, pos.new_ones(pos.shape[:2]), asked, past), times


class Evaluation(abc.ABC):
    """How Σ_j ω_j κ(x_i, y_j, u(x_i), u(y_j)) u(y_j) is computed: never what it is.

    For what it does not refuse, every evaluation gives the numbers of `Dense`, in the forward pass and in every
    gradient.
    """

    @abc.abstractmethod
    def unsupported_reasons(self, integral: Integral[Kernel]) -> list[str]:
        """Why this integral cannot be computed so, a sentence each; empty when it can."""

    @abc.abstractmethod
    def integrate(self, integral: Integral[Kernel]) -> Tensor:
        """The integral at every query, `(B, Nq, d_out)`; exactly 0 for a query that nothing is integrated for.

        Raises:
            ValueError: with `unsupported_reasons`, where there are some.
        """

    @abc.abstractmethod
    def explain(self, integral: Integral[Kernel]) -> str:
        """How `integrate` would compute this integral, and why not otherwise."""

    @property
    def name(self) -> str:
        """The evaluation's name."""
        return type(self).__name__

    @final
    @property
    def purpose(self) -> str:
        """The first line of its description."""
        return (type(self).__doc__ or "").strip().split("\n")[0]


class StatefulEvaluation(Evaluation):
    """An evaluation that can also start from a state and hand on the one it ends in."""

    @abc.abstractmethod
    def run(
        self, integral: Integral[Kernel], state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """The integral along a sequence that goes on from `state`, and the state at its end.

        Args:
            integral: of a causal `Stateful` kernel at its own points; one that does not exist leaves the state as it
                is.
            state: what earlier points left behind, the batch first; None: `kernel.initial_state`.
            reset: `(B, N)` bool, True = the state is cleared before this point is read.

        Returns:
            `(B, N, d_out)`, and the state after the last point that exists.

        Raises:
            ValueError: where this evaluation carries no state, or not through such a sequence.
        """

    @abc.abstractmethod
    def unsupported_run_reasons(
        self, integral: Integral[Kernel], state: State | None = None, reset: Tensor | None = None
    ) -> list[str]:
        """Why `run` refuses, a sentence each; empty when it does not."""


class Queries(enum.Enum):
    """Which queries a route can serve; the value is what it says against all others."""

    ANYWHERE = ""
    AT_POINTS = "the queries are not the points of the signal"
    """At the points, whatever u(x) is there."""
    OWN = "the queries have a signal of their own, or are not the points of the signal"
    """At the points, u(x) being the signal itself."""


class Route(Evaluation, Generic[K]):
    """One way, with its conditions. What it does not state here it is never asked for.

    A subclass gives `marker`, `refusals` and `compute`, and `weighs_pairs`, `lists_pairs`, `spans_processes`, `queries`
    or `devices` where they are not the default.
    """

    marker: ClassVar[type[Kernel] | UnionType] = Kernel
    """The kernels that the route is made for, K."""
    weighs_pairs: ClassVar[bool] = False
    """Whether the route honours a measure that differs from query to query (`Domain.weigh_pairs`)."""
    lists_pairs: ClassVar[bool] = False
    """Whether it honours one of which a query meets listed points alone (`Domain.list_pairs`)."""
    needs_list: ClassVar[bool] = False
    """Whether it serves such measures and no others; for these it is passed over without a word."""
    queries: ClassVar[Queries] = Queries.ANYWHERE
    """Which queries it serves."""
    plans_sizes: ClassVar[bool] = False
    """Whether the operations themselves, not their sizes alone, depend on how many points there are."""
    differentiable_twice: ClassVar[bool] = True
    """Whether its gradient has a gradient, and it itself forward-mode derivatives."""
    spans_processes: ClassVar[bool] = False
    """Whether it serves a signal of which each process holds a part (`distributed.Shard`)."""
    needs_processes: ClassVar[bool] = False
    """Whether it serves such signals and no others; for these it is passed over without a word."""
    devices: ClassVar[tuple[str, ...] | None] = None
    """The types of devices that it runs on; elsewhere nothing else is asked. None: all."""

    @abc.abstractmethod
    def refusals(self, integral: Integral[K]) -> list[str]:
        """What `unsupported_reasons` says beside kernel, queries and pair weights."""

    @abc.abstractmethod
    def compute(self, integral: Integral[K]) -> Tensor:
        """`integrate`, for an integral that the route does not refuse."""

    def details(self, integral: Integral[K]) -> list[str]:
        """What `explain` says of an integral beside the route's purpose, a line each: its parts, its cost."""
        return []

    @final
    def unsupported_reasons(self, integral: Integral[Kernel]) -> list[str]:
        """See `Evaluation.unsupported_reasons`."""
        if not self.is_made_for(integral.kernel):
            return [f"{type(integral.kernel).__name__} is not marked {_name_of(self.marker)}"]
        if self.devices is not None and (found := integral.u.device.type) not in self.devices:
            return [f"the signal is on {found}, not on {' or '.join(self.devices)}"]
        if integral.is_shared and not self.spans_processes:
            return ["other processes hold some of the points"]
        if integral.is_shared and any(each.is_drawn for each in integral.kernel.modules() if isinstance(each, Kernel)):
            return ["the kernel is drawn anew for every integral, and each process would draw another"]
        if self.needs_processes and not integral.is_shared:
            return ["this process holds all points"]
        if self.plans_sizes and integral.has_open_sizes:
            return ["its operations depend on sizes that the graph leaves open"]
        if integral.is_empty:
            return []
        reasons = self.refusals(cast("Integral[K]", integral))
        served = self.queries is Queries.ANYWHERE or (
            integral.at_points if self.queries is Queries.AT_POINTS else integral.own_queries
        )
        if not served:
            reasons = [*reasons, self.queries.value]
        if integral.differentiable_twice and not self.differentiable_twice:
            reasons = [*reasons, "its gradient has no gradient"]
        if integral.domain.pair_bias is not None and not self.weighs_pairs:
            reasons = [*reasons, "the measure differs from query to query"]
        if integral.domain.pair_list is not None and not self.lists_pairs:
            reasons = [*reasons, "each query has points of its own"]
        if integral.domain.pair_list is None and self.needs_list:
            reasons = [*reasons, "no pairs are listed"]
        return reasons

    @final
    def is_made_for(self, kernel: Kernel) -> bool:
        """Whether a kernel has the route's marker."""
        return isinstance(kernel, self.marker)

    def concerns(self, integral: Integral[K]) -> bool:
        """Whether the route may fit a kernel with these options; else it is passed over without a word."""
        return True

    @final
    def is_meant_for(self, integral: Integral[Kernel]) -> bool:
        """Whether it is made for the kernel, with its options, and the measure is of the kind that it serves."""
        if not self.is_made_for(integral.kernel) or (integral.domain.pair_list is None and self.needs_list):
            return False
        if self.needs_processes if not integral.is_shared else not self.spans_processes:
            return False
        return self.concerns(cast("Integral[K]", integral))

    @final
    def integrate(self, integral: Integral[Kernel]) -> Tensor:
        """See `Evaluation.integrate`."""
        self._raise(self.unsupported_reasons(integral))
        return integral.nothing() if integral.is_empty else self.take(integral)

    @final
    def take(self, integral: Integral[Kernel]) -> Tensor:
        """`integrate`, for an integral that is not empty and that the route does not refuse."""
        return self.compute(cast("Integral[K]", integral)).to(integral.working_dtype)

    @final
    def explain(self, integral: Integral[Kernel]) -> str:
        """See `Evaluation.explain`."""
        reasons = self.unsupported_reasons(integral)
        if integral.is_empty and not reasons:
            return NOTHING
        if reasons:
            return f"{self.name}, as asked, refuses: {'; '.join(reasons)}"
        return "\n".join([f"{self.name}: {self.purpose} (as asked)", *self.details(cast("Integral[K]", integral))])

    @final
    def _raise(self, reasons: list[str]) -> None:
        if reasons:
            raise ValueError(f"{self.name} refuses this integral: {'; '.join(reasons)}")


class StatefulRoute(Route[K], StatefulEvaluation):
    """A route that carries a state along a sequence. A subclass gives `run_refusals` and `advance` as well."""

    @abc.abstractmethod
    def run_refusals(self, integral: Integral[K], state: State | None, reset: Tensor | None) -> list[str]:
        """What speaks against `run` beside what speaks against every run and against `integrate`."""

    @abc.abstractmethod
    def advance(
        self, integral: Integral[K], state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """`run`, for what the route does not refuse."""

    @final
    def unsupported_run_reasons(
        self, integral: Integral[Kernel], state: State | None = None, reset: Tensor | None = None
    ) -> list[str]:
        """See `StatefulEvaluation.unsupported_run_reasons`."""
        reasons = self.unsupported_reasons(integral)
        kernel, domain = integral.kernel, integral.domain
        if not isinstance(kernel, Stateful) or not kernel.is_causal:
            reasons = [*reasons, f"{type(kernel).__name__} carries no state along a sequence"]
        elif self.is_made_for(kernel) and not integral.has_no_points:
            if not integral.own_queries:
                reasons = [*reasons, "a state is carried from point to point of the signal, and the queries are others"]
            if domain.pair_bias is not None or domain.pair_list is not None:
                reasons = [*reasons, "a state does not remember what pairs weigh"]
            if kernel.sees_simultaneous and not is_ordered_by_index(domain):
                reasons = [*reasons, "points that share a time see each other"]
            if reset is not None and kernel.has_growing_state:
                reasons = [*reasons, "a state that holds every point cannot be cleared for some sequences of a batch"]
            reasons = [*reasons, *self.run_refusals(cast("Integral[K]", integral), state, reset)]
        return list(dict.fromkeys(reasons))

    @final
    def run(
        self, integral: Integral[Kernel], state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """See `StatefulEvaluation.run`."""
        self._raise(self.unsupported_run_reasons(integral, state, reset))
        if integral.has_no_points:
            return integral.nothing(), integral.state_after_nothing(state)
        return self.advance(cast("Integral[K]", integral), state, reset)


class Choice(NamedTuple):
    """The route taken, what it tells of the integral, and what each route before it in the list said against itself."""

    route: Route[Any]
    refusals: dict[str, list[str]]
    details: list[str]

    def __str__(self) -> str:
        lines = [f"{self.route.name}: {self.route.purpose}", *(f"  {line}" for line in self.details)]
        lines += [f"  not {name}: {'; '.join(reasons)}" for name, reasons in self.refusals.items()]
        return "\n".join(lines)


class FirstOf(StatefulEvaluation):
    """The first of several routes that can compute an integral; a subclass lists them.

    Routes that are made for other kernels are passed over without a word.

    Attributes:
        routes: the fastest first.
        differentiable_twice: whether only those are taken whose gradient has a gradient, for parts of a kernel too.
    """

    routes: tuple[Route[Any], ...]
    differentiable_twice: bool

    @final
    def choose(self, integral: Integral[Kernel]) -> Choice:
        """The route that `integrate` takes.

        Raises:
            ValueError: when every route refuses, with all reasons, those of the plainest route first.
        """
        integral = self._wanted(integral)
        routes = self._made_for(integral)
        return Choice(*_first(routes, integral, lambda route: route.unsupported_reasons(integral)), [])

    @final
    def unsupported_reasons(self, integral: Integral[Kernel]) -> list[str]:
        """See `Evaluation.unsupported_reasons`."""
        if integral.is_empty:
            return []
        integral = self._wanted(integral)
        refused = {route.name: route.unsupported_reasons(integral) for route in self._made_for(integral)}
        return [] if [] in refused.values() else [_refused(integral, refused)]

    @final
    def integrate(self, integral: Integral[Kernel]) -> Tensor:
        """See `Evaluation.integrate`."""
        return integral.nothing() if integral.is_empty else self.choose(integral).route.take(self._wanted(integral))

    @final
    def run(
        self, integral: Integral[Kernel], state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """See `StatefulEvaluation.run`."""
        if integral.has_no_points:
            return integral.nothing(), integral.state_after_nothing(state)
        integral = self._wanted(integral)
        routes = self._carrying(integral)
        route, _ = _first(routes, integral, lambda route: route.unsupported_run_reasons(integral, state, reset))
        return route.advance(integral, state, reset)

    @final
    def unsupported_run_reasons(
        self, integral: Integral[Kernel], state: State | None = None, reset: Tensor | None = None
    ) -> list[str]:
        """See `StatefulEvaluation.unsupported_run_reasons`."""
        if integral.has_no_points:
            return []
        integral = self._wanted(integral)
        refused = {each.name: each.unsupported_run_reasons(integral, state, reset) for each in self._carrying(integral)}
        return [] if [] in refused.values() else [_refused(integral, refused)]

    @final
    def _carrying(self, integral: Integral[Kernel]) -> Iterator[StatefulRoute[Any]]:
        return (each for each in self._made_for(integral) if isinstance(each, StatefulRoute))

    @final
    def _wanted(self, integral: Integral[Kernel]) -> Integral[Kernel]:
        return integral.wanted_twice() if self.differentiable_twice else integral

    @final
    def _made_for(self, integral: Integral[Kernel]) -> Iterator[Route[Any]]:
        return (route for route in self.routes if route.is_meant_for(integral))

    @final
    def explain(self, integral: Integral[Kernel]) -> str:
        """See `Evaluation.explain`."""
        if integral.is_empty:
            return NOTHING
        integral = self._wanted(integral)
        choice = self.choose(integral)
        return str(choice._replace(details=choice.route.details(integral)))


AnyRoute = TypeVar("AnyRoute", bound=Route[Any])


def _first(
    routes: Iterable[AnyRoute], integral: Integral[Kernel], reasons_of: Callable[[AnyRoute], list[str]]
) -> tuple[AnyRoute, dict[str, list[str]]]:
    """The first route without reasons, and those of the routes before it; raises a ValueError if all have some."""
    refusals: dict[str, list[str]] = {}
    for route in routes:
        reasons = reasons_of(route)
        if not reasons:
            return route, refusals
        refusals[route.name] = reasons
    raise ValueError(_refused(integral, refusals))


def _refused(integral: Integral[Kernel], refusals: dict[str, list[str]]) -> str:
    # the plainest routes stand last, and what they lack is what matters
    told = "; ".join(f"{name}: {', '.join(reasons)}" for name, reasons in reversed(refusals.items()))
    return f"no route can integrate {type(integral.kernel).__name__} on {integral.domain!r} ({told})"


def cache_refusals(integral: Integral[Kernel], reset: Tensor | None) -> list[str]:
    """Why a state that is the keys and values of all points cannot lead through such a sequence."""
    if reset is None and integral.domain.is_plain:
        return []
    return [
        "a cache of keys keeps neither resets nor masks and weights; run each sequence by itself, or call the operator "
        "on the whole signal"
    ]


def _name_of(marker: type[Kernel] | UnionType) -> str:
    kinds = marker.__args__ if isinstance(marker, UnionType) else (marker,)
    return " or ".join(kind.__name__ for kind in kinds)
