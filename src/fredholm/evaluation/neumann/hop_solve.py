"""The series of a kernel of hops, by one factorisation a head."""

import dataclasses
from typing import final

from torch import Tensor

from fredholm.evaluation.evaluation import Route
from fredholm.evaluation.integral import Integral
from fredholm.evaluation.neumann.integrate import common_refusals, integrate_hops, plan_of
from fredholm.evaluation.neumann.solvers import DIRECT
from fredholm.kernels import Neumann


@final
@dataclasses.dataclass(frozen=True)
class HopSolve(Route[Neumann]):
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

    def refusals(self, integral: Integral[Neumann]) -> list[str]:
        """Refuses for size, single hops, and norms of one's own; see `Route.refusals`."""
        kernel = integral.kernel
        reasons = ["the kernel is one hop, not a series"] if kernel.discount is None else []
        u, points = integral.u, integral.domain.num_points
        size = u.shape[0] * kernel.num_heads * points**2 * max(4, u.element_size())
        if size > self.max_bytes:
            reasons.append(
                f"I - γA would need {size / 2**30:.2f} GiB, above max_bytes = {self.max_bytes / 2**30:.2f} GiB"
            )
        if points > self.max_points:
            reasons.append(f"a factorisation of {points} points takes longer than iteration above {self.max_points}")
        return reasons + common_refusals(integral)

    def compute(self, integral: Integral[Neumann]) -> Tensor:
        """See `Route.compute`."""
        return integrate_hops(integral, plan_of(integral.kernel, DIRECT), self.tile_elements)
