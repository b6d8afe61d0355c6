"""Kernels of a few basis functions of the displacement, on any points, a strip of queries at a time.

Legend
    x_i, y_j   queries and keys                 φ_k, M_k   basis functions and their matrices, k = 1 ... w
    ω_j, m_ij  mass of a key, and of a pair

    v_i = Σ_j ω_j m_ij κ(x_i, y_j) u_j = Σ_k M_k S_ik,    S_ik = Σ_j m_ij φ_k(x_i - y_j) ω_j u_j

Keys outside a kernel's reach are skipped: the queries of a strip see nearly the same keys.
"""

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm._precision import at_least_float32, without_autocast
from fredholm.domains import Domain, whole_grid
from fredholm.domains.checks import is_open, values_can_be_read
from fredholm.evaluation.evaluation import Route
from fredholm.evaluation.integral import Integral
from fredholm.evaluation.recomputed import recomputed
from fredholm.kernels import BasisFilter

SLACK = 1e-3
"""Share of the points' extent by which a reach is widened, against rounding at its ends."""


class Strip(NamedTuple):
    """Consecutive queries, and the consecutive keys that they see."""

    queries: slice
    keys: slice


class Reach(NamedTuple):
    """An order along the first axis in which the keys of each query are consecutive, and their range.

    An order is `(B' or 1, n)`, or None where points are in order.
    """

    query_order: Tensor | None
    key_order: Tensor | None
    starts: list[int]  # of each query, in that order: the first key that it may see in some batch entry
    stops: list[int]  # of each query: the first key after all that it may see


def reach_of(kernel: BasisFilter, domain: Domain, query_domain: Domain) -> Reach | None:
    """The keys that a kernel can see from each query; None where it may see all keys.

    Also None where positions cannot be read, as in a traced graph, and on a torus.
    """
    limited = kernel.is_causal or kernel.horizon is not None
    if not limited or domain.is_periodic or not values_can_be_read(domain.pos, query_domain.pos):
        return None
    if min(domain.num_points, query_domain.num_points) == 0:
        return None
    keys, key_order = _in_order(domain)
    queries, query_order = _in_order(query_domain)
    batch = max(keys.shape[0], queries.shape[0])
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
    """Coordinates along the first axis, sorted, `(B' or 1, n)`, and the sorting order; None if sorted already."""
    places = domain.pos[..., 0].detach().to(torch.float64)
    places = places if places.ndim == 2 else places[None]
    if bool((places.diff(dim=-1) >= 0).all()):
        return places, None
    ordered, order = places.sort(dim=-1)
    return ordered, order


