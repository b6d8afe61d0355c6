"""The series of a causal kernel of hops, by forward substitution."""

import dataclasses
from typing import final

from torch import Tensor

from fredholm.domains import is_ordered_by_index
from fredholm.evaluation.evaluation import StatefulRoute, cache_refusals
from fredholm.evaluation.integral import Integral
from fredholm.evaluation.neumann.inputs import HopPlan
from fredholm.evaluation.neumann.integrate import common_refusals, continue_hops, integrate_hops, plan_of
from fredholm.evaluation.neumann.solvers import SUBSTITUTION
from fredholm.kernels import Neumann, State, Stateful


@final
@dataclasses.dataclass(frozen=True)
class HopSubstitution(StatefulRoute[Neumann]):
    """For causal `Neumann` series: exact, block of rows after block, at the cost of two hops and memory O(N·d).

    The system is triangular, so that y at a point needs v + y before it only. The backward pass substitutes from the
    last point on.

    Args:
        tile_elements: as in `HopTiled`.
    """

    marker = Neumann
    weighs_pairs = True
    tile_elements: int | None = None

    def refusals(self, integral: Integral[Neumann]) -> list[str]:
        """Refuses kernels that look ahead, points that share a time, single hops, and norms of one's own."""
        kernel = integral.kernel
        reasons = ["the kernel is one hop, not a series"] if kernel.discount is None else []
        if isinstance(kernel, Stateful) and not kernel.has_growing_state:
            reasons.append("the kernel's state is not all points, and this route hands on no other")
        if not kernel.is_causal:
            reasons.append("the kernel looks ahead (is_causal is off)")
        elif not is_ordered_by_index(integral.domain):
            reasons.append("points that share a time see each other")
        return reasons + common_refusals(integral)

    def compute(self, integral: Integral[Neumann]) -> Tensor:
        """See `Route.compute`."""
        return integrate_hops(integral, _plan(integral.kernel), self.tile_elements)

    def run_refusals(self, integral: Integral[Neumann], state: State | None, reset: Tensor | None) -> list[str]:
        """Refuses what a cache of keys does not remember."""
        return cache_refusals(integral, reset)

    def advance(
        self, integral: Integral[Neumann], state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """See `StatefulRoute.advance`; the state is every key and v + y so far, and the norm."""
        return continue_hops(integral, state, _plan(integral.kernel), self.tile_elements)


def _plan(kernel: Neumann) -> HopPlan:
    return plan_of(kernel, SUBSTITUTION)
