"""Numeric summaries of a whole graph, invariant to the order of its nodes: sums, counts and moments.

Legend
    N, E      of a graph: nodes of positive mass, and edges between these; both directions of an undirected one
    μ         the measure of the nodes, of mass 1 in each graph
    d_v       number of edges that end at node v
    v ~ w     nodes joined by an edge of either direction;   parts: the connected components
    h_v, m, s a feature of a node, and its mean and deviation by μ over the graph;   e_wv   a feature of an edge

    of shape     log N,  log (1 + E),  mean, deviation and maximum of d,  numbers of nodes with d = 0, ..., 5, or more,
                 number of parts,  pairs v ~ w - N + parts (the cycle rank),  triangles,  the share of paths v ~ w ~ x
                 whose ends are joined,  E over the pairs,  the correlation of d at both ends of an edge,  mean and
                 maximum length of the shortest paths within a part
    of weights   mean, sum and deviation of those of edges, 0 where these have none
    of h         m,  N m,  s,  largest,  least,  and along edges Σ_E (h_w - m)(h_v - m) / (E s²)
    of e         mean, sum, deviation, largest and least over the edges
    of both      for |h_w - h_v|, h_w + h_v and (h_w - m)(h_v - m) the sum of its products with e over the edges, and
                 its correlation with e; none where there are more than MOST_PAIRS pairs of h and e

Of each feature the first `each` of these are computed. Lengths of paths are NaN for graphs of more than MOST_NODES
nodes, as are minimum and maximum over edges where there are none. The cost is linear in the edges, but for triangles:
Σ min(d_v, d_w) over the edges (Chiba and Nishizeki, Arboricity and subgraph listing algorithms, 1985).
"""

from collections.abc import Iterator
from typing import final

import torch
from torch import Tensor

from fredholm.domains import Graph

DEGREES = 7
"""Number of degrees that are counted, the last together with all larger ones."""
NUM_OF_SHAPE, NUM_OF_WEIGHTS = 13 + DEGREES, 3
MOST_OF_FEATURE, MOST_OF_EDGE_FEATURE, OF_PAIR = 6, 5, 6
MOST_PAIRS = 64
MOST_NODES = 200
"""Most nodes of a graph whose shortest paths are computed."""
_AT_ONCE = 2**22
"""Approximate number of path lengths held at a time."""
_NOTHING = 1e-9
"""Relative deviation up to which a value counts as constant despite rounding."""


def num_summaries(num_features: int, edge_dim: int, each: int) -> int:
    """Number of summaries of `summarise_graphs`."""
    of_edges = edge_dim * min(each, MOST_OF_EDGE_FEATURE)
    of_both = OF_PAIR * _num_pairs(num_features, edge_dim)
    return NUM_OF_SHAPE + NUM_OF_WEIGHTS + num_features * min(each, MOST_OF_FEATURE) + of_both + of_edges


def _num_pairs(num_features: int, edge_dim: int) -> int:
    """Number of pairs of features, one of nodes and one of edges, that are summarised together."""
    count = num_features * edge_dim
    return count if count <= MOST_PAIRS else 0


def may_miss(num_features: int, edge_dim: int, each: int) -> tuple[int, ...]:
    """Indices of the summaries that may be NaN: lengths of paths, and minima and maxima of edge features."""
    count = num_summaries(num_features, edge_dim, each)
    extremes = edge_dim * max(0, min(each, MOST_OF_EDGE_FEATURE) - 3)
    return (NUM_OF_SHAPE - 2, NUM_OF_SHAPE - 1, *range(count - extremes, count))


def summarise_graphs(values: Tensor, domain: Graph, edge_features: Tensor | None, each: int) -> Tensor:
    """Computes the summaries, float64 `(B, num_summaries)`, NaN where one is not defined.

    Args:
        values: features of nodes `(B, N, F)`.
        domain: domain of the nodes; its own edge features are not read.
        edge_features: features of the domain's edges `(E, c)`; None: there are none.
        each: number of summaries of a feature.
    """
    return _Batch(values, domain, edge_features).numbers(each)


