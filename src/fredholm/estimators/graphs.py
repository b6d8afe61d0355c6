"""Estimators that predict classes or numbers of graphs."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor

from fredholm.tasks.graphs import GraphArrays, GraphSet, graphs_of_arrays
from fredholm.tasks.graphs.graph_learning import GraphLearning
from fredholm.tasks.graphs.inputs import Preparation
from fredholm.tasks.graphs.network import warn_of_notes
from fredholm.tasks.splits.split_marks import SplitMarks
from fredholm.tasks.targets import Answers

from .classifier import Classifier
from .estimator import real_numbers
from .networkx_graphs import arrays_of_networkx, is_of_networkx
from .regressor import Regressor
from .target_estimator import TargetEstimator


class GraphEstimator(TargetEstimator[GraphSet]):
    """Base class of estimators for the task `graphs` (`fredholm.tasks.GraphLearning`) on lists of graphs."""

    _task: ClassVar = GraphLearning
    _decided: ClassVar = (*TargetEstimator._decided, "num_folds", "fold")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        return tags

    @final
    def _checked(self, X: Any, *, is_new: bool) -> GraphSet:
        if hasattr(X, "edge_index") or is_of_networkx(X) or not isinstance(X, Iterable):
            raise ValueError(f"X is a {type(X).__name__}; expected a list of graphs, such as [graph]")
        X, is_directed = list(X), self._directed(is_new)
        if X and all(map(is_of_networkx, X)):
            found = arrays_of_networkx(X, None if is_new else self._known)
            graphs = graphs_of_arrays(
                found.graphs,
                "X",
                is_directed=is_directed,
                feature_names=found.features,
                edge_feature_names=found.edge_features,
            )
        else:
            graphs = graphs_of_arrays([_graph(each, i) for i, each in enumerate(X)], "X", is_directed=is_directed)
        got = len(graphs.feature_names), len(graphs.edge_feature_names)
        if is_new:
            self.num_features_, self.num_edge_features_ = got
            warn_of_notes("X", graphs)
        for what, have, known in zip(
            ("a node", "an edge"), got, (self.num_features_, self.num_edge_features_), strict=True
        ):
            if have != known:
                raise ValueError(f"X has {have} features {what}; {type(self).__name__} was fitted on {known}")
        return graphs

    @property
    def _preparation(self) -> Preparation:
        """The preparation of graphs that the fitted model knows."""
        task = self.trained_.task
        assert isinstance(task, GraphLearning)
        return task.facts.preparation

    @property
    def _known(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Features of nodes and of edges that the fitted model knows."""
        return self._preparation.features, self._preparation.edge_features

    def _directed(self, is_new: bool) -> bool:
        """Whether edges are directed, by `task` in `fit` and by the fitted model later."""
        return bool(self._task_settings().get("directed", False)) if is_new else self._preparation.is_directed

    @final
    def _write(self, examples: GraphSet, answers: Answers, folder: Path) -> dict[str, Any]:
        path, values = folder / "graphs.npz", answers.values
        if answers.kind == "class":
            known = dataclasses.replace(examples, labels=values, classes=answers.names)
        else:
            known = dataclasses.replace(examples, targets=values, target_names=answers.names)
        marks = SplitMarks(given=torch.zeros(len(examples), dtype=torch.int64))
        dataclasses.replace(known, marks=marks).save(path)
        return {"data": str(path)}

    @final
    def _outputs(self, examples: GraphSet) -> Tensor:
        task = self.trained_.task
        assert isinstance(task, GraphLearning)
        return task.outputs(self.trained_.model, task.prepared(examples), self.trained_.device)


@final
class GraphClassifier(GraphEstimator, Classifier[GraphSet]):
    """Predicts the class of a graph, by the task `graphs`.

    X is a list of n graphs. A graph is `(edge_index, x)` or `(edge_index, x, edge_features)`: sources over targets,
    integers `(2, E)` from 0 to N - 1; features of nodes `(N, F)`, or the number N of nodes without any; and features of
    edges `(E, c)`. Or it is a `Data` of torch_geometric, of which `x`, `edge_index`, `edge_attr`, `edge_weight` and
    `pos` are read, or a graph of networkx, whose attributes are read (`estimators.networkx_graphs`). All graphs are of
    one form and have the same number of features, which are finite. Every edge is used in both directions, unless
    `task={"directed": True}` is given.

    Args:
        preset, model, task, training, valid_fraction, random_state, run_dir, verbose: see `Classifier`.
    """

    _takes_labels: ClassVar = False


@final
class GraphRegressor(GraphEstimator, Regressor[GraphSet]):
    """Predicts numbers of a graph, by the task `graphs`; for X see `GraphClassifier`.

    Args:
        preset, model, task, training, valid_fraction, random_state, run_dir, verbose, quantiles: see `Regressor`.
    """


def _graph(graph: Any, number: int) -> GraphArrays:
    """Parses a graph in one of the forms of `GraphClassifier`."""
    expected = "(edge_index, x), (edge_index, x, edge_features) or Data of torch_geometric, or all graphs of networkx"
    if isinstance(graph, tuple | list) and len(graph) in (2, 3):
        edge_index, nodes, *of_edges = graph
        given: dict[str, Any] = {"edge_index": edge_index, "x": nodes, "edge_attr": of_edges[0] if of_edges else None}
    elif hasattr(graph, "edge_index"):  # without importing torch_geometric
        given = {name: getattr(graph, name, None) for name in ("edge_index", "x", *_OPTIONAL)}
        given["x"] = getattr(graph, "num_nodes", None) if given["x"] is None else given["x"]
    else:
        found = f"a {type(graph).__name__}" + (f" of {len(graph)}" if isinstance(graph, tuple | list) else "")
        raise ValueError(f"graph {number} of X is {found}; expected {expected}")
    ends, x = (
        None if given[name] is None else _numbers(given[name], number, what)
        for name, what in (("edge_index", "edges"), ("x", "features of nodes"))
    )
    edges = np.zeros((2, 0), np.int64) if ends is None else ends
    if edges.shape != (2, 0) and (edges.ndim != 2 or len(edges) != 2 or edges.dtype.kind not in "iu"):
        got = f"edges {edges.dtype} {edges.shape}"
        raise ValueError(f"graph {number} of X has {got}; expected integers (2, E), sources over targets")
    if x is None or (x.ndim == 0 and (x.dtype.kind not in "iu" or x < 1)):
        raise ValueError(f"graph {number} of X has {x} for its nodes; expected features (N, F), or N, at least 1")
    features, num_nodes = (None, int(x)) if x.ndim == 0 else (x, len(x))
    edge_features, edge_weights, pos = (
        None if given.get(name) is None else _numbers(given[name], number, name) for name in _OPTIONAL
    )
    return GraphArrays(num_nodes, edges.astype(np.int64), features, edge_features, edge_weights, pos)


_OPTIONAL = ("edge_attr", "edge_weight", "pos")


def _numbers(values: Any, number: int, what: str) -> np.ndarray:
    values = values.detach().cpu() if isinstance(values, Tensor) else values
    return real_numbers(values, f"graph {number} of X has {what} that are")