def strips(
    num_queries: int, num_keys: int, reach: Reach | None, per_pair: int, per_query: int, elements: int
) -> Iterator[Strip]:
    """Every query once, with all keys that it may see; at least one strip, even without queries.

    Args:
        num_queries, num_keys: numbers of queries and of keys.
        reach: the keys that each query may see; None: all.
        per_pair, per_query: entries of memory per pair and per query.
        elements: approximate number of entries of a strip.
    """
    if any(map(is_open, (num_queries, num_keys, per_pair, per_query))):
        yield Strip(slice(0, num_queries), slice(0, num_keys))
        return
    if reach is None:
        rows = max(1, elements // max(per_pair * num_keys, per_query, 1))
        if num_queries <= rows:  # yielded first, because the compiler does not know the number of strips
            yield Strip(slice(0, num_queries), slice(0, num_keys))
            return
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


@final
@dataclasses.dataclass(frozen=True)
class BasisTiled(Route[BasisFilter]):
    """For `BasisFilter` kernels on any points: matrices after the integral, φ recomputed backward.

    A pair costs its φ, once for all batch entries that share their positions, and 2w d_in flops an entry:
    d_out times fewer than κ u needs. Memory is O(N d) and that of one strip of queries with the keys that they can see:
    keys beyond the horizon, and for a causal kernel keys after all queries, are skipped. Sums are in float32 at least.
    Under the compiler, which knows no positions, no key is skipped.

    Args:
        strip_elements: approximate entries of φ in a strip; None: 2^20 on a CPU, 2^25 elsewhere. Their computation
            needs several times as much memory.
    """

    marker = BasisFilter
    weighs_pairs = True
    strip_elements: int | None = None

    def refusals(self, integral: Integral[BasisFilter]) -> list[str]:
        """Refuses pair weights per head, because these kernels have no heads."""
        domain = integral.domain
        if domain.pair_bias is not None and domain.pair_bias.shape[1] > 1:
            return ["pair weights differ from head to head, and this kernel has no heads"]
        return []

    def compute(self, integral: Integral[BasisFilter]) -> Tensor:
        """See `Route.compute`."""
        kernel, u, domain, query_domain = integral.kernel, integral.u, integral.domain, integral.query_domain
        elements = self.strip_elements or (1 << 20 if u.device.type == "cpu" else 1 << 25)
        with without_autocast(u):
            values = at_least_float32(u)
            values = values * kernel.measure(domain).to(values.dtype)[..., None]
            weight = kernel.basis_weight().to(values.dtype)
            reach = reach_of(kernel, domain, query_domain)
            sums = BasisSums(kernel, domain, query_domain, reach)
            values = sums.by_position(values)
            per_pair, per_query = values.shape[0] * weight.shape[0], weight.shape[0] * values[:, :1].numel()
            rows = [
                sums.integral(strip, values, weight)
                for strip in strips(query_domain.num_points, domain.num_points, reach, per_pair, per_query, elements)
            ]
            out = sums.by_query(torch.cat(rows, dim=1))
        return out.to(u.dtype)


@final
class BasisSums:
    """One integral, with its points in the order of their reach, computed strip by strip.

    Batch entries that share all positions are computed together: P distinct sets of positions with E entries each.
    """

    def __init__(self, kernel: BasisFilter, domain: Domain, query_domain: Domain, reach: Reach | None) -> None:
        self.kernel, self.domain, self.keys = kernel, domain, whole_grid(domain)
        self.key_order, self.query_order = (None, None) if reach is None else (reach.key_order, reach.query_order)
        self.query_pos, self.key_pos = (
            _ordered(query_domain.pos, self.query_order),
            _ordered(domain.pos, self.key_order),
        )
        self.pairs = domain.pair_weights
        if self.pairs is not None:
            self.pairs = _ordered(_ordered(self.pairs[:, 0], self.query_order).mT, self.key_order).mT
        distinct = [side.ndim == 3 and side.shape[0] > 1 for side in (self.query_pos, self.key_pos)]
        self.is_shared = not any(distinct) and (self.pairs is None or self.pairs.shape[0] == 1)

    def by_position(self, values: Tensor) -> Tensor:
        """`(B, N, d)` as `(P, N, E, d)`, in the keys' order."""
        values = _ordered(values, self.key_order)
        return values.transpose(0, 1)[None] if self.is_shared else values[:, :, None]

    def by_query(self, out: Tensor) -> Tensor:
        """`(P, Nq, E, d)` as `(B, Nq, d)`, in the original order of the queries."""
        out = out.transpose(1, 2).flatten(0, 1)
        return out if self.query_order is None else _ordered(out, self.query_order.argsort(dim=-1))

    def integral(self, strip: Strip, values: Tensor, weight: Tensor) -> Tensor:
        """v at the queries of a strip, `(P, nq, E, d_out)`; only its inputs are kept for the backward pass."""
        return recomputed(self.kernel, self._integral, strip, values, weight)

    def _integral(self, strip: Strip, values: Tensor, weight: Tensor) -> Tensor:
        basis = self._basis(strip).to(values.dtype)  # (P, nq, nk, w)
        by_query = basis.transpose(-1, -2).flatten(1, 2)  # (P, nq·w, nk)
        sums = by_query @ values[:, strip.keys].flatten(2)  # S: (P, nq·w, E·d_in)
        groups = self.kernel.groups
        blocks = sums.unflatten(2, (values.shape[2], groups, -1)).unflatten(1, (-1, weight.shape[0]))
        matrices = weight.unflatten(1, (groups, -1))
        return torch.einsum("pqkegi,kgoi->pqego", blocks, matrices).flatten(3)

    def _basis(self, strip: Strip) -> Tensor:
        """m φ, `(P, nq, nk, w)`."""
        queries, keys = self.query_pos[..., strip.queries, :], self.key_pos[..., strip.keys, :]
        displacement = self.domain.wrap(queries[..., :, None, :] - keys[..., None, :, :])
        basis = self.kernel.basis_on(displacement, self.keys)
        basis = basis if basis.ndim == 4 else basis[None]
        if self.pairs is None:
            return basis
        return basis * self.pairs[:, strip.queries, strip.keys, None].to(basis.dtype)


def _ordered(values: Tensor, order: Tensor | None) -> Tensor:
    """Permutes points, `(N, d)` or `(B', N, d)`, by an order, `(B' or 1, N)`; batch size 1 if both are shared."""
    if order is None:
        return values
    values = values if values.ndim == 3 else values[None]
    batch = max(values.shape[0], order.shape[0])
    index = order.expand(batch, -1)[..., None].expand(-1, -1, values.shape[-1])
    return values.expand(batch, -1, -1).gather(1, index)
