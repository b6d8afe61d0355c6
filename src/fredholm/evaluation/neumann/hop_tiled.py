"""One hop of infinite attention, in tiles."""

import dataclasses
from typing import final

from torch import Tensor

from fredholm.evaluation.evaluation import StatefulRoute, cache_refusals
from fredholm.evaluation.integral import Integral
from fredholm.evaluation.neumann.integrate import common_refusals, continue_hops, integrate_hops, plan_of
from fredholm.kernels import Neumann, State, Stateful


@final
@dataclasses.dataclass(frozen=True)
class HopTiled(StatefulRoute[Neumann]):
    """For `Neumann` kernels of one hop: scores, norms and sums tile by tile, in memory that grows with N.

    Cost per pair and head 2(d + d_v) flops forward and five such products backward. Scores, norms and sums are in
    float32 whatever the signal.

    Args:
        tile_elements: pairs in a tile; None: 2^17 a thread on a CPU, which its cache can hold, 2^24 elsewhere.
    """

    marker = Neumann
    weighs_pairs = True
    tile_elements: int | None = None

    def refusals(self, integral: Integral[Neumann]) -> list[str]:
        """Refuses series, and norms of one's own; see `Route.refusals`."""
        kernel = integral.kernel
        reasons = [] if kernel.discount is None else ["the kernel is a series of hops, not one"]
        if isinstance(kernel, Stateful) and not kernel.has_growing_state:
            reasons.append("the kernel's state is not all points, and this route hands on no other")
        return reasons + common_refusals(integral)

    def compute(self, integral: Integral[Neumann]) -> Tensor:
        """See `Route.compute`."""
        return integrate_hops(integral, plan_of(integral.kernel), self.tile_elements)

    def run_refusals(self, integral: Integral[Neumann], state: State | None, reset: Tensor | None) -> list[str]:
        """Refuses what a cache of keys does not remember."""
        return cache_refusals(integral, reset)

    def advance(
        self, integral: Integral[Neumann], state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """See `StatefulRoute.advance`; the state is every key and value so far, and the norm."""
        return continue_hops(integral, state, plan_of(integral.kernel), self.tile_elements)
