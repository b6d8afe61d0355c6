"""Graphs with their labels or targets: the frozen value that every reader returns."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self, final

import numpy as np
import torch
from torch import Tensor

from fredholm.tasks.files.cells import FINITE, LARGEST
from fredholm.tasks.splits.split_marks import NO_MARKS, SplitMarks
from fredholm.tasks.splits.splits import Examples
from fredholm.tasks.targets import Answers, ClassAnswers, NumberAnswers

SPLIT_NAMES = ("train", "valid", "test")
"""Names of the splits 0, 1 and 2; -1 is no split."""


@final
@dataclass(frozen=True, kw_only=True)
class GraphSet(Examples):
    """n graphs; the nodes of graph i are `node_offsets[i]` to `node_offsets[i + 1]`, its edges likewise.

    Args:
        features: float32 or float64 `(nodes, F)`, finite; F may be 0.
        node_offsets: int64 `(n + 1,)`, from 0 to the number of nodes; every graph has a node.
        edge_index: int64 `(2, edges)`, sources over targets, counted from the first node of their graph.
        edge_offsets: int64 `(n + 1,)`, from 0 to the number of edges.
        edge_weights: float32 `(edges,)`, >= 0.
        edge_features: float32 or float64 `(edges, c)`, finite.
        pos: float32 `(nodes, s)`, positions of nodes in the data.
        weights: float32 `(nodes,)`, >= 0 and not all 0 in a graph: the weight of each node in means.
        kinds, edge_kinds: int64 `(nodes,)` and `(edges,)`, the kind of each; see `inputs.Kinds`.
        labels: int64 `(n,)`, classes of graphs.
        targets: float64 `(n, T)`, numbers to predict for graphs.
        node_labels: int64 `(nodes,)`, classes of nodes; -1 where there is none.
        node_targets: float64 `(nodes, T)`, numbers to predict for nodes; all NaN where none is known.
        marks: splits, groups and times of each graph, or of each node where nodes have labels or targets.
        classes: the names of the classes, of graphs or nodes.
        feature_names, edge_feature_names, target_names: one per column.
        names: one per graph.
        node_names: one per node of a single graph; else ().
        is_directed: whether edges have directions.
        notes: reports of edges that were dropped, merged or mirrored in reading.

    Raises:
        ValueError: shapes do not agree, or values are out of range.
    """

    shared: ClassVar[tuple[str, ...]] = ("classes", "feature_names", "edge_feature_names", "target_names")

    features: Tensor
    node_offsets: Tensor
    edge_index: Tensor
    edge_offsets: Tensor
    edge_weights: Tensor | None = None
    edge_features: Tensor | None = None
    pos: Tensor | None = None
    weights: Tensor | None = None
    kinds: Tensor | None = None
    edge_kinds: Tensor | None = None
    labels: Tensor | None = None
    targets: Tensor | None = None
    node_labels: Tensor | None = None
    node_targets: Tensor | None = None
    marks: SplitMarks = NO_MARKS
    classes: tuple[str, ...] = ()
    feature_names: tuple[str, ...]
    edge_feature_names: tuple[str, ...] = ()
    target_names: tuple[str, ...] = ()
    names: tuple[str, ...]
    node_names: tuple[str, ...] = ()
    is_directed: bool = False
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        n, nodes, edges = len(self), len(self.features), self.edge_index.shape[1]
        shapes = {
            "features": (nodes, len(self.feature_names)),
            "node_offsets": (n + 1,),
            "edge_index": (2, edges),
            "edge_offsets": (n + 1,),
            "edge_weights": (edges,),
            "edge_features": (edges, len(self.edge_feature_names)),
            "weights": (nodes,),
            "kinds": (nodes,),
            "edge_kinds": (edges,),
            "labels": (n,),
            "targets": (n, len(self.target_names)),
            "node_labels": (nodes,),
            "node_targets": (nodes, len(self.target_names)),
        }
        for name, shape in shapes.items():
            value = getattr(self, name)
            if value is not None and value.shape != shape:
                raise ValueError(f"{name} has shape {tuple(value.shape)}; expected {shape}")
        self.marks.check(nodes if self.has_node_answers else n)
        answers = [
            name for name in ("labels", "targets", "node_labels", "node_targets") if getattr(self, name) is not None
        ]
        if len(answers) > 1:
            raise ValueError(f"graphs have {' and '.join(answers)}; give one of them")
        if self.node_targets is not None:
            check_known(self.node_targets, self.target_names, lambda i: f"node {i}")
        if n == 1 and self.node_names and len(self.node_names) != nodes:
            raise ValueError(f"there are {len(self.node_names)} names for {nodes} nodes; give one each")

    def __len__(self) -> int:
        """The number of graphs."""
        return len(self.names)

    def check_split(self, name: str) -> None:
        """See `Examples.check_split`; besides, each has a label or targets."""
        super().check_split(name)
        if self.answers is None:
            raise ValueError(f"the graphs of the {name} set have no labels and no targets; give each graph one")

    @property
    def answers(self) -> Answers | None:
        """The label or the targets of each graph; None: there are none."""
        if self.labels is not None:
            return ClassAnswers(names=self.classes, values=self.labels)
        return None if self.targets is None else NumberAnswers(names=self.target_names, values=self.targets)

    @property
    def has_node_answers(self) -> bool:
        """Whether labels or targets are of nodes, not of graphs."""
        return self.node_labels is not None or self.node_targets is not None

    @property
    def known_nodes(self) -> Tensor:
        """Indices of the nodes whose label or targets are known, int64 `(k,)`."""
        if self.node_targets is not None:
            return (~self.node_targets[:, 0].isnan()).nonzero()[:, 0]
        none = torch.zeros(0, dtype=torch.int64)
        return none if self.node_labels is None else (self.node_labels >= 0).nonzero()[:, 0]

    def answers_of(self, nodes: Tensor) -> Answers:
        """The labels or targets of some of `known_nodes`, int64 `(m,)`."""
        if self.node_targets is not None:
            return NumberAnswers(names=self.target_names, values=self.node_targets[nodes])
        assert self.node_labels is not None
        return ClassAnswers(names=self.classes, values=self.node_labels[nodes])

    @property
    def num_nodes(self) -> Tensor:
        """Nodes of each graph, int64 `(n,)`."""
        return self.node_offsets.diff()

    def select(self, indices: Tensor) -> Self:
        """The graphs at `indices`, int64 `(m,)`."""
        nodes, node_offsets = _members(self.node_offsets, indices)
        edges, edge_offsets = _members(self.edge_offsets, indices)
        picked: dict[str, Tensor | None] = {}
        for at, names in (
            (nodes, ("features", "pos", "weights", "node_labels", "node_targets", "kinds")),
            (edges, ("edge_weights", "edge_features", "edge_kinds")),
            (indices, ("labels", "targets")),
        ):
            for name in names:
                value = getattr(self, name)
                picked[name] = None if value is None else value[at]
        return replace(
            self,
            **picked,  # pyright: ignore[reportArgumentType]
            marks=self.marks.select(nodes if self.has_node_answers else indices),
            node_offsets=node_offsets,
            edge_offsets=edge_offsets,
            edge_index=self.edge_index[:, edges],
            names=tuple(self.names[i] for i in indices.tolist()),
            node_names=self.node_names if len(self) == len(indices) == 1 else (),
        )

    def with_edges(self, kept: Tensor) -> Self:
        """The same graphs with some of their edges; `kept` is bool, `(edges,)`."""
        before = torch.cat([kept.new_zeros(1, dtype=torch.int64), kept.cumsum(0)])
        weights, features, kinds = self.edge_weights, self.edge_features, self.edge_kinds
        return replace(
            self,
            edge_index=self.edge_index[:, kept],
            edge_offsets=before[self.edge_offsets],
            edge_weights=None if weights is None else weights[kept],
            edge_features=None if features is None else features[kept],
            edge_kinds=None if kinds is None else kinds[kept],
        )

    def save(self, path: str | Path) -> None:
        """Writes the graphs as an .npz file in the layout that `read_npz` describes."""
        graph = np.repeat(np.arange(len(self)), self.num_nodes.numpy())
        first = self.node_offsets[:-1].repeat_interleave(self.edge_offsets.diff())
        words, marks = np.array([*SPLIT_NAMES, ""]), self.marks
        arrays: dict[str, Tensor | np.ndarray | None] = {
            "features": self.features,
            "edge_index": self.edge_index + first,
            "edge_weights": self.edge_weights,
            "edge_features": self.edge_features,
            "pos": self.pos,
            "weights": self.weights,
            "labels": self.node_labels if self.labels is None else self.labels,
            "targets": self.node_targets if self.targets is None else self.targets,
            "split": None if marks.given is None else words[marks.given.numpy()],
            "groups": None if marks.groups is None else np.array(marks.groups),
            "example_times": marks.times,
            "graph": None if self.has_node_answers and len(self) == 1 else graph,
            "names": np.array(self.names),
            "node_names": np.array(self.node_names) if self.node_names else None,
            "directed": np.array(self.is_directed),
        }
        for name in ("classes", "feature_names", "edge_feature_names", "target_names"):
            arrays[name] = np.array(getattr(self, name), dtype=np.str_) if getattr(self, name) else None
        kept = {name: np.asarray(value) for name, value in arrays.items() if value is not None}
        np.savez_compressed(Path(path), **kept)  # pyright: ignore[reportArgumentType]


def check_known(targets: Tensor, names: tuple[str, ...], place: Callable[[int], str]) -> None:
    """Raises ValueError unless the targets of each node `(nodes, T)` are finite, or none is known: all are NaN.

    Args:
        targets: float64.
        names: one per column.
        place: maps a node to its place in the data, for messages.
    """
    unknown = targets.isnan()
    for i, c in (~((targets.abs() <= LARGEST) | unknown)).nonzero()[:1].tolist():
        raise ValueError(f"{place(i)}: {names[c]} is {float(targets[i, c]):g}; expected {FINITE}, or none")
    for i, c in (unknown & ~unknown.all(1, keepdim=True)).nonzero()[:1].tolist():
        raise ValueError(f"{place(i)}: {names[c]} is missing, and others are there; give a node all targets, or none")


def _members(offsets: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Indices of the members of the runs at `indices`, and the offsets of these runs among them."""
    counts = offsets.diff()[indices]
    begins = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    members = torch.arange(int(begins[-1])) + (offsets[indices] - begins[:-1]).repeat_interleave(counts)
    return members, begins
