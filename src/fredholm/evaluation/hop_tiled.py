"""One hop of infinite attention, in tiles."""

import dataclasses
from typing import final

from torch import Tensor

from fredholm.domains import Domain
from fredholm.evaluation.evaluation import StatefulEvaluation
from fredholm.evaluation.neumann.integrate import common_refusals, continue_hops, integrate_hops, plan_of
from fredholm.kernels import Kernel, Neumann, State, Stateful


@final
@dataclasses.dataclass(frozen=True)
class HopTiled(StatefulEvaluation):
    """For `Neumann` kernels of one hop: scores, norms and sums tile by tile, in memory that grows with N.

    Cost per pair and head 2(d + d_v) flops forward and five such products backward. Scores, norms and sums are in
    float32 whatever the signal.

    Args:
        tile_elements: pairs in a tile; None: 2^17 a thread on a CPU, which its cache can hold, 2^24 elsewhere.
    """

    marker = Neumann
    weighs_pairs = True
    tile_elements: int | None = None

    def refusals(
        self, kernel: Kernel, u: Tensor, domain: Domain, query: Tensor | None, query_domain: Domain | None
    ) -> list[str]:
        """Refuses series, and norms of one's own; see `Evaluation.unsupported_reasons`."""
        assert isinstance(kernel, Neumann)
        reasons = [] if kernel.discount is None else ["the kernel is a series of hops, not one"]
        if isinstance(kernel, Stateful) and not kernel.has_growing_state:
            reasons.append("the kernel's state is not all points, and this route hands on no other")
        return reasons + common_refusals(kernel, domain, query_domain)

    def integrate(
        self, kernel: Kernel, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        """See `Evaluation.integrate`."""
        assert isinstance(kernel, Neumann)
        return integrate_hops(kernel, u, domain, query, query_domain, plan_of(kernel), self.tile_elements)

    def run(
        self, kernel: Kernel, u: Tensor, domain: Domain, state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """See `StatefulEvaluation.run`; the state is every key and value so far, and the norm.

        Raises:
            ValueError: on a reset, masked points, or masses of their own, which the cache does not remember.
        """
        assert isinstance(kernel, Neumann)
        return continue_hops(kernel, u, domain, state, reset, plan_of(kernel), self.tile_elements)
