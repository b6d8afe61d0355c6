"""The order of points and queries: the points up to a query, and their mass."""

import torch
from torch import Tensor

from fredholm.domains.checks import values_can_be_read
from fredholm.domains.domain import Domain


def preceding_counts(query_domain: Domain, domain: Domain) -> Tensor:
    """Number of leading points of `domain` that each query may see, itself included.

    Where both domains carry times, a query at time t sees every sample with time <= t. Otherwise the order is that of
    the indices, aligned bottom-right: the last query sees every point, the one before it all but the last, and so on.

    Returns:
        int64 `(1 or B, Nq)` on the domain's device.

    Raises:
        ValueError: for fewer or more queries than points in the order of indices, where some points do not exist:
            masked points would shift the points that a query sees.
    """
    num_queries, num_points = query_domain.num_points, domain.num_points
    query_times, times = query_domain.times, domain.times
    if query_times is not None and times is not None:
        dtype = torch.promote_types(query_times.dtype, times.dtype)
        query_times, times = torch.atleast_2d(query_times.to(dtype)), torch.atleast_2d(times.to(dtype))
        (batch,) = torch.broadcast_shapes(query_times.shape[:1], times.shape[:1])
        times = times.expand(batch, num_points).contiguous()
        return torch.searchsorted(times, query_times.expand(batch, num_queries).contiguous(), right=True)
    check_order(query_domain, domain)
    counts = torch.arange(num_queries, device=domain.device) + (1 + num_points - num_queries)
    return counts.clamp(0, num_points)[None]


def check_order(query_domain: Domain, domain: Domain) -> None:
    """Raises ValueError where the points before a query cannot be inferred; see `preceding_counts`."""
    num_queries, num_points = query_domain.num_points, domain.num_points
    by_times = query_domain.times is not None and domain.times is not None
    if not by_times and 0 < num_queries != num_points and domain.mask is not None:
        raise ValueError(
            f"{num_queries} queries and {num_points} points are in the order of their indices, and some points do not "
            "exist, so that the points before a query cannot be inferred; give both times (Sequence(times=...)), or "
            "use the points themselves as queries"
        )


def past_mass(query_domain: Domain, domain: Domain) -> Tensor:
    """μ{y ≤ x}: the mass of the points that each query may see, itself included, `(1 or B, Nq)`.

    At points that represent queries of another integral it is the mass of that integral's points. Where listed pairs
    have total mass 1, so has the past.
    """
    if query_domain.given_past_mass is not None:
        return query_domain.given_past_mass
    if domain.lists_means:
        return domain.weights.new_ones(1, query_domain.num_points)
    counts, weights = preceding_counts(query_domain, domain), torch.atleast_2d(domain.weights)
    (batch,) = torch.broadcast_shapes(counts.shape[:1], weights.shape[:1])
    running = torch.nn.functional.pad(weights.cumsum(-1), (1, 0)).expand(batch, -1)
    return running.gather(-1, counts.expand(batch, -1))


def is_ordered_by_index(domain: Domain) -> bool:
    """Whether each point may see exactly the points up to its own index: no two that exist share a time.

    False where times cannot be read.
    """
    times, mask = domain.times, domain.mask
    if times is None or domain.is_generated:
        return True
    if not values_can_be_read(times, mask):
        return False
    exists = torch.ones_like(times, dtype=torch.bool) if mask is None else mask
    latest = torch.where(exists, times, -torch.inf).cummax(-1).values
    return not bool((exists[..., 1:] & (times[..., 1:] <= latest[..., :-1])).any())


def order_times(query_domain: Domain, domain: Domain) -> tuple[Tensor, Tensor]:
    """Times of the queries and of the points that give `preceding_counts`, `(1 or B, n)` each.

    They are the domains' own times where both have them, else the indices.
    """
    if query_domain.times is not None and domain.times is not None:
        return torch.atleast_2d(query_domain.times), torch.atleast_2d(domain.times)
    num_queries, num_points = (each.num_points for each in (query_domain.whole or query_domain, domain.whole or domain))
    places = torch.arange(num_points, dtype=torch.float64, device=domain.device)
    queries = torch.arange(num_queries, dtype=torch.float64, device=domain.device) + (num_points - num_queries)
    return queries[None, query_domain.held], places[None, domain.held]
