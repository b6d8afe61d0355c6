"""Integration over the neighbourhood of each query. Legend: `quadrature.py`.

    (K u)(x_i) = Σ_{j∈N(i)} ω_j κ_ij u_j,   N(i) = {j: ‖x_i - y_j‖ <= r}, or the k points nearest to x_i

This is the exact operator whose kernel is cut off at the neighbourhood's edge; with `normalise` each ω_j is divided by
the mass of the neighbourhood, which makes it a local mean.
"""

from typing import Any, final

import torch

from fredholm._settings import check_count, check_number
from fredholm.domains import nearest
from fredholm.domains.checks import values_can_be_read
from fredholm.evaluation import Integral
from fredholm.quadrature.nodes import NodesPerQuery
from fredholm.quadrature.pairs import batched, past_of, take
from fredholm.quadrature.quadrature import Nodes, Quadrature, mass_of


@final
class Neighbourhood(Quadrature):
    """Sums over all points near each query, whatever their order.

    Distances wrap round on a periodic domain. Points that do not exist or weigh 0, or that a causal kernel must not
    see, are no neighbours. A query without neighbours gets 0. The search is that of `domains.nearest`.

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

    def nodes(self, integral: Integral[Any]) -> Nodes | None:
        """See `Quadrature.nodes`."""
        domain, query_domain, mass = integral.domain, integral.query_domain, mass_of(integral)
        pos, exists, past = domain.pos, domain.weights > 0, past_of(integral)
        order = None if past is None else past.order
        if order is not None:
            entries = max(len(order), len(batched(pos)))
            pos = take(batched(pos), order.expand(entries, -1))
            exists = take(torch.atleast_2d(exists), order.expand(max(len(order), len(torch.atleast_2d(exists))), -1))
        found = nearest(
            pos,
            query_domain.pos,
            k=self.num_neighbours,
            radius=self.radius,
            mask=None if values_can_be_read(exists) and bool(exists.all()) else exists,
            visible=None if past is None else past.counts,
            periodic=domain.is_periodic,
        )
        index, near = batched(found.points), batched(found.squared) < torch.inf
        if order is not None:
            index = take(order, index)
        weights = take(mass, index.expand(max(index.shape[0], mass.shape[0]), -1, -1)) * near
        if self.normalise:
            total = weights.sum(-1, keepdim=True)
            weights = weights / torch.where(total > 0, total, 1.0)
        return NodesPerQuery(index.expand(weights.shape[0], -1, -1), weights, is_mean=self.normalise)

    def describe(self, num_points: int) -> str:
        """See `Quadrature.describe`."""
        few = "" if self.num_neighbours is None else f"the {self.num_neighbours} nearest of "
        within = "" if self.radius is None else f" within {self.radius:g} of each query"
        return f"{few}{num_points} points{within or ', for each query'}"
