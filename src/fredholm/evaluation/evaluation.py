"""Evaluations compute integrals: the abstract evaluation, the route with its conditions, and the first of several."""

import abc
import enum
from collections.abc import Callable, Iterable, Iterator
from types import UnionType
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, cast, final

from torch import Tensor

from fredholm.domains import is_ordered_by_index
from fredholm.evaluation.integral import Integral
from fredholm.kernels import Kernel, State, Stateful

K = TypeVar("K", bound=Kernel, covariant=True)

NOTHING = "no route: there is no batch entry, no point, no query or no pair, and the integral is 0 at every query"
"""The explanation of an empty integral."""


class Evaluation(abc.ABC):
    """A way to compute Σ_j ω_j κ(x_i, y_j, u(x_i), u(y_j)) u(y_j), without effect on its value.

    Every evaluation equals `Dense` in the forward pass and in every gradient, unless it refuses.
    """

    @abc.abstractmethod
    def unsupported_reasons(self, integral: Integral[Kernel]) -> list[str]:
        """Reasons why this evaluation cannot compute the integral, a sentence each; empty where it can."""

    @abc.abstractmethod
    def integrate(self, integral: Integral[Kernel]) -> Tensor:
        """The integral at every query, `(B, Nq, d_out)`; exactly 0 for a query without visible points.

        Raises:
            ValueError: with the `unsupported_reasons`, if any.
        """

    @abc.abstractmethod
    def explain(self, integral: Integral[Kernel]) -> str:
        """A description of how `integrate` would compute this integral, and why other routes refuse it."""

    @property
    def name(self) -> str:
        """The evaluation's name."""
        return type(self).__name__

    @final
    @property
    def purpose(self) -> str:
        """The first line of the class docstring."""
        return (type(self).__doc__ or "").strip().split("\n")[0]


