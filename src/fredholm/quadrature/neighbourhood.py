"""Integration over the neighbourhood of each query. Legend: `nodes.py`.

    (K u)(x_i) = Σ_{j∈N(i)} ω_j κ_ij u_j,   N(i) = {j: ‖x_i - y_j‖ <= r}, or the k points nearest to x_i

This is the exact operator whose kernel is cut off at the neighbourhood's edge; with `normalise` each ω_j is divided by
the mass of the neighbourhood, which makes it a local mean.
"""

from typing import final

import torch
from torch import Tensor

from fredholm.domains import Domain, preceding_counts
from fredholm.quadrature.checks import check_count, check_number
from fredholm.quadrature.nodes import Integrand, Nodes
from fredholm.quadrature.nodes_per_query import NodesPerQuery
from fredholm.quadrature.pairs import batched, take
from fredholm.quadrature.quadrature import Quadrature

SEARCHED_PAIRS = 1 << 22
"""Pairs of query and point whose distances are held at once."""


@final
class Neighbourhood(Quadrature):
    """Sums over the points near each query, all of them, however they are ordered.

    Distances wrap round on a periodic domain. Points that do not exist, or that a causal kernel must not see, are no
    neighbours. A query without neighbours gets 0. The search compares all pairs, a block of queries at a time.

    Args:
        radius: r > 0; a point at this distance, to rounding, is a neighbour.
        num_neighbours: k >= 1; of equally distant points any may be the last. With a radius as well: the k nearest
            within it.
        normalise: whether the weights are divided by the neighbourhood's mass.

    Raises:
        ValueError: on neither of the two, or numbers out of range.
    """

    def __init__(
        self, *, radius: float | None = None, num_neighbours: int | None = None, normalise: bool = False
    ) -> None:
        super().__init__()
        if radius is None and num_neighbours is None:
            raise ValueError("quadrature.Neighbourhood: give a radius, num_neighbours, or both")
        if radius is not None:
            check_number("quadrature.Neighbourhood", "radius", radius)
            if not 0 < radius < float("inf"):
                raise ValueError(f"quadrature.Neighbourhood: radius must be > 0 and finite; got {radius}")
        if num_neighbours is not None:
            check_count("quadrature.Neighbourhood", "num_neighbours", num_neighbours)
        self.radius, self.num_neighbours, self.normalise = radius, num_neighbours, normalise

    def nodes(self, integrand: Integrand) -> Nodes | None:
        """See `Quadrature.nodes`."""
        with torch.no_grad():
            found = self._search(integrand)
        size = max([near.shape[-1] for near, _ in found])
        index, apart = (
            torch.cat([torch.nn.functional.pad(part, (0, size - part.shape[-1])) for part in parts], dim=1)
            for parts in zip(*found, strict=True)
        )
        weights = take(integrand.mass, index.expand(max(len(index), len(integrand.mass)), -1, -1)) * apart
        if self.normalise:
            total = weights.sum(-1, keepdim=True)
            weights = weights / torch.where(total > 0, total, 1.0)
        return NodesPerQuery(index.expand(len(weights), -1, -1), weights)

    def describe(self, num_points: int) -> str:
        """See `Quadrature.describe`."""
        nearest = "" if self.num_neighbours is None else f"the {self.num_neighbours} nearest of "
        within = "" if self.radius is None else f" within {self.radius:g} of each query"
        return f"{nearest}{num_points} points{within or ', for each query'}"

    def _search(self, integrand: Integrand) -> list[tuple[Tensor, Tensor]]:
        """Index and whether it is a neighbour, `(B', n, K)` each, of blocks of queries one after the other."""
        domain, query_pos = integrand.domain, batched(integrand.query_domain.pos)
        seen = preceding_counts(integrand.query_domain, domain) if integrand.is_causal else None
        hidden = integrand.mass[:, None] == 0
        places = torch.arange(domain.num_points, device=domain.device)
        batch = max(len(query_pos), len(batched(domain.pos)), len(hidden), 1 if seen is None else len(seen))
        num_queries = query_pos.shape[1]
        size = max(1, SEARCHED_PAIRS // max(1, batch * domain.num_points))
        found = []
        for start in range(0, max(1, num_queries), size):
            rows = slice(start, min(start + size, num_queries))
            squared = _squared_distances(domain, query_pos[:, rows])
            excluded = hidden if seen is None else hidden | (places >= seen[:, rows, None])
            squared = torch.where(excluded, torch.inf, squared).expand(batch, -1, -1)
            found.append(self._nearest(squared))
        return found

    def _nearest(self, squared: Tensor) -> tuple[Tensor, Tensor]:
        count = squared.shape[-1]
        near = squared < torch.inf
        if self.radius is not None:
            edge = self.radius * (1 + 8 * torch.finfo(squared.dtype).eps)
            near = near & (squared <= edge * edge)
            count = int(near.sum(-1).max()) if near.numel() else 0
        if self.num_neighbours is not None:
            count = min(count, self.num_neighbours)
        distance, index = torch.where(near, squared, torch.inf).topk(
            max(count, min(1, squared.shape[-1])), -1, largest=False
        )
        return index, distance < torch.inf


def _squared_distances(domain: Domain, query_pos: Tensor) -> Tensor:
    """‖x_i - y_j‖², `(B', n, N)`, by differences: the expansion of the square loses near points."""
    squared = torch.zeros((), dtype=domain.pos.dtype, device=domain.device)
    for x, y in zip(query_pos.unbind(-1), batched(domain.pos).unbind(-1), strict=True):
        squared = squared + domain.wrap(x[:, :, None] - y[:, None]).square()
    return squared
