"""Graphs of torch_geometric."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fredholm.tasks.splits.split_marks import NO_MARKS, SplitMarks

from .graph_set import SPLIT_NAMES, GraphSet
from .of_arrays import GraphArrays, graphs_of_arrays
from .tu_folder import names_of_targets

if TYPE_CHECKING:
    from torch_geometric.data import Data


def from_pyg(
    data: "Data | Iterable[Data]", *, split: Sequence[str] | None = None, is_directed: bool = False
) -> GraphSet:
    """Graphs from `Data` of torch_geometric: one graph with answers at its nodes, or several with one answer each.

    It reads `x`, `edge_index`, `edge_attr`, `edge_weight`, `pos`, `y` and, of one graph, `train_mask`, `val_mask` and
    `test_mask`, bool, with each node in at most one. `y` of one graph is an integer per node, -1 where it has no
    class, or floats `(nodes,)` or `(nodes, T)`, targets, NaN where there are none; `y` of each of several graphs is one
    integer, a class, or numbers. Classes are named by their numbers. `GraphSet.save` writes the graphs to a file that a
    run can train on.

    Args:
        data: one graph, or a data set or list of them.
        split: for several graphs, train, valid or test for each; None: they have no split.
        is_directed: whether edges have directions.

    Raises:
        TypeError: something else than `Data`.
        ValueError: there are no graphs, they do not have the same features or only some have `y`, a mask or `y` is of
            another type, shape or range, and what `Listed.graphs` refuses.
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
    if split is not None and (isinstance(data, Data) or len(split) != len(given)):
        raise ValueError(f"from_pyg: split has {len(split)} entries; expected one a graph, of several graphs")
    graphs = graphs_of_arrays([_arrays(each) for each in given], "from_pyg", is_directed=is_directed)
    return replace(graphs, **(_of_nodes(given[0]) if isinstance(data, Data) else _of_graphs(given, split)))


def _arrays(graph: "Data") -> GraphArrays:
    found = {name: None if graph.get(name) is None else _array(graph[name]) for name in _READ}
    ends = np.zeros((2, 0), np.int64) if graph.edge_index is None else _array(graph.edge_index)
    return GraphArrays(int(graph.num_nodes or 0), ends, **{_READ[name]: array for name, array in found.items()})


MASKS = ("train_mask", "val_mask", "test_mask")
"""Masks of the nodes of one graph, in the order of `SPLITS`."""
_READ = {"x": "features", "edge_attr": "edge_features", "edge_weight": "edge_weights", "pos": "pos"}
"""Attributes of `Data` that are read, with their names in `GraphArrays`."""


def _array(tensor: Tensor) -> np.ndarray:
    kept = tensor.float() if tensor.dtype == torch.bfloat16 else tensor  # numpy has no bfloat16
    return kept.detach().cpu().numpy()


def _of_nodes(graph: "Data") -> dict[str, Any]:
    """Labels or targets, and the split, of one graph's nodes."""
    y, n = graph.get("y"), int(graph.num_nodes or 0)
    if y is None:
        return {}
    is_number = y.dtype.is_floating_point and y.ndim in (1, 2) and len(y) == n and y.numel() > 0
    if not is_number and (y.shape != (n,) or y.dtype.is_floating_point):
        raise ValueError(
            f"from_pyg: y is {y.dtype} {tuple(y.shape)}; expected an integer a node, ({n},), a class, or floats "
            f"({n},) or ({n}, T), numbers; pass a list of graphs where it is of graphs"
        )
    if not is_number and bool((y < -1).any()):
        raise ValueError(f"from_pyg: y has {int(y.min())}; expected classes from 0 on, and -1 where there is none")
    split = torch.full((n,), -1)
    for i, name in enumerate(MASKS):
        mask = graph.get(name)
        if mask is None:
            continue
        if mask.shape != (n,) or mask.dtype != torch.bool:
            raise ValueError(f"from_pyg: {name} is {mask.dtype} {tuple(mask.shape)}; expected bool ({n},), one split")
        members = mask.cpu().nonzero()[:, 0]
        for node in members[split[members] >= 0][:1].tolist():
            raise ValueError(f"from_pyg: node {node} is in {MASKS[int(split[node])]} and {name}; expected one split")
        split[members] = i
    marks = SplitMarks(given=split) if bool((split >= 0).any()) else NO_MARKS
    if is_number:
        targets = y.reshape(n, -1).double().cpu()
        return {"node_targets": targets, "target_names": names_of_targets(targets.shape[1]), "marks": marks}
    classes = tuple(str(label) for label in range(int(y.max()) + 1))
    return {"node_labels": y.long().cpu(), "classes": classes, "marks": marks}


def _of_graphs(given: "Sequence[Data]", split: Sequence[str] | None) -> dict[str, Any]:
    """Labels or targets of the graphs, and their split."""
    answers = [None if (y := each.get("y")) is None else torch.as_tensor(y).reshape(-1) for each in given]
    if all(y is None for y in answers):
        return {}
    rows = list[Tensor]()
    for i, y in enumerate(answers):
        if y is None:
            raise ValueError(f"from_pyg: graph {i} has no y, and others have; give it to all, or to none")
        if len(y) != (expected := len(rows[0] if rows else y) or 1):
            raise ValueError(
                f"from_pyg: y of graph {i} has {len(y)} entries; expected {expected}, as many in all graphs; pass "
                "one graph alone where it is of nodes"
            )
        rows.append(y)
    for i, word in enumerate(split or ()):
        if word not in SPLIT_NAMES:
            raise ValueError(f"from_pyg: split[{i}] is {word!r}; expected train, valid or test")
    given_split = None if split is None else torch.tensor([SPLIT_NAMES.index(word) for word in split])
    found: dict[str, Any] = {"marks": SplitMarks(given=given_split)}
    values = torch.stack(rows)
    if values.shape[1] == 1 and not values.dtype.is_floating_point:
        for i in (values[:, 0] < 0).nonzero()[:1, 0].tolist():
            raise ValueError(f"from_pyg: y of graph {i} is {int(values[i, 0])}; expected a class from 0 on")
        classes = tuple(str(label) for label in range(int(values.max()) + 1))
        return found | {"labels": values[:, 0].long().cpu(), "classes": classes}
    return found | {"targets": values.double().cpu(), "target_names": names_of_targets(values.shape[1])}
