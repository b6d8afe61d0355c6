"""Integration over the neighbourhood of each query. Legend: `quadrature.py`.

    (K u)(x_i) = Σ_{j∈N(i)} ω_j κ_ij u_j,   N(i) = {j: ‖x_i - y_j‖ <= r}, or the k points nearest to x_i

This is the exact operator whose kernel is cut off at the neighbourhood's edge; with `normalise` each ω_j is divided by
the mass of the neighbourhood, which makes it a local mean.
"""

from collections.abc import Iterator
from typing import Any, final

import torch
from torch import Tensor

from fredholm._settings import check_count, check_number
from fredholm.domains import preceding_counts
from fredholm.domains.checks import values_can_be_read
from fredholm.evaluation import Integral
from fredholm.quadrature.nodes_per_query import NodesPerQuery
from fredholm.quadrature.pairs import batched, take
from fredholm.quadrature.quadrature import Nodes, Quadrature, mass_of

SEARCHED_PAIRS = 1 << 22
"""Pairs of query and point whose distances are held at once."""
TRIED_POINTS = 1024
"""Points on either side of a strip among which the k nearest bound how far away the true ones can be."""


@final
class Neighbourhood(Quadrature):
    """Sums over the points near each query, all of them, however they are ordered.

    Distances wrap round on a periodic domain. Points that do not exist, or that a causal kernel must not see, are no
    neighbours. A query without neighbours gets 0. The search compares a strip of queries with the points that are
    near enough along the first axis; on a torus, or where each batch entry has positions of its own, with all points.

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
        with torch.no_grad():
            index, near = self._search(integral)
        weights = take(mass_of(integral), index.expand(max(len(index), len(mass_of(integral))), -1, -1)) * near
        if self.normalise:
            total = weights.sum(-1, keepdim=True)
            weights = weights / torch.where(total > 0, total, 1.0)
        return NodesPerQuery(index.expand(len(weights), -1, -1), weights, is_mean=self.normalise)

    def describe(self, num_points: int) -> str:
        """See `Quadrature.describe`."""
        nearest = "" if self.num_neighbours is None else f"the {self.num_neighbours} nearest of "
        within = "" if self.radius is None else f" within {self.radius:g} of each query"
        return f"{nearest}{num_points} points{within or ', for each query'}"

    def _search(self, integral: Integral[Any]) -> tuple[Tensor, Tensor]:
        """Points near each query, and which of them are its neighbours, `(B', Nq, K)` each."""
        distances = _Distances(integral)
        size = max(1, SEARCHED_PAIRS // max(1, distances.batch * integral.domain.num_points))
        places = integral.domain.pos, integral.query_domain.pos
        flat = all(pos.ndim == 2 for pos in places)
        strips = flat and not integral.domain.is_periodic and values_can_be_read(*places)
        rows, found = [], []
        for some, points in self._strips(integral, distances, size) if strips else _blocks(integral, size):
            local, near = self._nearest(distances.squared(some, points))
            rows.append(some)
            found.append((points[local] if len(points) else local, near))
        most = max([near.shape[-1] for _, near in found])
        index, near = (
            torch.cat([torch.nn.functional.pad(part, (0, most - part.shape[-1])) for part in parts], dim=1)
            for parts in zip(*found, strict=True)
        )
        order = torch.cat(rows).argsort()
        return index[:, order], near[:, order]

    def _strips(self, integral: Integral[Any], distances: "_Distances", size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Queries in strips along the first axis, and the points that may be neighbours by where they are along it."""
        along, order = integral.domain.pos[:, 0].sort(stable=True)
        asked = integral.query_domain.pos[:, 0].to(along.dtype)
        for rows in asked.argsort(stable=True).split(size):
            if len(rows) == 0:
                yield rows, order[:0]
                continue
            ends = asked[rows][[0, -1]]
            if self.radius is not None:
                reach = self._edge(along.dtype)
            else:
                first, last = torch.searchsorted(along, ends).tolist()
                reach = self._reach(distances.squared(rows, order[max(0, first - TRIED_POINTS) : last + TRIED_POINTS]))
            # a little farther, so that no rounding of the ends matters
            margin = 1.000001 * reach * along.new_tensor([-1.0, 1.0])
            low, high = torch.searchsorted(along, torch.stack([ends[0] + margin[0], ends[1] + margin[1]])).tolist()
            yield rows, order[low : high + 1]

    def _reach(self, squared: Tensor) -> float:
        """A distance within which each query has its k neighbours, because it has k among some points."""
        assert self.num_neighbours is not None
        if squared.shape[-1] < self.num_neighbours:
            return float("inf")
        return float(squared.kthvalue(self.num_neighbours, dim=-1).values.max()) ** 0.5

    def _edge(self, dtype: torch.dtype) -> float:
        """The radius and what rounding may add to a distance."""
        assert self.radius is not None
        return self.radius * (1 + 8 * torch.finfo(dtype).eps)

    def _nearest(self, squared: Tensor) -> tuple[Tensor, Tensor]:
        count = squared.shape[-1]
        near = squared < torch.inf
        if self.radius is not None:
            near = near & (squared <= self._edge(squared.dtype) ** 2)
            # nobody can tell how many are near where values cannot be read
            count = count if not values_can_be_read(near) else int(near.sum(-1).max()) if near.numel() else 0
        if self.num_neighbours is not None:
            count = min(count, self.num_neighbours)
        distance, index = torch.where(near, squared, torch.inf).topk(
            max(count, min(1, squared.shape[-1])), -1, largest=False
        )
        return index, distance < torch.inf


def _blocks(integral: Integral[Any], size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Queries as they come, and all points."""
    device = integral.domain.device
    points = torch.arange(integral.domain.num_points, device=device)
    for rows in torch.arange(integral.query_domain.num_points, device=device).split(size):
        yield rows, points


@final
class _Distances:
    """‖x_i - y_j‖² between the queries and points of an integral; infinite where a point must not be a neighbour."""

    def __init__(self, integral: Integral[Any]) -> None:
        domain, query_domain = integral.domain, integral.query_domain
        self._domain = domain
        self._pos, self._query_pos = batched(domain.pos), batched(query_domain.pos)
        self._hidden = mass_of(integral) == 0
        self._seen = preceding_counts(query_domain, domain) if integral.kernel.is_causal else None
        entries = (self._pos, self._query_pos, self._hidden, *(() if self._seen is None else (self._seen,)))
        self.batch = max([len(each) for each in entries])

    def squared(self, rows: Tensor, points: Tensor) -> Tensor:
        """Of some queries `(n,)` and points `(K,)`: `(B', n, K)`."""
        # by differences, because the expansion of the square loses near points
        squared = torch.zeros((), dtype=self._pos.dtype, device=self._pos.device)
        for x, y in zip(self._query_pos[:, rows].unbind(-1), self._pos[:, points].unbind(-1), strict=True):
            squared = squared + self._domain.wrap(x[:, :, None] - y[:, None]).square()
        excluded = self._hidden[:, None, points]
        if self._seen is not None:
            excluded = excluded | (points >= self._seen[:, rows, None])
        return torch.where(excluded, torch.inf, squared).expand(self.batch, -1, -1)
