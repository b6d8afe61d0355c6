"""Graphs of torch_geometric."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fredholm.tasks.split_marks import NO_MARKS, SplitMarks

from .graph_set import SPLIT_NAMES, GraphSet
from .listed import Listed
from .tu_folder import names_of_targets

if TYPE_CHECKING:
    from torch_geometric.data import Data


def from_pyg(
    data: "Data | Iterable[Data]", *, split: Sequence[str] | None = None, is_directed: bool = False
) -> GraphSet:
    """Graphs from `Data` of torch_geometric: one, whose nodes have classes, or several, that have classes or numbers.

    Read are `x`, `edge_index`, `edge_attr`, `edge_weight`, `pos`, `y` and, of one graph, `train_mask`, `val_mask` and
    `test_mask`. `y` of one graph is an integer a node, -1 where it has no class; `y` of several is one integer, a
    class, or numbers. Classes are called by their numbers. `GraphSet.save` makes a file of it that a run can train on.

    Args:
        data: one graph, or a data set or list of them.
        split: of several graphs, train, valid or test each; None: they have none.
        is_directed: whether an edge from a to b is none from b to a.

    Raises:
        TypeError: something else than `Data`.
        ValueError: there are no graphs, they do not have the same features, and what `Listed.graphs` refuses.
        ImportError: torch_geometric is not installed.
    """
    try:
        from torch_geometric.data import Data
    except ImportError as error:
        raise ImportError('graphs of PyG need torch_geometric; get it with: pip install "fredholm[graph]"') from error
    given = [data] if isinstance(data, Data) else list(data)
    for i, each in enumerate(given):
        if not isinstance(each, Data):
            raise TypeError(f"from_pyg: graph {i} is a {type(each).__name__}; expected torch_geometric.data.Data")
    if not given:
        raise ValueError("from_pyg: there are no graphs; pass at least one")
    if split is not None and (isinstance(data, Data) or len(split) != len(given)):
        raise ValueError(f"from_pyg: split has {len(split)} entries; expected one a graph, of several graphs")
    nodes = [int(each.num_nodes or 0) for each in given]
    first = np.concatenate([[0], np.cumsum(nodes)])
    ends = [np.zeros((2, 0), np.int64) if each.edge_index is None else _array(each.edge_index) for each in given]
    for i, (each, n) in enumerate(zip(ends, nodes, strict=True)):
        if each.size and not (each.min() >= 0 and each.max() < n):
            raise ValueError(f"from_pyg: graph {i} has an edge to node {each.max()}; expected 0 to {n - 1}")
    features, edge_features = _joined(given, "x", nodes), _joined(given, "edge_attr", [e.shape[1] for e in ends])
    edge_weights = _joined(given, "edge_weight", [e.shape[1] for e in ends])
    answers = _of_nodes(given[0]) if isinstance(data, Data) else _of_graphs(given, split)
    return Listed(
        graph=np.repeat(np.arange(len(given)), nodes),
        names=[str(i) for i in range(len(given))],
        features=np.zeros((sum(nodes), 0)) if features is None else features,
        feature_names=tuple(f"feature_{c}" for c in range(0 if features is None else features.shape[1])),
        edges=np.concatenate([each + start for each, start in zip(ends, first, strict=False)], axis=1),
        edge_weights=None if edge_weights is None else edge_weights[:, 0],
        edge_features=edge_features,
        edge_feature_names=tuple(
            f"edge_feature_{c}" for c in range(0 if edge_features is None else edge_features.shape[1])
        ),
        pos=_joined(given, "pos", nodes),
        node_names=[str(i) for i in range(nodes[0])],
        node_place=lambda i: _place("node", first, i),
        edge_place=lambda i: _place("edge", np.concatenate([[0], np.cumsum([e.shape[1] for e in ends])]), i),
        is_directed=is_directed,
        **answers,
    ).graphs()


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy()


def _place(what: str, first: np.ndarray, i: int) -> str:
    graph = int(np.searchsorted(first, i, side="right")) - 1
    return f"from_pyg: graph {graph}, {what} {i - int(first[graph])}"


def _joined(given: "Sequence[Data]", name: str, rows: Sequence[int]) -> np.ndarray | None:
    """An attribute of all graphs, one below the other, float64 `(rows, columns)`; None where no graph has it."""
    found = [
        None if each.get(name) is None else _array(each[name]).reshape(n, -1)
        for each, n in zip(given, rows, strict=True)
    ]
    if all(each is None for each in found):
        return None
    widths = {None if each is None else each.shape[1] for each in found}
    if len(widths) > 1:
        told = ", ".join("none" if width is None else str(width) for width in widths)
        raise ValueError(f"from_pyg: {name} has {told} columns in different graphs; expected as many in all")
    return np.concatenate([np.asarray(each, np.float64) for each in found])


def _of_nodes(graph: "Data") -> dict[str, Any]:
    """Labels and split of one graph's nodes."""
    y, n = graph.get("y"), int(graph.num_nodes or 0)
    if y is None:
        return {}
    if y.shape != (n,) or y.dtype.is_floating_point:
        raise ValueError(f"from_pyg: y is {y.dtype} {tuple(y.shape)}; expected an integer a node, ({n},)")
    split = torch.full((n,), -1)
    for i, name in enumerate(("train_mask", "val_mask", "test_mask")):
        if graph.get(name) is not None:
            if graph[name].shape != (n,):
                raise ValueError(f"from_pyg: {name} has shape {tuple(graph[name].shape)}; expected ({n},), one split")
            split[graph[name]] = i
    classes = tuple(str(label) for label in range(int(y.max()) + 1))
    marks = SplitMarks(given=split) if bool((split >= 0).any()) else NO_MARKS
    return {"node_labels": _array(y), "classes": classes, "marks": marks}


def _of_graphs(given: "Sequence[Data]", split: Sequence[str] | None) -> dict[str, Any]:
    """Labels or targets of the graphs, and their split."""
    answers = [each.get("y") for each in given]
    if any(y is None for y in answers):
        return {}
    for i, word in enumerate(split or ()):
        if word not in SPLIT_NAMES:
            raise ValueError(f"from_pyg: split[{i}] is {word!r}; expected train, valid or test")
    given_split = None if split is None else torch.tensor([SPLIT_NAMES.index(word) for word in split])
    found: dict[str, Any] = {"marks": SplitMarks(given=given_split)}
    values = torch.stack([torch.as_tensor(y).reshape(-1) for y in answers])
    if values.shape[1] == 1 and not values.dtype.is_floating_point:
        classes = tuple(str(label) for label in range(int(values.max()) + 1))
        return found | {"labels": _array(values[:, 0]), "classes": classes}
    return found | {"targets": _array(values).astype(np.float64), "target_names": names_of_targets(values.shape[1])}
