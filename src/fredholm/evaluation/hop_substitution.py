"""The series of a causal kernel of hops, by forward substitution."""

import dataclasses
from typing import final

from torch import Tensor

from fredholm.domains import Domain, is_ordered_by_index
from fredholm.evaluation.evaluation import StatefulEvaluation
from fredholm.evaluation.neumann.inputs import HopPlan
from fredholm.evaluation.neumann.integrate import common_refusals, continue_hops, integrate_hops, plan_of
from fredholm.evaluation.neumann.solvers import SUBSTITUTION
from fredholm.kernels import Kernel, Neumann, State, Stateful


@final
@dataclasses.dataclass(frozen=True)
class HopSubstitution(StatefulEvaluation):
    """For causal `Neumann` series: exact, block of rows after block, at the cost of two hops and memory O(N·d).

    The system is triangular, so that y at a point needs v + y before it only. The backward pass substitutes from the
    last point on.

    Args:
        tile_elements: as in `HopTiled`.
    """

    marker = Neumann
    weighs_pairs = True
    tile_elements: int | None = None

    def refusals(
        self, kernel: Kernel, u: Tensor, domain: Domain, query: Tensor | None, query_domain: Domain | None
    ) -> list[str]:
        """Refuses kernels that look ahead, points that share a time, single hops, and norms of one's own."""
        assert isinstance(kernel, Neumann)
        reasons = ["the kernel is one hop, not a series"] if kernel.discount is None else []
        if isinstance(kernel, Stateful) and not kernel.has_growing_state:
            reasons.append("the kernel's state is not all points, and this route hands on no other")
        if not kernel.is_causal:
            reasons.append("the kernel looks ahead (is_causal is off)")
        elif not is_ordered_by_index(domain):
            reasons.append("points that share a time see each other")
        return reasons + common_refusals(kernel, domain, query_domain)

    def integrate(
        self, kernel: Kernel, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        """See `Evaluation.integrate`."""
        assert isinstance(kernel, Neumann)
        return integrate_hops(kernel, u, domain, query, query_domain, _plan(kernel), self.tile_elements)

    def run(
        self, kernel: Kernel, u: Tensor, domain: Domain, state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """See `StatefulEvaluation.run`; the state is every key and v + y so far, and the norm.

        Raises:
            ValueError: on a reset, masked points, or masses of their own, which the cache does not remember.
        """
        assert isinstance(kernel, Neumann)
        return continue_hops(kernel, u, domain, state, reset, _plan(kernel), self.tile_elements)


def _plan(kernel: Neumann) -> HopPlan:
    return plan_of(kernel, SUBSTITUTION)
