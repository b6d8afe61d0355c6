"""The series of a kernel of hops, cut where what is left out is small enough."""

import dataclasses
from typing import final

from torch import Tensor

from fredholm._settings import refuse_idle
from fredholm.evaluation.evaluation import Route
from fredholm.evaluation.integral import Integral
from fredholm.evaluation.neumann.integrate import common_refusals, integrate_hops, plan_of
from fredholm.evaluation.neumann.series import num_terms, remainder
from fredholm.evaluation.neumann.solvers import SERIES
from fredholm.kernels import FrobeniusNorm, Neumann


@final
@dataclasses.dataclass(frozen=True)
class HopSeries(Route[Neumann]):
    """For `Neumann` series: the first T powers, an approximation with a bound; T hops in tiles.

    What is left out is at most γ^{T+1} / (1 - γ) times the values v: in L²(μ) under the Frobenius norm, and in the
    largest entry of a channel under the norm of rows. Gradients are those of the whole series where its adjoint is cut
    in the same place. Never chosen by itself.

    Args:
        tolerance: what may be left out, over the size of v, in (0, 1); T is the least that keeps to it.
        terms: T, >= 1, in place of the tolerance.
        tile_elements: as in `HopTiled`.

    Raises:
        ValueError: on numbers out of range.
    """

    marker = Neumann
    weighs_pairs = True
    tolerance: float = 1e-6
    terms: int | None = None
    tile_elements: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.tolerance < 1:
            raise ValueError(f"HopSeries: tolerance must be in (0, 1); got {self.tolerance}")
        if self.terms is not None and self.terms < 1:
            raise ValueError(f"HopSeries: terms must be at least 1; got {self.terms}")
        if self.terms is not None:
            refuse_idle(
                "HopSeries", HopSeries, f"terms={self.terms}", "give the tolerance alone", tolerance=self.tolerance
            )

    def num_terms(self, gamma: float) -> int:
        """T for a discount γ, the largest of all heads."""
        return num_terms(gamma, self.tolerance) if self.terms is None else self.terms

    def bound(self, gamma: float) -> float:
        """What is left out, over the size of v, at most."""
        return remainder(gamma, self.num_terms(gamma))

    def refusals(self, integral: Integral[Neumann]) -> list[str]:
        """Refuses what the bound does not cover, single hops, and norms of one's own."""
        kernel = integral.kernel
        reasons = ["the kernel is one hop, not a series"] if kernel.discount is None else []
        if kernel.is_causal and isinstance(kernel.norm, FrobeniusNorm):
            reasons.append("the bound needs hops of norm 1 at most, and rows that grow by the norm so far exceed it")
        return reasons + common_refusals(integral)

    def compute(self, integral: Integral[Neumann]) -> Tensor:
        """See `Route.compute`."""
        plan = plan_of(integral.kernel, SERIES, self.tolerance, self.terms or 0)
        return integrate_hops(integral, plan, self.tile_elements)
