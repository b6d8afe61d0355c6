"""Conversion of lists of nodes and edges, as in files, to graphs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from fredholm.tasks.files.cells import FINITE, LARGEST, kept_type
from fredholm.tasks.splits.split_marks import NO_MARKS, SplitMarks

from .edges import tidy_edges
from .graph_set import GraphSet, check_known


@final
@dataclass(frozen=True, kw_only=True)
class Listed:
    """All nodes and all edges of some graphs, in any order.

    Args:
        graph: the graph of each node, `(nodes,)`, from 0 on.
        names: one per graph.
        features: of each node, `(nodes, F)`.
        edges: `(2, E)`, node indices, sources over targets; `tidy_edges` tidies them.
        node_place, edge_place: map the index of a node or edge to its place in the data, for messages.
        pos, weights, node_labels, node_targets, node_names: of each node, as in `GraphSet`.
        edge_weights, edge_features: of each edge.
        labels, targets: of each graph.
        marks: of each graph, or of each node where these have labels or targets.
        node_name: maps the index of a node to its name in messages.
        feature_names, edge_feature_names, target_names, classes, is_directed: as in `GraphSet`.
    """

    graph: np.ndarray
    names: Sequence[str]
    features: np.ndarray
    edges: np.ndarray
    node_place: Callable[[int], str]
    edge_place: Callable[[int], str]
    pos: np.ndarray | None = None
    weights: np.ndarray | None = None
    node_labels: np.ndarray | None = None
    node_targets: np.ndarray | None = None
    node_names: Sequence[str] = ()
    edge_weights: np.ndarray | None = None
    edge_features: np.ndarray | None = None
    labels: np.ndarray | None = None
    targets: np.ndarray | None = None
    marks: SplitMarks = NO_MARKS
    node_name: Callable[[int], str] = str
    feature_names: Sequence[str]
    edge_feature_names: Sequence[str] = ()
    target_names: Sequence[str] = ()
    classes: Sequence[str] = ()
    is_directed: bool = False

    def graphs(self) -> GraphSet:
        """The graphs, their nodes in the order of the list.

        Raises:
            ValueError: a graph has no node, a value is NaN or infinite, a weight below 0, all weights of a graph 0, and
                what `tidy_edges` refuses; targets of a node are infinite, or only some of them are NaN.
        """
        self._check_nodes()
        found = tidy_edges(
            self.edges,
            self.edge_weights,
            self.edge_features,
            graph=self.graph,
            is_directed=self.is_directed,
            place=self.edge_place,
            node_name=self.node_name,
        )
        order = np.argsort(self.graph, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        ends = rank[found.index]
        along = np.lexsort((ends[1], ends[0]))
        ends, offsets = ends[:, along], _offsets(self.graph, len(self.names))
        of_edge = self.graph[order][ends[0]]
        has_node_answers = self.node_labels is not None or self.node_targets is not None
        marks = self.marks.select(torch.from_numpy(order)) if has_node_answers else self.marks
        features = _taken(self.features, order, kept_type(self.features))
        assert features is not None
        return GraphSet(
            features=features,
            node_offsets=torch.from_numpy(offsets),
            edge_index=torch.from_numpy(ends - offsets[of_edge]),
            edge_offsets=torch.from_numpy(_offsets(of_edge, len(self.names))),
            edge_weights=_taken(found.weights, along, np.float32),
            edge_features=None if found.features is None else _taken(found.features, along, kept_type(found.features)),
            pos=_taken(self.pos, order, np.float32),
            weights=_taken(self.weights, order, np.float32),
            labels=_taken(self.labels, slice(None), np.int64),
            targets=_taken(self.targets, slice(None), np.float64),
            node_labels=_taken(self.node_labels, order, np.int64),
            node_targets=_taken(self.node_targets, order, np.float64),
            marks=marks,
            classes=tuple(self.classes),
            feature_names=tuple(self.feature_names),
            edge_feature_names=tuple(self.edge_feature_names),
            target_names=tuple(self.target_names),
            names=tuple(self.names),
            node_names=tuple(self.node_names) if len(self.names) == 1 else (),
            is_directed=self.is_directed,
            notes=found.notes,
        )

    def _check_nodes(self) -> None:
        if len(self.names) > len(self.graph):
            raise ValueError(f"there are {len(self.names)} graphs of {len(self.graph)} nodes; expected a node in each")
        counts = np.bincount(self.graph, minlength=len(self.names))
        for i in np.flatnonzero(counts == 0)[:1].tolist():
            raise ValueError(f"graph {self.names[i]!r} has no nodes; expected at least one")
        coordinates = [f"coordinate {c + 1}" for c in range(0 if self.pos is None else self.pos.shape[1])]
        for values, columns in ((self.features, self.feature_names), (self.pos, coordinates)):
            if values is not None:
                for i, c in np.argwhere(~(np.abs(values) <= LARGEST))[:1].tolist():
                    what = f"{columns[c]} is {values[i, c]:g}"
                    raise ValueError(f"{self.node_place(i)}: {what}; expected {FINITE}")
        if self.node_targets is not None:
            targets = torch.from_numpy(self.node_targets.astype(np.float64))
            check_known(targets, tuple(self.target_names), self.node_place)
        if self.weights is None:
            return
        for i in np.flatnonzero(~((self.weights >= 0) & (self.weights <= LARGEST)))[:1].tolist():
            raise ValueError(
                f"{self.node_place(i)}: weight {self.weights[i]:g}; expected a finite number of at least 0 and "
                f"at most {LARGEST:.2g}"
            )
        rounded = self.weights.astype(np.float32)  # as they are kept
        total = np.bincount(self.graph, rounded, minlength=len(self.names))
        for i in np.flatnonzero(total == 0)[:1].tolist():
            place = self.node_place(int(np.flatnonzero(self.graph == i)[0]))
            raise ValueError(
                f"{place}: all nodes of graph {self.names[i]!r} have weight 0, in float32; expected one that counts"
            )


def _offsets(graph: np.ndarray, num_graphs: int) -> np.ndarray:
    """The index of the first member of each graph, and at the end the number of members."""
    return np.concatenate([[0], np.cumsum(np.bincount(graph, minlength=num_graphs))]).astype(np.int64)


def _taken(values: np.ndarray | None, at: np.ndarray | slice, kind: type) -> Tensor | None:
    return None if values is None else torch.from_numpy(np.array(values[at], kind))
