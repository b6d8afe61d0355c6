"""Graphs from separate arrays for each."""

from collections.abc import Sequence
from typing import NamedTuple, final

import numpy as np

from .graph_set import GraphSet
from .listed import Listed


@final
class GraphArrays(NamedTuple):
    """One graph of N nodes and E edges."""

    num_nodes: int
    edges: np.ndarray
    """int64 `(2, E)`, sources over targets, from 0 to N - 1."""
    features: np.ndarray | None = None
    """Features of the nodes, `(N, ...)`; further axes are flattened, here and below."""
    edge_features: np.ndarray | None = None
    """`(E, ...)`."""
    edge_weights: np.ndarray | None = None
    """`(E,)`, at least 0."""
    pos: np.ndarray | None = None
    """Positions of the nodes, `(N, s)`."""


def graphs_of_arrays(
    graphs: Sequence[GraphArrays],
    where: str,
    *,
    is_directed: bool = False,
    feature_names: tuple[str, ...] = (),
    edge_feature_names: tuple[str, ...] = (),
) -> GraphSet:
    """The graphs as a set without labels or targets; graphs and nodes are named by their numbers.

    Args:
        graphs: at least one; all have the same arrays, with equal numbers of columns.
        where: name of the graphs in messages.
        is_directed: whether edges have directions.
        feature_names, edge_feature_names: names of the features; none: they are named by their numbers.

    Raises:
        ValueError: there are no graphs, they do not have the same features, an edge has an end that is no node, and
            what `Listed.graphs` refuses.
    """
    if not graphs:
        raise ValueError(f"{where}: there are no graphs; pass at least one")
    nodes, counts = ([each.num_nodes for each in graphs], [each.edges.shape[1] for each in graphs])
    for i, (each, n) in enumerate(zip(graphs, nodes, strict=True)):
        outside = each.edges[(each.edges < 0) | (each.edges >= n)]
        if len(outside):
            raise ValueError(f"{where}: graph {i} has an edge to node {outside[0]}; expected 0 to {n - 1}")
    features, edge_features = _joined(graphs, "features", nodes, where), _joined(graphs, "edge_features", counts, where)
    edge_weights = _joined(graphs, "edge_weights", counts, where)
    first, first_edges = (np.concatenate([[0], np.cumsum(each)]) for each in (nodes, counts))
    return Listed(
        graph=np.repeat(np.arange(len(graphs)), nodes),
        names=[str(i) for i in range(len(graphs))],
        features=np.zeros((sum(nodes), 0)) if features is None else features,
        feature_names=feature_names or _names("feature", features),
        edges=np.concatenate([each.edges + start for each, start in zip(graphs, first, strict=False)], axis=1),
        edge_weights=None if edge_weights is None else edge_weights[:, 0],
        edge_features=edge_features,
        edge_feature_names=edge_feature_names or _names("edge_feature", edge_features),
        pos=_joined(graphs, "pos", nodes, where),
        node_names=[str(i) for i in range(nodes[0])],
        node_place=lambda i: _place(where, "node", first, i),
        edge_place=lambda i: _place(where, "edge", first_edges, i),
        is_directed=is_directed,
    ).graphs()


def _joined(graphs: Sequence[GraphArrays], name: str, rows: Sequence[int], where: str) -> np.ndarray | None:
    """An array of all graphs, concatenated, float64 `(rows, columns)`; None where no graph has it."""
    what, found = name.replace("_", " "), list[np.ndarray | None]()
    for i, (graph, n) in enumerate(zip(graphs, rows, strict=True)):
        values: np.ndarray | None = getattr(graph, name)
        if values is None and n == 0:
            continue  # a graph without rows needs no array
        if values is not None and (values.ndim == 0 or len(values) != n):
            raise ValueError(f"{where}: graph {i} has {what} of shape {values.shape}; expected ({n}, columns)")
        found.append(None if values is None else values.reshape(n, int(np.prod(values.shape[1:]))))
    if all(each is None for each in found):
        return None
    widths = list(dict.fromkeys(None if each is None else each.shape[1] for each in found))
    if len(widths) > 1:
        numbers = ", ".join("none" if width is None else str(width) for width in widths)
        raise ValueError(f"{where}: {what} have {numbers} columns in different graphs; expected as many in all")
    return np.concatenate([np.asarray(each, np.float64) for each in found])


def _names(what: str, values: np.ndarray | None) -> tuple[str, ...]:
    return tuple(f"{what}_{c}" for c in range(0 if values is None else values.shape[1]))


def _place(where: str, what: str, first: np.ndarray, i: int) -> str:
    graph = int(np.searchsorted(first, i, side="right")) - 1
    return f"{where}: graph {graph}, {what} {i - int(first[graph])}"