class StatefulEvaluation(Evaluation):
    """An evaluation that can also start from a state and return the state at the end."""

    @abc.abstractmethod
    def run(
        self, integral: Integral[Kernel], state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """The integral along a sequence that continues from `state`, and the state at its end.

        Args:
            integral: of a causal `Stateful` kernel at its own points; one that does not exist leaves the state as it
                is.
            state: the state after the earlier points, batch first; None: `kernel.initial_state`.
            reset: `(B, N)` bool, True = the state is cleared before this point is read.

        Returns:
            `(B, N, d_out)`, and the state after the last point that exists.

        Raises:
            ValueError: where this evaluation carries no state along this sequence.
        """

    @abc.abstractmethod
    def unsupported_run_reasons(
        self, integral: Integral[Kernel], state: State | None = None, reset: Tensor | None = None
    ) -> list[str]:
        """Reasons why `run` refuses, a sentence each; empty where it does not."""


class Queries(enum.Enum):
    """Queries that a route supports; the value is its reason to refuse all others."""

    ANYWHERE = ""
    AT_POINTS = "the queries are not the points of the signal"
    """Queries at the points, with any u(x)."""
    OWN = "the queries have a signal of their own, or are not the points of the signal"
    """Queries at the points, where u(x) is the signal itself."""


class Route(Evaluation, Generic[K]):
    """One way to compute integrals, with its conditions. It only gets integrals that meet the conditions.

    A subclass defines `marker`, `refusals` and `compute`, and `weighs_pairs`, `lists_pairs`, `spans_processes`,
    `queries` or `devices` where they differ from the default.
    """

    marker: ClassVar[type[Kernel] | UnionType] = Kernel
    """The kernels that the route is made for, K."""
    weighs_pairs: ClassVar[bool] = False
    """Whether the route supports pair weights (`Domain.weigh_pairs`)."""
    lists_pairs: ClassVar[bool] = False
    """Whether it supports listed pairs (`Domain.list_pairs`)."""
    needs_list: ClassVar[bool] = False
    """Whether it supports listed pairs only; messages do not mention it for other measures."""
    queries: ClassVar[Queries] = Queries.ANYWHERE
    """The queries that it supports."""
    needs_fixed_sizes: ClassVar[bool] = False
    """Whether the sequence of operations, not just their sizes, depends on the number of points."""
    differentiable_twice: ClassVar[bool] = True
    """Whether it has second derivatives and forward-mode derivatives."""
    spans_processes: ClassVar[bool] = False
    """Whether it supports a sharded signal (`distributed.Shard`)."""
    needs_processes: ClassVar[bool] = False
    """Whether it supports sharded signals only; messages do not mention it for other signals."""
    devices: ClassVar[tuple[str, ...] | None] = None
    """Device types that it runs on; elsewhere it refuses without further checks. None: all."""

    @abc.abstractmethod
    def refusals(self, integral: Integral[K]) -> list[str]:
        """Reasons of `unsupported_reasons` apart from kernel, queries and pair weights."""

    @abc.abstractmethod
    def compute(self, integral: Integral[K]) -> Tensor:
        """`integrate`, for an integral that the route does not refuse."""

    def details(self, integral: Integral[K]) -> list[str]:
        """Lines of `explain` after the route's purpose, such as its parts and its cost."""
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
        if self.needs_fixed_sizes and integral.has_open_sizes:
            return ["its operations depend on sizes that are symbolic in the graph"]
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

    def applies_to(self, integral: Integral[K]) -> bool:
        """Whether the route may fit a kernel with these options; else messages do not mention it."""
        return True

    @final
    def is_meant_for(self, integral: Integral[Kernel]) -> bool:
        """Whether it is made for the kernel with its options, and for the kind of its measure."""
        if not self.is_made_for(integral.kernel) or (integral.domain.pair_list is None and self.needs_list):
            return False
        if self.needs_processes if not integral.is_shared else not self.spans_processes:
            return False
        return self.applies_to(cast("Integral[K]", integral))

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
            return f"{self.name}, as set, refuses: {'; '.join(reasons)}"
        return "\n".join([f"{self.name}: {self.purpose} (as set)", *self.details(cast("Integral[K]", integral))])

    @final
    def _raise(self, reasons: list[str]) -> None:
        if reasons:
            raise ValueError(f"{self.name} refuses this integral: {'; '.join(reasons)}")


class StatefulRoute(Route[K], StatefulEvaluation):
    """A route that carries a state along a sequence. A subclass also defines `run_refusals` and `advance`."""

    @abc.abstractmethod
    def run_refusals(self, integral: Integral[K], state: State | None, reset: Tensor | None) -> list[str]:
        """Reasons against `run`, besides those common to all routes and those against `integrate`."""

    @abc.abstractmethod
    def advance(
        self, integral: Integral[K], state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """`run`, for a sequence that the route does not refuse."""

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
                reasons = [*reasons, "a state is carried along the points of the signal, and the queries are others"]
            if domain.pair_bias is not None or domain.pair_list is not None:
                reasons = [*reasons, "a state does not keep pair weights"]
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
    """The chosen route, its details of the integral, and the refusals of the routes before it."""

    route: Route[Any]
    refusals: dict[str, list[str]]
    details: list[str]

    def __str__(self) -> str:
        lines = [f"{self.route.name}: {self.route.purpose}", *(f"  {line}" for line in self.details)]
        lines += [f"  not {name}: {'; '.join(reasons)}" for name, reasons in self.refusals.items()]
        return "\n".join(lines)


class FirstOf(StatefulEvaluation):
    """The first of several routes that can compute an integral; a subclass lists them.

    Messages do not mention routes for other kernels.

    Attributes:
        routes: the fastest first.
        differentiable_twice: whether to take only routes with second derivatives, also for parts of a kernel.
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
        return integral.twice_differentiable() if self.differentiable_twice else integral

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
    """The first route that does not refuse, and the refusals of those before it; raises a ValueError if all refuse."""
    refusals: dict[str, list[str]] = {}
    for route in routes:
        reasons = reasons_of(route)
        if not reasons:
            return route, refusals
        refusals[route.name] = reasons
    raise ValueError(_refused(integral, refusals))


def _refused(integral: Integral[Kernel], refusals: dict[str, list[str]]) -> str:
    # the plainest routes are last in the list, and their reasons matter most
    reasons_by_route = "; ".join(f"{name}: {', '.join(reasons)}" for name, reasons in reversed(refusals.items()))
    return f"no route can integrate {type(integral.kernel).__name__} on {integral.domain!r} ({reasons_by_route})"


def cache_refusals(integral: Integral[Kernel], reset: Tensor | None) -> list[str]:
    """Reasons why a state of all keys and values does not support such a sequence."""
    if reset is None and integral.domain.is_plain:
        return []
    return [
        "a cache of keys keeps neither resets nor masks and weights; run each sequence by itself, or call the operator "
        "on the whole signal"
    ]


def _name_of(marker: type[Kernel] | UnionType) -> str:
    kinds = marker.__args__ if isinstance(marker, UnionType) else (marker,)
    return " or ".join(kind.__name__ for kind in kinds)
