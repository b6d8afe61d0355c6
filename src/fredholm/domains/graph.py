"""Nodes of a graph and the edges between them."""

from typing import Self, final

import torch
from torch import Tensor

from fredholm._precision import at_least_float32
from fredholm.domains.checks import values_can_be_read
from fredholm.domains.domain import Domain, check_tensor
from fredholm.domains.laplacian import laplacian_positions
from fredholm.domains.pair_list import PairGroup, PairList


@final
class Graph(Domain):
    """Nodes as points, with the edges between them, of one graph or of each entry of a batch.

    An edge (y, x) goes from its source y to its target x: a kernel on edges (`kernels.OnEdges`) sums at x over the
    sources of the edges that end there. Any other kernel sees the nodes as points. Self-loops are edges like others,
    and an edge that is listed twice counts twice.

    Args:
        edge_index: `(2, E)` int64, sources and targets, both directions listed where the graph is undirected; of a
            batch of graphs `(B, 2, E)`, numbers within each graph, filled up with -1.
        num_nodes: N, of the largest graph of a batch.
        pos: `(N, s)` or `(B, N, s)`; None: `laplacian_positions`, 8 coordinates, of one undirected graph.
        edge_weights: weight of each edge, `(E,)` or `(B, E)`, >= 0; None: 1.
        edge_features: features of each edge that kernels read, `(E, c)` or `(B, E, c)`.
        weights: mass of each node, `(N,)` or `(B, N)`, >= 0; default uniform with total mass 1.
        mask: `(N,)` or `(B, N)` bool, True = this node exists; edges at others are left out.

    Attributes:
        source, target: nodes of all edges that exist, `(E,)`; in a batch of graphs numbered across the batch.
        edge_weights, edge_features: of these, `(E,)` and `(E, c)`, or None.
        edges_batch: graphs with edges of their own; 1: one graph, which all entries of a batch share.

    Raises:
        ValueError, TypeError: on edges to nodes that do not exist, shapes that do not fit each other, negative
            weights, features or weights that are not finite, a directed graph without positions, and what `Points`
            refuses.
    """

    has_index_order = False
    edges_batch: int = 1

    def __init__(
        self,
        edge_index: Tensor,
        num_nodes: int,
        *,
        pos: Tensor | None = None,
        edge_weights: Tensor | None = None,
        edge_features: Tensor | None = None,
        weights: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> None:
        _check_edges(edge_index, num_nodes)
        if pos is None:
            if edge_index.ndim == 3:
                raise ValueError("Graph: a batch of graphs needs pos, (B, N, s); see laplacian_positions for one graph")
            pos = laplacian_positions(edge_index, num_nodes)
        check_tensor("Graph", "pos", pos)
        self._set(pos, weights, mask)
        if self.num_points != num_nodes:
            raise ValueError(f"Graph: pos must have a row for each of the {num_nodes} nodes; got {tuple(pos.shape)}")
        for name, tensor in (("edge_weights", edge_weights), ("edge_features", edge_features), ("pos", self.pos)):
            if tensor is not None and tensor.device != edge_index.device:
                raise ValueError(f"Graph: edge_index is on {edge_index.device}, {name} on {tensor.device}; move one")
        batched = edge_index.ndim == 3
        if batched and self.batch_size not in (None, edge_index.shape[0]):
            raise ValueError(f"Graph: edges are of {len(edge_index)} graphs, nodes of {self.batch_size}")
        exists = (edge_index[..., 0, :] >= 0) & (edge_index[..., 1, :] >= 0)
        first = torch.arange(edge_index.shape[0], device=edge_index.device)[:, None] * num_nodes if batched else 0
        source, target = ((edge_index[..., i, :] + first)[exists] for i in (0, 1))
        self.edge_weights = _of_edges("edge_weights", edge_weights, exists, 0)
        self.edge_features = _of_edges("edge_features", edge_features, exists, 1)
        if (
            self.edge_weights is not None
            and values_can_be_read(self.edge_weights)
            and bool((self.edge_weights < 0).any())
        ):
            raise ValueError("Graph: edge_weights must be >= 0; for a sign give edge_features to the kernel")
        self.source, self.target = source, target
        self.edges_batch = edge_index.shape[0] if batched else 1
        self._rows = _by_degree(source, target, self.edges_batch * num_nodes)

    @property
    def num_edges(self) -> int:
        """Number of edges of all graphs together."""
        return self.source.shape[0]

    def _own_batch(self) -> int | None:
        return self.edges_batch if self.edges_batch > 1 else super()._own_batch()

    @property
    def node_counts(self) -> Tensor:
        """c, the mass of each node where points are counted: `(N,)` or `(B, N)`; of graphs with own edges `(B·N,)`."""
        counts = self.counts
        return counts.expand(self.edges_batch, -1).flatten() if self.edges_batch > 1 else counts

    @property
    def edge_counts(self) -> Tensor:
        """w c of each edge's source: `(E,)`, or `(B, E)` where entries weigh the nodes of a shared graph."""
        sources = self.node_counts[..., self.source]
        return sources if self.edge_weights is None else sources * self.edge_weights.to(sources.dtype)

    @property
    def degrees(self) -> Tensor:
        """Σ w c over the edges that end at each node, of the shape of `node_counts`, in float32 at least."""
        counts = at_least_float32(self.edge_counts)  # in bfloat16 no sum of ones passes 256
        return counts.new_zeros(self.node_counts.shape).index_add(-1, self.target, counts)

    def to(self, device: torch.device | str) -> Self:
        """See `Domain.to`."""
        other = super().to(device)
        if other is not self:
            for name in ("source", "target", "edge_weights", "edge_features"):
                value = getattr(self, name)
                vars(other)[name] = None if value is None else value.to(device)
            other._rows = tuple((a.to(device), b.to(device), c.to(device)) for a, b, c in self._rows)
        return other

    def edge_pairs(self, density: Tensor) -> PairList:
        """The edges as listed pairs, each with a density m of its source: `(E,)`, or `(B, E)` of a shared graph."""
        shared = density.ndim == 2
        batch = density.shape[0] if shared else self.edges_batch
        padded = torch.cat([density, density.new_zeros(*density.shape[:-1], 1)], dim=-1)
        features = self.edge_features
        if features is not None:
            features = torch.cat([features, features.new_zeros(1, features.shape[-1])])
        groups = []
        for queries, points, edges in self._rows:
            own_features = None if features is None else features[edges]
            group = PairGroup(queries, points, padded[0][edges] if shared else padded[edges], own_features)
            if shared:
                one = PairList((group,), 1, self.num_points, self.num_points).repeated(batch).groups[0]
                group = one._replace(weights=padded[:, edges].flatten(0, 1))
            groups.append(group)
        return PairList(tuple(groups), batch, self.num_points, self.num_points)


def _check_edges(edge_index: Tensor, num_nodes: int) -> None:
    check_tensor("Graph", "edge_index", edge_index)
    if edge_index.ndim not in (2, 3) or edge_index.shape[-2] != 2 or edge_index.dtype != torch.int64:
        is_list = edge_index.ndim == 2 and edge_index.shape[0] != 2 == edge_index.shape[1]
        raise ValueError(
            f"Graph: edge_index must be int64 (2, E) or (B, 2, E), sources and targets; got {tuple(edge_index.shape)}, "
            f"{edge_index.dtype}{'; edge_index.T is that of a list of edges' if is_list else ''}"
        )
    if not values_can_be_read(edge_index):
        raise ValueError(
            "Graph: how its edges are grouped depends on which nodes they join, which torch.compile, torch.export, "
            "vmap and tensors without values do not know; make the graph beforehand, and hand it over or keep it in "
            "the model"
        )
    lowest = -1 if edge_index.ndim == 3 else 0
    outside = (
        (edge_index < lowest) | (edge_index >= num_nodes) | ((edge_index < 0).any(-2, keepdim=True) & (edge_index >= 0))
    )
    for place in outside.nonzero()[:1].tolist():
        edge = edge_index[(*place[:-2], slice(None), place[-1])].tolist()
        raise ValueError(f"Graph: edge {place[-1]} joins the nodes {edge}; there are nodes 0 to {num_nodes - 1}")


def _of_edges(name: str, value: Tensor | None, exists: Tensor, more: int) -> Tensor | None:
    """Values of the edges that exist, `(E, ...)`, from `(E, ...)` or `(B, E, ...)`; refuses NaN and infinite values."""
    if value is None:
        return None
    check_tensor("Graph", name, value)
    if value.shape[: exists.ndim] != exists.shape or value.ndim != exists.ndim + more or not value.is_floating_point():
        shape = f"{tuple(exists.shape)}{' and features' if more else ''}"
        raise ValueError(
            f"Graph: {name} must be float {shape}, as the edges are; got {tuple(value.shape)}, {value.dtype}"
        )
    kept = value[exists]
    if values_can_be_read(kept) and not bool(kept.isfinite().all()):
        raise ValueError(f"Graph: {name} holds NaN or infinite values")
    return kept


def _by_degree(source: Tensor, target: Tensor, total: int) -> tuple[tuple[Tensor, Tensor, Tensor], ...]:
    """Targets `(n,)`, their sources `(n, K)` and edges `(n, K)`, in groups of similar degree; edge E is padding.

    Degrees of a group differ by less than a third, so that padding adds less than that to the edges.
    """
    order = target.argsort(stable=True)
    degree = torch.bincount(target, minlength=total)
    first = torch.nn.functional.pad(degree.cumsum(0), (1, 0))[:-1]
    # sizes 1, 2, 3, 4, 6, 8, 12, 16, ...
    sizes = sorted({k for i in range(40) for k in (2**i, 3 * 2**i)})
    largest = int(degree.max()) if total else 0
    groups, below = [], 0
    for size in (k for k in sizes if k <= largest or below < largest):
        nodes = ((degree > below) & (degree <= size)).nonzero()[:, 0]
        below = size
        if not nodes.shape[0]:
            continue
        count = int(degree[nodes].max())
        place = torch.arange(count, device=source.device)
        listed = place < degree[nodes, None]
        edges = order[torch.where(listed, first[nodes, None] + place, 0)]
        groups.append((nodes, source[edges], torch.where(listed, edges, source.shape[0])))
    return tuple(groups)
