"""Which keys the queries of a kernel of bounded reach can see, and strips of queries that see much the same keys."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from fredholm.domains import Domain
from fredholm.domains.checks import values_can_be_read
from fredholm.kernels import FeatureFilter

SLACK = 1e-3
"""Share of all points' extent by which a reach is widened, for the kernel's own rounding at its ends."""


class Strip(NamedTuple):
    """Some queries and the keys that they meet, both consecutive."""

    queries: slice
    keys: slice


class Reach(NamedTuple):
    """The order along the first axis in which the keys that a query sees are consecutive, and where they are.

    An order is `(B' or 1, n)`, or None where points are in order.
    """

    query_order: Tensor | None
    key_order: Tensor | None
    starts: list[int]  # of each query, in that order: the first key that it may see in some batch entry
    stops: list[int]  # the first one after those that it may see


def reach_of(kernel: FeatureFilter, domain: Domain, asked: Domain) -> Reach | None:
    """What a kernel can see from each query; None where it sees everything, or nobody can tell.

    Where positions cannot be read, as in a graph that is traced, nobody can; on a torus all may be near.
    """
    limited = kernel.is_causal or kernel.horizon is not None
    if not limited or domain.is_periodic or not values_can_be_read(domain.pos, asked.pos):
        return None
    if min(domain.num_points, asked.num_points) == 0:
        return None
    keys, key_order = _in_order(domain)
    queries, query_order = _in_order(asked)
    batch = max(len(keys), len(queries))
    keys, queries = keys.expand(batch, -1).contiguous(), queries.expand(batch, -1)
    horizon = torch.inf if kernel.horizon is None else kernel.horizon
    extent = torch.maximum(keys[:, -1], queries[:, -1]).max() - torch.minimum(keys[:, 0], queries[:, 0]).min()
    slack = SLACK * extent
    starts = torch.searchsorted(keys, (queries - horizon - slack).contiguous())
    ahead = 0.0 if kernel.is_causal else horizon
    stops = torch.searchsorted(keys, (queries + ahead + slack).contiguous(), right=True)
    first, after = torch.stack([starts.amin(0), stops.amax(0)]).tolist()
    return Reach(query_order, key_order, first, after)


def _in_order(domain: Domain) -> tuple[Tensor, Tensor | None]:
    """Where points are along the first axis, `(B' or 1, n)` and never decreasing, and the order that makes it so."""
    places = domain.pos[..., 0].detach().to(torch.float64)
    places = places if places.ndim == 2 else places[None]
    if bool((places.diff(dim=-1) >= 0).all()):
        return places, None
    ordered, order = places.sort(dim=-1)
    return ordered, order


def strips(
    num_queries: int, num_keys: int, reach: Reach | None, per_pair: int, per_query: int, elements: int
) -> Iterator[Strip]:
    """Every query once, with all keys that it may see; at least one strip, be it without queries.

    Args:
        num_queries, num_keys: how many there are.
        reach: which keys each query may see; None: all.
        per_pair, per_query: what a pair and a query need.
        elements: how much a strip may need, about.
    """
    if reach is None:
        rows = max(1, elements // max(per_pair * num_keys, per_query, 1))
        for first in range(0, max(num_queries, 1), rows):
            yield Strip(slice(first, min(first + rows, num_queries)), slice(0, num_keys))
        return
    first = 0
    while first < num_queries:
        low, high, stop = reach.starts[first], reach.stops[first], first + 1
        while stop < num_queries:
            wider = min(low, reach.starts[stop]), max(high, reach.stops[stop])
            if (stop + 1 - first) * max(per_pair * (wider[1] - wider[0]), per_query) > elements:
                break
            (low, high), stop = wider, stop + 1
        yield Strip(slice(first, stop), slice(low, max(low, high)))
        first = stop
