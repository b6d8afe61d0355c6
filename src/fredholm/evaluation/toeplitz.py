"""Tiles whose relative part is read from a table of displacements: grids and evenly spaced sequences."""

import dataclasses
from typing import final

from torch import Tensor

from fredholm.domains import GridBlock
from fredholm.evaluation.evaluation import Route
from fredholm.evaluation.integral import Integral
from fredholm.evaluation.tiled import in_tiles, integrate_pairwise
from fredholm.kernels import PairwiseMLP


@final
@dataclasses.dataclass(frozen=True)
class Toeplitz(Route[PairwiseMLP]):
    """For `PairwiseMLP` kernels where queries and keys hold the same grid: what depends on x - y is tabulated once.

    A grid of n_1 x ... x n_s cells has (2n_1 - 1)...(2n_s - 1) displacements, shared by batch and queries, so that a
    pair costs 2w(2d) flops whatever the relative part is. Points beside the grid, such as a class token, are tiled as
    in `Tiled`.

    Args:
        tile_elements: as in `Tiled`.
    """

    marker = PairwiseMLP
    tile_elements: int | None = None

    def refusals(self, integral: Integral[PairwiseMLP]) -> list[str]:
        """Refuses domains without a common grid, and kernels with nothing to tabulate."""
        if not integral.kernel.reads_displacement(integral.domain):
            return ["nothing in this kernel depends on the displacement beyond what splits over the two points"]
        if integral.once(common_grid) is None:
            return ["queries and keys do not hold the same regular grid"]
        return []

    def compute(self, integral: Integral[PairwiseMLP]) -> Tensor:
        """See `Route.compute`."""
        return integrate_pairwise(integral, in_tiles(self.tile_elements), integral.once(common_grid))


def common_grid(integral: Integral[PairwiseMLP]) -> tuple[GridBlock, GridBlock] | None:
    """The largest grid that queries and keys both hold: where it is among the queries, and among the keys."""
    queries, keys = integral.query_domain.grid_blocks, integral.domain.grid_blocks
    pairs = [(q, k) for q in queries for k in keys if q.same_geometry(k)]
    largest = None
    # a loop, because the compiler does not trace `max` over sizes that vary
    for pair in pairs:
        if largest is None or pair[1].num_points > largest[1].num_points:
            largest = pair
    return largest
