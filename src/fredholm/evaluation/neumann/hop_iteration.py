"""The series of a kernel of hops, by iteration, without N x N memory."""

import dataclasses
from typing import final

import torch
from torch import Tensor

from fredholm.evaluation.evaluation import Route
from fredholm.evaluation.integral import Integral
from fredholm.evaluation.neumann.integrate import common_refusals, integrate_hops, plan_of
from fredholm.evaluation.neumann.solvers import ITERATION
from fredholm.kernels import Neumann


@final
@dataclasses.dataclass(frozen=True)
class HopIteration(Route[Neumann]):
    """For `Neumann` series: GMRES on hops in tiles, some heads at a time, in memory O(N·d) however many hops it takes.

    A head stops when its residual, in L²(μ), is small enough. The backward pass solves the transposed system in the
    same way, then is that of one hop. Scores, norms and sums are in float32 whatever the signal.

    Args:
        tolerance: residual over y or γAv, whichever is larger; None: 1e-6, and 1e-12 for float64.
        max_hops: hops at most.
        restart: directions kept at a time, >= 1; each is as large as the values of the heads at work.
        tile_elements: as in `HopTiled`.

    Raises:
        ValueError: on numbers out of range; in `integrate`, when the tolerance is not reached.
    """

    marker = Neumann
    weighs_pairs = True
    tolerance: float | None = None
    max_hops: int = 500
    restart: int = 8
    tile_elements: int | None = None

    def __post_init__(self) -> None:
        if self.tolerance is not None and not 0 < self.tolerance < 1:
            raise ValueError(f"HopIteration: tolerance must be in (0, 1); got {self.tolerance}")
        if self.max_hops < 1 or self.restart < 1:
            raise ValueError(
                f"HopIteration: max_hops and restart must be at least 1; got {self.max_hops} and {self.restart}"
            )

    def refusals(self, integral: Integral[Neumann]) -> list[str]:
        """Refuses single hops, and norms of one's own; see `Route.refusals`."""
        kernel = integral.kernel
        reasons = ["the kernel is one hop, not a series"] if kernel.discount is None else []
        return reasons + common_refusals(integral)

    def compute(self, integral: Integral[Neumann]) -> Tensor:
        """See `Route.compute`."""
        tolerance = self.tolerance
        if tolerance is None:
            tolerance = 1e-12 if integral.u.dtype == torch.float64 else 1e-6
        plan = plan_of(integral.kernel, ITERATION, tolerance, self.max_hops, self.restart)
        return integrate_hops(integral, plan, self.tile_elements)
