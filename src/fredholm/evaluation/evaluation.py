"""The abstract evaluation: one route to the value of an integral."""

import abc
from types import UnionType
from typing import ClassVar, final

from torch import Tensor

from fredholm.domains import Domain
from fredholm.kernels import Kernel, State


class Evaluation(abc.ABC):
    """How Σ_j ω_j κ(x_i, y_j, u(x_i), u(y_j)) u(y_j) is computed: never what it is.

    For what it does not refuse, every route gives the numbers of `Dense`, in the forward pass and in every gradient.
    """

    marker: ClassVar[type[Kernel] | UnionType] = Kernel
    """The kernels that the route is made for."""
    weighs_pairs: ClassVar[bool] = False
    """Whether the route honours a measure that differs from query to query (`Domain.weigh_pairs`)."""

    @final
    def unsupported_reasons(
        self, kernel: Kernel, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> list[str]:
        """Why this route cannot compute this integral, a sentence each; empty when it can. Shapes as in `integrate`."""
        if not isinstance(kernel, self.marker):
            return [f"{type(kernel).__name__} is not marked {_name_of(self.marker)}"]
        reasons = self.refusals(kernel, u, domain, query, query_domain)
        if domain.pair_bias is not None and not self.weighs_pairs:
            reasons = [*reasons, "the measure differs from query to query"]
        return reasons

    @abc.abstractmethod
    def refusals(
        self, kernel: Kernel, u: Tensor, domain: Domain, query: Tensor | None, query_domain: Domain | None
    ) -> list[str]:
        """What `unsupported_reasons` says of a kernel with the route's marker, pair weights aside."""

    @abc.abstractmethod
    def integrate(
        self, kernel: Kernel, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        """The integral at every query.

        Args:
            kernel: κ, with d_in input and d_out output channels.
            u: signal at the keys, `(B, N, d_in)`; 0 at points that do not exist.
            domain: where u lives; `kernel.measure` says what its points weigh.
            query: signal at the queries, `(B, Nq, query_dim)`; None: `u`.
            query_domain: where the queries lie; None: `domain`.

        Returns:
            `(B, Nq, d_out)`; exactly 0 for a query that nothing is integrated for.
        """

    @final
    @property
    def name(self) -> str:
        """The route's name."""
        return type(self).__name__


class StatefulEvaluation(Evaluation):
    """A route that can also start from a state and hand on the one it ends in. Kernels are `Stateful`."""

    @abc.abstractmethod
    def run(
        self, kernel: Kernel, u: Tensor, domain: Domain, state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """The integral along a sequence that goes on from `state`, and the state at its end.

        Args:
            kernel: a stateful kernel.
            u: `(B, N, d_in)`.
            domain: N points in order; one that does not exist leaves the state as it is.
            state: what earlier points left behind, the batch first; None: `kernel.initial_state`.
            reset: `(B, N)` bool, True = the state is cleared before this point is read.

        Returns:
            `(B, N, d_out)`, and the state after the last point that exists.
        """

    def integrate(
        self, kernel: Kernel, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        """See `Evaluation.integrate`."""
        return self.run(kernel, u, domain)[0]


def _name_of(marker: type[Kernel] | UnionType) -> str:
    kinds = marker.__args__ if isinstance(marker, UnionType) else (marker,)
    return " or ".join(kind.__name__ for kind in kinds)
