"""Anchors: the means of clusters of points, with the clusters' mass. Legend: `quadrature.py`.

    cluster c:   ω_c = Σ_{j∈c} ω_j,   y_c = Σ_{j∈c} ω_j y_j / ω_c,   u_c = Σ_{j∈c} ω_j u_j / ω_c

Replacing a smooth integrand over a cluster by its value at the mean loses only its curvature: with M anchors among many
points of s dimensions the error falls as M^(-2/s).

Source: ITNet (arXiv 2606.19538), 3.2: "deterministic k-means anchors in position space"; the value of u at an anchor
is not stated there.
"""

from typing import Any, final

import torch
from torch import Tensor

from fredholm._settings import check_count
from fredholm.domains import Domain, Points
from fredholm.domains.farthest import chosen_far_apart
from fredholm.evaluation import Evaluation, Integral
from fredholm.quadrature.pairs import batched
from fredholm.quadrature.quadrature import Nodes, Quadrature, mass_of

COMPARED_PAIRS = 1 << 22
"""Number of point-centre distances held in memory at once."""


@final
class Anchors(Quadrature):
    """Sums over the means of M clusters of points, the same nodes for all queries; deterministic.

    Clusters are those of k-means on positions, weighed by mass, started at points far from each other. Gradients reach
    u, positions and masses through the means; the assignment of points to clusters is a constant.

    Args:
        num_nodes: M >= 1. A domain of M points or fewer is summed whole.
        iterations: steps of k-means, >= 0.

    Raises:
        ValueError: on numbers out of range; for a causal kernel, because a mean of neighbours looks ahead; and for a
            kernel that reads the order of points, in which a mean has no place.
    """

    def __init__(self, num_nodes: int, *, iterations: int = 10) -> None:
        super().__init__()
        check_count("quadrature.Anchors", "num_nodes", num_nodes)
        check_count("quadrature.Anchors", "iterations", iterations, least=0)
        self.num_nodes, self.iterations = num_nodes, iterations

    def nodes(self, integral: Integral[Any]) -> Nodes | None:
        """See `Quadrature.nodes`."""
        if integral.kernel.is_causal:
            raise ValueError(
                "quadrature.Anchors: the mean of a cluster would let a causal kernel look ahead; use MonteCarlo, "
                "Neighbourhood or Full"
            )
        if integral.kernel.reads_order:
            raise ValueError(
                "quadrature.Anchors: the mean of a cluster has no place in the order that this kernel reads (rotary=); "
                "use MonteCarlo, Neighbourhood or Full"
            )
        domain = integral.domain
        if self.num_nodes >= domain.num_points:
            return None
        pos, mass = batched(domain.pos), mass_of(integral)
        batch = max(pos.shape[0], mass.shape[0])
        shared = (pos.expand(batch, -1, -1), mass.expand(batch, -1).to(pos.dtype))
        sizes = self.num_nodes, self.iterations
        with torch.no_grad():
            owner = domain.cached((clusters, *sizes), lambda: clusters(*shared, *sizes, domain))
        return Means(owner, self.num_nodes)

    def describe(self, num_points: int) -> str:
        """See `Quadrature.describe`."""
        if self.num_nodes >= num_points:
            return f"all {num_points} points, because {self.num_nodes} anchors are no fewer"
        return f"{self.num_nodes} anchors, means of clusters of {num_points} points"


@final
class Means(Nodes):
    """Cluster means as nodes.

    Args:
        owner: the cluster of each point, `(1 or B, N)` int64.
        num_clusters: M.
    """

    def __init__(self, owner: Tensor, num_clusters: int) -> None:
        self.owner, self.num_clusters = owner, num_clusters

    def integrate(self, evaluation: Evaluation, integral: Integral[Any]) -> Tensor:
        """See `Nodes.integrate`."""
        domain, u = integral.domain, integral.u
        member = _membership(self.owner, self.num_clusters)  # (B', M, N)
        mass = member * mass_of(integral)[:, None]
        total = mass.sum(-1)
        part = mass / torch.where(total > 0, total, 1.0)[..., None]
        pos = batched(domain.pos).expand(part.shape[0], -1, -1)
        axes = pos.shape[-1]
        first = pos.gather(1, member.long().argmax(-1)[..., None].expand(-1, -1, axes))
        # averages displacements from one of the points, because positions on a torus have no mean
        offset = domain.wrap(pos - first.gather(1, self.owner[..., None].expand(-1, -1, axes)))
        centre = first + part.to(pos.dtype) @ offset
        query = integral.query if integral.has_query_signal else None
        anchors = Points.derived(domain, centre, total)
        return evaluation.integrate(
            Integral(integral.kernel, part.to(u.dtype) @ u, anchors, query, integral.query_domain)
        )


def _membership(owner: Tensor, num_clusters: int) -> Tensor:
    """Whether a cluster owns a point, `(B, M, N)` bool."""
    return owner[:, None] == torch.arange(num_clusters, device=owner.device)[:, None]


def clusters(pos: Tensor, mass: Tensor, num_clusters: int, iterations: int, domain: Domain) -> Tensor:
    """The cluster of every point, `(B, N)` int64: k-means of positions `(B, N, s)` weighed by mass `(B, N)`.

    The first centre is the point nearest to the mean, each further centre the point farthest from all centres before
    it. A point of mass 0 pulls no centre. A cluster that runs empty keeps its centre.
    """
    share = mass / mass.sum(-1, keepdim=True).clamp_min(torch.finfo(mass.dtype).tiny)
    off = (pos - (share[..., None] * pos).sum(1, keepdim=True)).square().sum(-1)
    first = torch.where(mass > 0, off, torch.inf).argmin(-1)
    apart = chosen_far_apart(pos, num_clusters, mass > 0, first, pos.shape[:1], periodic=domain.is_periodic)
    centre = pos.gather(1, apart[..., None].expand(-1, -1, pos.shape[-1]))
    for _ in range(iterations):
        owner = _nearest(pos, centre, domain)
        share = _membership(owner, num_clusters) * mass[:, None]
        total = share.sum(-1, keepdim=True)
        own = centre.gather(1, owner[..., None].expand(-1, -1, pos.shape[-1]))
        centre = centre + share @ domain.wrap(pos - own) / torch.where(total > 0, total, 1.0)
    return _nearest(pos, centre, domain)


def _nearest(pos: Tensor, centre: Tensor, domain: Domain) -> Tensor:
    """Index of the nearest centre of every point, `(B, N)`; the first of equally near ones."""
    out = []
    for some in pos.split(max(1, COMPARED_PAIRS // centre.shape[1]), dim=1):
        squared = torch.zeros((), dtype=pos.dtype, device=pos.device)
        for x, c in zip(some.unbind(-1), centre.unbind(-1), strict=True):
            squared = squared + domain.wrap(x[:, :, None] - c[:, None]).square()
        out.append(squared.argmin(-1))
    return torch.cat(out, dim=1)
