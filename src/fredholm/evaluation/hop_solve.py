"""The series of a kernel of hops, by one factorisation a head."""

import dataclasses
from typing import final

from torch import Tensor

from fredholm.domains import Domain
from fredholm.evaluation.evaluation import Evaluation
from fredholm.evaluation.neumann.integrate import common_refusals, integrate_hops, plan_of
from fredholm.evaluation.neumann.solvers import DIRECT
from fredholm.kernels import Kernel, Neumann


@final
@dataclasses.dataclass(frozen=True)
class HopSolve(Evaluation):
    """For `Neumann` series: LU factors of I - γA, N x N a head, kept for the backward pass and for nothing else.

    Cost a head 2/3 N³ flops and two hops; the backward pass solves the transposed system with the same factors, then
    is that of one hop. Factors are in float32 at least.

    Args:
        max_bytes: refuses when the factors of all heads would need more memory than this.
        max_points: refuses more points than this, for which iteration takes less time.
        tile_elements: as in `HopTiled`.
    """

    marker = Neumann
    weighs_pairs = True
    max_bytes: int = 1 << 30
    max_points: int = 2048
    tile_elements: int | None = None

    def refusals(
        self, kernel: Kernel, u: Tensor, domain: Domain, query: Tensor | None, query_domain: Domain | None
    ) -> list[str]:
        """Refuses for size, single hops, and norms of one's own; see `Evaluation.unsupported_reasons`."""
        assert isinstance(kernel, Neumann)
        reasons = ["the kernel is one hop, not a series"] if kernel.discount is None else []
        points = domain.num_points
        size = u.shape[0] * kernel.num_heads * points**2 * max(4, u.element_size())
        if size > self.max_bytes:
            reasons.append(
                f"I - γA would need {size / 2**30:.2f} GiB, above max_bytes = {self.max_bytes / 2**30:.2f} GiB"
            )
        if points > self.max_points:
            reasons.append(f"a factorisation of {points} points takes longer than iteration above {self.max_points}")
        return reasons + common_refusals(kernel, domain, query_domain)

    def integrate(
        self, kernel: Kernel, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        """See `Evaluation.integrate`."""
        assert isinstance(kernel, Neumann)
        return integrate_hops(kernel, u, domain, query, query_domain, plan_of(kernel, DIRECT), self.tile_elements)
