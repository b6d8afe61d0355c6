"""Tiles whose relative part is read from a table of displacements: grids and evenly spaced sequences."""

import dataclasses
from typing import final

from torch import Tensor

from fredholm.domains import Domain, GridBlock
from fredholm.evaluation.evaluation import Evaluation
from fredholm.evaluation.tiled import in_tiles, integrate_pairwise
from fredholm.kernels import Kernel, PairwiseMLP


@final
@dataclasses.dataclass(frozen=True)
class Toeplitz(Evaluation):
    """For `PairwiseMLP` kernels where queries and keys hold the same grid: what depends on x - y is tabulated once.

    A grid of n_1 x ... x n_s cells has (2n_1 - 1)...(2n_s - 1) displacements, shared by batch and queries, so that a
    pair costs 2w(2d) flops whatever the relative part is. Points beside the grid, such as a class token, are tiled as
    in `Tiled`.

    Args:
        tile_elements: as in `Tiled`.
    """

    marker = PairwiseMLP
    tile_elements: int | None = None

    def refusals(
        self, kernel: Kernel, u: Tensor, domain: Domain, query: Tensor | None, query_domain: Domain | None
    ) -> list[str]:
        """Refuses domains without a common grid, and kernels with nothing to tabulate."""
        assert isinstance(kernel, PairwiseMLP)
        if not kernel.reads_displacement(domain):
            return ["nothing in this kernel depends on the displacement beyond what splits over the two points"]
        if common_grid(domain, domain if query_domain is None else query_domain) is None:
            return ["queries and keys do not hold the same regular grid"]
        return []

    def integrate(
        self, kernel: Kernel, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        """See `Evaluation.integrate`."""
        assert isinstance(kernel, PairwiseMLP)
        query_domain = domain if query_domain is None else query_domain
        blocks = common_grid(domain, query_domain)
        return integrate_pairwise(kernel, u, domain, query, query_domain, in_tiles(self.tile_elements), blocks)


def common_grid(domain: Domain, query_domain: Domain) -> tuple[GridBlock, GridBlock] | None:
    """The largest grid that both domains hold: among the queries, and among the keys."""
    pairs = [(q, k) for q in query_domain.grid_blocks for k in domain.grid_blocks if q.same_geometry(k)]
    largest = None
    # a loop, because the compiler does not trace `max` over sizes that vary
    for pair in pairs:
        if largest is None or pair[1].num_points > largest[1].num_points:
            largest = pair
    return largest