@final
class _Batch:
    """The nodes of positive mass, numbered consecutively over a batch, and the edges between them.

    Attributes:
        owner: int64 `(n,)`, the graph of each node.
        mass: float64 `(n,)`, μ.
        number: float64 `(B,)`, N of each graph.
        source, target: int64 `(E,)`, the ends of edges.
        of_edge: int64 `(E,)`, the graph of each edge.
        low, high: int64 `(P,)`, each pair v ~ w of different nodes once, by their numbers.
    """

    def __init__(self, values: Tensor, domain: Graph, edge_features: Tensor | None) -> None:
        self.count, size = values.shape[:2]
        weights = domain.weights.double().expand(values.shape[:2]).flatten()
        weighs = weights > 0
        self.values = values.flatten(0, 1)[weighs].double()
        self.owner = torch.arange(self.count, device=values.device).repeat_interleave(size)[weighs]
        self.mass = weights[weighs] / self._over_nodes(weights[weighs])[self.owner]
        self.number = self._over_nodes(torch.ones_like(self.mass))
        place = weighs.cumsum(0) - 1
        joins = (domain.edge_counts.flatten() > 0) & weighs[domain.target]
        self.source, self.target = place[domain.source[joins]], place[domain.target[joins]]
        self.of_edge = self.owner[self.target]
        self.num_edges = self._over_edges(torch.ones_like(self.of_edge, dtype=torch.float64))
        self.edge_weights = None if domain.edge_weights is None else domain.edge_weights[joins, None].double()
        self.edge_features = None if edge_features is None else edge_features[joins].double()
        differ, n = self.source != self.target, max(1, len(self.owner))
        ends = torch.stack([self.source, self.target])[:, differ]
        pairs = (ends.amin(0) * n + ends.amax(0)).unique()
        self.low, self.high = pairs // n, pairs % n

    def numbers(self, each: int) -> Tensor:
        found = [self._of_shape(), self.number.new_zeros(self.count, NUM_OF_WEIGHTS)]
        if self.edge_weights is not None:
            found[1] = torch.cat(self._of_edges(self.edge_weights)[:NUM_OF_WEIGHTS], 1)
        found += self._of_features()[:each]
        if self.edge_features is not None:
            if _num_pairs(self.values.shape[1], self.edge_features.shape[1]):
                found += self._of_both(self.edge_features)
            found += self._of_edges(self.edge_features)[:each]
        return torch.cat(found, 1)

    def _over_nodes(self, values: Tensor) -> Tensor:
        """Sums values of nodes `(n, ...)` over each graph, `(B, ...)`."""
        return values.new_zeros(self.count, *values.shape[1:]).index_add(0, self.owner, values)

    def _over_edges(self, values: Tensor) -> Tensor:
        """Sums values of edges `(E, ...)` over each graph, `(B, ...)`."""
        return values.new_zeros(self.count, *values.shape[1:]).index_add(0, self.of_edge, values)

    def _largest(self, values: Tensor, owner: Tensor) -> Tensor:
        """Maximum over each graph `(B, k)`; NaN where it has no values."""
        start = values.new_full((self.count, values.shape[1]), -torch.inf)
        found = start.scatter_reduce(0, owner[:, None].expand_as(values), values, "amax")
        return torch.where(found > -torch.inf, found, torch.nan)

    def _of_features(self) -> list[Tensor]:
        """Summaries of h, `(B, F)` each."""
        values, own = self.values, self.owner
        mean = self._over_nodes(self.mass[:, None] * values)
        rest = values - mean[own]
        deviation = _without_rounding(self._over_nodes(self.mass[:, None] * rest.square()).sqrt(), mean)
        size = self.num_edges[:, None] * deviation.square()
        along = _ratio(self._over_edges(rest[self.source] * rest[self.target]), size)
        largest, least = self._largest(values, own), -self._largest(-values, own)
        return [mean, self.number[:, None] * mean, deviation, largest, least, along]

    def _of_edges(self, values: Tensor) -> list[Tensor]:
        """Summaries of e, `(E, c)`, to `(B, c)` each."""
        number, total = self.num_edges.clamp_min(1)[:, None], self._over_edges(values)
        mean = total / number
        deviation = (self._over_edges((values - mean[self.of_edge]).square()) / number).sqrt()
        largest, least = self._largest(values, self.of_edge), -self._largest(-values, self.of_edge)
        return [mean, total, _without_rounding(deviation, mean), largest, least]

    def _of_both(self, of_edges: Tensor) -> list[Tensor]:
        """Summaries of h at the ends of an edge with e `(E, c)`, `(B, c F)` each."""
        first, second = self.values[self.source], self.values[self.target]
        mean = self._over_nodes(self.mass[:, None] * self.values)[self.of_edge]
        found, scale = list[Tensor](), self._deviation(of_edges)
        for ends in ((first - second).abs(), first + second, (first - mean) * (second - mean)):
            found.append(self._products(of_edges, ends))
            size = (scale[:, :, None] * self._deviation(ends)[:, None]).flatten(1)
            found.append(_ratio(self._products(self._centred(of_edges), self._centred(ends)), size))
        return found

    def _products(self, one: Tensor, other: Tensor) -> Tensor:
        """Sums over each graph of products of values of edges `(E, c)` and `(E, F)`, `(B, c F)`."""
        return self._over_edges((one[:, :, None] * other[:, None]).flatten(1))

    def _centred(self, values: Tensor) -> Tensor:
        return values - (self._over_edges(values) / self.num_edges.clamp_min(1)[:, None])[self.of_edge]

    def _deviation(self, values: Tensor) -> Tensor:
        """The root of the sum of squares of centred values of edges `(E, k)`, `(B, k)`; 0 where it is only rounding."""
        size = self._over_edges(values.square()).sqrt()
        return _without_rounding(self._over_edges(self._centred(values).square()).sqrt(), size)

    def _of_shape(self) -> Tensor:
        n, number, edges = len(self.owner), self.number, self.num_edges
        degree = torch.bincount(self.target, minlength=n)
        kind = self.owner * DEGREES + degree.clamp_max(DEGREES - 1)
        counts = torch.bincount(kind, minlength=self.count * DEGREES).view(self.count, DEGREES).double()
        d = degree.double()
        mean = edges / number
        spread = (self._over_nodes((d - mean[self.owner]).square()) / number).sqrt()
        near = torch.bincount(torch.cat([self.low, self.high]), minlength=n).double()
        paths = self._over_nodes(near * (near - 1) / 2)
        triangles = self._over_nodes(triangles_at(self.low, self.high, n)) / 3
        parts = self._over_nodes((self._part() == torch.arange(n, device=near.device)).double())
        pairs = torch.bincount(self.owner[self.low], minlength=self.count).double()
        found = [
            *(number.log(), edges.log1p(), mean, spread, self._largest(d[:, None], self.owner)[:, 0]),
            *counts.T,
            *(parts, pairs - number + parts, triangles, _ratio(3 * triangles, paths), _ratio(edges, pairs)),
            self._alike(d),
            *self._lengths(),
        ]
        return torch.stack(found, 1)

    def _alike(self, d: Tensor) -> Tensor:
        """The correlation of d at both ends of an edge, `(B,)`; 0 where it does not vary."""
        number = self.num_edges.clamp_min(1)[:, None]
        ends = torch.stack([d[self.source], d[self.target]], 1)
        rest = ends - (self._over_edges(ends) / number)[self.of_edge]
        both, spread = self._over_edges(rest.prod(1)), self._over_edges(rest.square()).prod(1).sqrt()
        return _ratio(both, torch.where(spread > _NOTHING * number[:, 0], spread, 0.0))

    def _part(self) -> Tensor:
        """The component of each node, labelled by one of its nodes, int64 `(n,)`."""
        found = torch.arange(len(self.owner), device=self.owner.device)
        while True:
            least = torch.minimum(found[self.low], found[self.high])
            other = found
            for end in (self.low, self.high):
                other = other.scatter_reduce(0, found[end], least, "amin")
            other = other[other]
            if bool((other == found).all()):
                return found
            found = other

    def _lengths(self) -> tuple[Tensor, Tensor]:
        """Mean and maximum length of shortest paths, `(B,)`; 0 without edges, NaN for large graphs."""
        small = self.number <= MOST_NODES
        kept = small[self.owner]
        own, place = self.owner[kept], kept.cumsum(0) - 1
        first = torch.where(small, self.number, 0.0).long().cumsum(0)
        at = torch.arange(len(own), device=own.device) - torch.cat([first.new_zeros(1), first])[own]
        inside = kept[self.low]
        low, high = place[self.low[inside]], place[self.high[inside]]
        to, of = torch.cat([low, high]), torch.cat([high, low])
        total, pairs, largest = (torch.zeros_like(self.number) for _ in range(3))
        width = max(1, _AT_ONCE // max(1, len(to) + len(own)))
        for start in range(0, int(at.max()) + 1 if len(at) else 0, width):
            # the same number of start nodes in each graph
            begins = torch.arange(start, min(start + width, MOST_NODES), device=own.device)
            reached = (at[:, None] == begins).float()
            for length in range(1, MOST_NODES):
                grown = reached.index_add(0, to, reached[of]).clamp_max(1)
                new = torch.zeros_like(total).index_add(0, own, (grown - reached).sum(1).double())
                if not bool(new.any()):
                    break
                total, pairs = total + length * new, pairs + new
                largest = torch.where(new > 0, largest.clamp_min(length), largest)
                reached = grown
        found = _ratio(total, pairs), largest
        return torch.where(small, found[0], torch.nan), torch.where(small, found[1], torch.nan)


def triangles_at(low: Tensor, high: Tensor, count: int) -> Tensor:
    """Number of triangles at each node, float64 `(count,)`.

    Pairs are directed to the node of more neighbours. In a triangle two pairs then begin at one node, and the third
    joins their ends, so that only pairs with a common beginning are compared.

    Args:
        low, high: int64 `(P,)`, each pair of different nodes that are joined once, in their order, low < high.
        count: number of nodes.
    """
    near = torch.bincount(torch.cat([low, high]), minlength=count)
    turned = near[low] > near[high]
    begin, end = torch.where(turned, high, low), torch.where(turned, low, high)
    order = begin.argsort(stable=True)
    begin, end = begin[order], end[order]
    until = torch.bincount(begin, minlength=count).cumsum(0)[begin]
    after = until - torch.arange(len(begin), device=begin.device) - 1  # later pairs of the same beginning
    pairs, total = low * count + high, torch.zeros(count, dtype=torch.float64, device=begin.device)
    for some in _runs(after):
        number = after[some]
        before = (number.cumsum(0) - number).repeat_interleave(number)
        first = some.repeat_interleave(number)
        second = first + 1 + torch.arange(len(first), device=begin.device) - before
        ends = torch.stack([end[first], end[second]])
        third = ends.amin(0) * count + ends.amax(0)
        closed = (pairs[torch.searchsorted(pairs, third).clamp_max(len(pairs) - 1)] == third).double()
        for corner in (begin[first], *ends):
            total.index_add_(0, corner, closed)
    return total


def _runs(sizes: Tensor) -> Iterator[Tensor]:
    """Splits indices into runs whose sizes add up to about _AT_ONCE."""
    run = sizes.cumsum(0) // _AT_ONCE
    yield from torch.arange(len(sizes), device=sizes.device).split(torch.bincount(run).tolist())


def _ratio(of: Tensor, by: Tensor) -> Tensor:
    """The ratio, or 0 where the denominator is 0."""
    return torch.where(by > 0, of / torch.where(by > 0, by, 1.0), 0.0)


def _without_rounding(deviation: Tensor, mean: Tensor) -> Tensor:
    """The deviation, or 0 where it is only rounding."""
    return torch.where(deviation > _NOTHING * mean.abs(), deviation, 0.0)
