"""The abstract evaluation, a way to the value of an integral, and the abstract route, one way with its conditions."""

import abc
import enum
from types import UnionType
from typing import ClassVar, Generic, cast, final

from torch import Tensor

from fredholm.domains import is_ordered_by_index
from fredholm.evaluation.integral import Integral, K
from fredholm.kernels import Kernel, State, Stateful


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


class Queries(enum.Enum):
    """Which queries a route can serve; the value is what it says against all others."""

    ANYWHERE = ""
    AT_POINTS = "the queries are not the points of the signal"
    """At the points, whatever u(x) is there."""
    OWN = "the queries have a signal of their own, or are not the points of the signal"
    """At the points, u(x) being the signal itself."""


class Route(Evaluation, Generic[K]):
    """One way, with its conditions. What it does not state here it is never asked for.

    A subclass gives `marker`, `refusals` and `compute`, and `weighs_pairs` or `queries` where they are not the default.
    """

    marker: ClassVar[type[Kernel] | UnionType] = Kernel
    """The kernels that the route is made for, K."""
    weighs_pairs: ClassVar[bool] = False
    """Whether the route honours a measure that differs from query to query (`Domain.weigh_pairs`)."""
    queries: ClassVar[Queries] = Queries.ANYWHERE
    """Which queries it serves."""

    @abc.abstractmethod
    def refusals(self, integral: Integral[K]) -> list[str]:
        """What `unsupported_reasons` says beside kernel, queries and pair weights."""

    @abc.abstractmethod
    def compute(self, integral: Integral[K]) -> Tensor:
        """`integrate`, for an integral that the route does not refuse."""

    @final
    def unsupported_reasons(self, integral: Integral[Kernel]) -> list[str]:
        """See `Evaluation.unsupported_reasons`."""
        if not self.is_made_for(integral.kernel):
            return [f"{type(integral.kernel).__name__} is not marked {_name_of(self.marker)}"]
        reasons = self.refusals(cast("Integral[K]", integral))
        served = self.queries is Queries.ANYWHERE or (
            integral.at_points if self.queries is Queries.AT_POINTS else integral.own_queries
        )
        if not served:
            reasons = [*reasons, self.queries.value]
        if integral.domain.pair_bias is not None and not self.weighs_pairs:
            reasons = [*reasons, "the measure differs from query to query"]
        return reasons

    @final
    def is_made_for(self, kernel: Kernel) -> bool:
        """Whether a kernel has the route's marker."""
        return isinstance(kernel, self.marker)

    @final
    def integrate(self, integral: Integral[Kernel]) -> Tensor:
        """See `Evaluation.integrate`."""
        self._raise(self.unsupported_reasons(integral))
        return self.take(integral)

    @final
    def take(self, integral: Integral[Kernel]) -> Tensor:
        """`integrate`, for an integral that the route has been asked about and does not refuse."""
        if integral.num_queries == 0:
            # nothing is wanted, and nothing that overflows on the way to it may reach a gradient
            return integral.u[:, :0, :1].expand(-1, -1, integral.kernel.out_dim)
        return self.compute(cast("Integral[K]", integral))

    @final
    def explain(self, integral: Integral[Kernel]) -> str:
        """See `Evaluation.explain`."""
        reasons = self.unsupported_reasons(integral)
        if reasons:
            return f"{self.name}, as asked, refuses: {'; '.join(reasons)}"
        return f"{self.name}: {self.purpose} (as asked)"

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
        """Why `run` refuses, a sentence each; empty when it does not."""
        reasons = self.unsupported_reasons(integral)
        kernel, domain = integral.kernel, integral.domain
        if not isinstance(kernel, Stateful) or not kernel.is_causal:
            reasons = [*reasons, f"{type(kernel).__name__} carries no state along a sequence"]
        elif self.is_made_for(kernel):
            if not integral.own_queries:
                reasons = [*reasons, "a state is carried from point to point of the signal, and the queries are others"]
            if domain.pair_bias is not None:
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
        return self.advance(cast("Integral[K]", integral), state, reset)


def stateful(kernel: Kernel) -> Stateful:
    """A kernel as the one with a state that `run` has found it to be."""
    if not isinstance(kernel, Stateful):
        raise TypeError(f"{type(kernel).__name__} carries no state along a sequence")
    return kernel


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
