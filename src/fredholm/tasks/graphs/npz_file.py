"""Graphs in an .npz file of numpy arrays."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fredholm.tasks.files.array_names import no_array, refuse_twice
from fredholm.tasks.files.cells import FINITE, LARGEST
from fredholm.tasks.files.limits import COUNTED, EXPANSION, check_counted, check_expansion
from fredholm.tasks.files.npz_arrays import load_arrays, refuse_unread, split_words
from fredholm.tasks.splits.split_files import SPLIT_WORDS, SPLITS
from fredholm.tasks.splits.split_marks import ARRAYS, SplitMarks, marks_of_arrays
from fredholm.tasks.targets.class_names import ClassNames
from fredholm.tasks.targets.target import check_names_differ

from .graph_set import GraphSet
from .listed import Listed
from .one_hot import columns_of
from .tu_folder import names_of_targets

_OF_TU = (
    *("edges", "edge_index", "graph_indicator", "graph_labels", "graph_attributes", "node_labels", "node_attributes"),
    *("edge_labels", "edge_attributes", "names", "directed", "split", *ARRAYS),
)
_SPARSE = ("x_indptr", "x_indices", "x_data", "x_shape")
_GENERAL = (
    *("edge_index", "edges", "features", "x", *_SPARSE, "num_nodes", "graph", "labels", "y", "targets", "classes"),
    *("split", *ARRAYS, "weights", "pos", "edge_weights", "edge_features"),
    *("feature_names", "edge_feature_names", "target_names", "names", "node_names", "directed"),
)
_MEMBERS = tuple(f"{word}_idx" for word in SPLIT_WORDS)
_Arrays = Mapping[str, np.ndarray]


def read_npz(
    path: Path,
    *,
    is_directed: bool = False,
    features: tuple[str, ...] | None = None,
    edge_features: tuple[str, ...] | None = None,
) -> GraphSet:
    """Read arrays in one of three layouts.

    The general one, which `GraphSet.save` writes:

    - `edge_index` `(2, E)`, or `edges` `(E, 2)`: numbers of nodes, counted over all graphs from 0;
    - `features` (or `x`) `(nodes, F)`; without it `num_nodes`;
    - `graph` `(nodes,)`: the graph of each node, from 0 on; without it there is one graph;
    - `labels` (or `y`), numbers of `classes` or names, of graphs, or without `graph` of nodes, where -1 or "" is none;
      or `targets` `(n,)` or `(n, T)`, numbers to predict for graphs, or without `graph` for nodes, where NaN is none;
    - `split`, `groups` and `example_times`, likewise (see `marks_of_arrays`); or, in place of `split`, `train_idx`,
      `valid_idx` (or `val_idx`) and `test_idx`, numbers;
    - `weights` and `pos` of nodes; `edge_weights` `(E,)` and `edge_features` `(E, c)` of edges;
    - `feature_names`, `edge_feature_names`, `target_names`, `names` of graphs, `node_names`;
    - `directed`, bool `()`: whether edges have directions.

    The layout of a TUDataset as one file: `edges`, and, as in `read_tu_folder`, `graph_indicator`, `graph_labels`,
    `node_labels`, `node_attributes`, `edge_labels` and `edge_attributes`. The layout of Planetoid: features as
    `x_indptr`, `x_indices` and `x_data`, rows of a sparse matrix, whose repeated entries are added; all else as in the
    general layout.

    Args:
        path: the file.
        is_directed: whether edges have directions, where the file has no array `directed`.
        features: names of features of nodes that a model knows; None: the file's.
        edge_features: likewise of edges.

    Raises:
        ValueError: it is no such file, arrays are missing, unknown or do not fit together, and what `Listed.graphs`
            refuses. The message names file and array.
    """
    arrays = load_arrays(path)
    try:
        if "graph_indicator" in arrays:
            refuse_unread(arrays, _OF_TU, of_splits=("idx",), form="{word}_{name}")
            arrays = _from_tu(arrays, features, edge_features)
        else:
            refuse_unread(arrays, _GENERAL, of_splits=("idx",), form="{word}_{name}")
            arrays = _dense(arrays)
        return _read(path, arrays, is_directed, features, edge_features)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _read(
    path: Path,
    arrays: _Arrays,
    is_directed: bool,
    known: tuple[str, ...] | None,
    known_of_edges: tuple[str, ...] | None,
) -> GraphSet:
    edges = _edges(arrays)
    refuse_twice(arrays, ("features", "x"), ("labels", "y"))
    values = _floats(arrays, ("features", "x"), 2)
    nodes = _num_nodes(arrays, values)
    values = np.zeros((nodes, 0)) if values is None else values
    has_graphs = "graph" in arrays
    graph = _checked("graph", arrays, (nodes,), "iu") if has_graphs else np.zeros(nodes, np.int64)
    if len(graph) and int(graph.max()) >= nodes:
        raise ValueError(f"graph[{int(graph.argmax())}] is {graph.max()}, but there are {nodes} nodes in all")
    if len(graph) and int(graph.min()) < 0:
        raise ValueError(f"graph[{int(graph.argmin())}] is {graph.min()}; expected numbers from 0 on")
    for i in np.flatnonzero(np.bincount(graph.astype(np.int64)) == 0)[:1].tolist():
        raise ValueError(
            f"graph has no node of graph {i}, and of graph {graph.max()}; number graphs from 0 on without gaps"
        )
    names = _texts("names", arrays, int(graph.max()) + 1) or [str(i) for i in range(int(graph.max()) + 1)]
    joined = _floats(arrays, ("edge_features",), 2, rows=edges.shape[1])
    examples = len(names) if has_graphs else nodes
    found = _answers(arrays, examples, of_nodes=not has_graphs)
    edge_names = _names("edge_feature", arrays, 0 if joined is None else joined.shape[1], known_of_edges)
    return Listed(
        graph=graph.astype(np.int64),
        names=names,
        features=values,
        feature_names=_names("feature", arrays, values.shape[1], known),
        edges=edges,
        edge_weights=_floats(arrays, ("edge_weights",), 1, rows=edges.shape[1]),
        edge_features=joined if edge_names else None,
        edge_feature_names=edge_names,
        pos=_floats(arrays, ("pos",), 2, rows=nodes),
        weights=_floats(arrays, ("weights",), 1, rows=nodes),
        node_names=_texts("node_names", arrays, nodes) or [str(i) for i in range(nodes)],
        node_place=lambda i: f"node {i}",
        edge_place=lambda i: f"edge {i}",
        is_directed=_is_directed(arrays, is_directed),
        **found,
    ).graphs()


def _is_directed(arrays: _Arrays, is_asked: bool) -> bool:
    """Whether edges have directions: by the file, else by the argument."""
    if "directed" not in arrays:
        return is_asked
    is_directed = bool(_checked("directed", arrays, (), "b"))
    if is_asked and not is_directed:
        raise ValueError(
            "directed is False, but edges are to be read as directed; leave the array out, or make it True"
        )
    return is_directed


def _from_tu(
    arrays: _Arrays, features: tuple[str, ...] | None, edge_features: tuple[str, ...] | None
) -> dict[str, np.ndarray]:
    """Converts the arrays of a TUDataset to the general layout."""
    graph = _checked("graph_indicator", arrays, (len(arrays["graph_indicator"].ravel()),), "iu")
    num_edges = _edges(arrays).shape[1]
    as_they_are = (*("edges", "edge_index", "names", "directed", "split"), *ARRAYS, *_MEMBERS)
    found = {name: arrays[name] for name in as_they_are if name in arrays}
    found["graph"] = graph
    for what, rows, known in (("node", len(graph), features), ("edge", num_edges, edge_features)):
        labels = _floats(arrays, (f"{what}_labels",), 2, rows=rows)
        attributes = _floats(arrays, (f"{what}_attributes",), 2, rows=rows)
        columns = columns_of(what, attributes, labels, known=known, place=lambda name, i: f"{name}[{i}]", rows=rows)
        stem = "" if what == "node" else "edge_"
        found[f"{stem}features"] = columns.values
        found[f"{stem}feature_names"] = np.array(columns.names, dtype=np.str_)
    for name, here in (("graph_labels", "labels"), ("graph_attributes", "targets")):
        if name in arrays:
            found[here] = arrays[name]
    return found


def _dense(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays, with sparse features, if any, as a dense matrix."""
    if "x_indptr" not in arrays:
        return arrays
    if absent := [name for name in ("x_indices", "x_data") if name not in arrays]:
        raise ValueError(f"has x_indptr but no {absent[0]}; expected all of a sparse matrix")
    starts, columns, data = (arrays[name] for name in ("x_indptr", "x_indices", "x_data"))
    kinds = ((starts, "iu"), (columns, "iu"), (data, "biuf"))
    if any(array.ndim != 1 or array.dtype.kind not in kind for array, kind in kinds):
        got = ", ".join(f"{array.dtype} {array.shape}" for array in (starts, columns, data))
        raise ValueError(f"x_indptr, x_indices and x_data are {got}; expected integers, integers and numbers in a row")
    rows = len(starts) - 1
    is_shaped = columns.shape == data.shape and rows >= 1
    if not is_shaped or starts[0] != 0 or starts[-1] != len(columns) or (np.diff(starts) < 0).any():
        raise ValueError(f"x_indptr does not rise from 0 to the {len(columns)} entries of x_indices and x_data")
    width = int(columns.max()) + 1 if len(columns) else 0
    if "x_shape" in arrays:
        width = max(width, int(arrays["x_shape"].prod()) // rows)
    if len(columns) and int(columns.min()) < 0:
        raise ValueError(f"x_indices has {columns.min()}; expected numbers from 0 on")
    check_expansion(f"features ({rows:,}, {width:,})", 4 * rows * width, 12 * len(data), "leave rare columns out")
    dense = np.zeros((rows, width), np.float32)
    np.add.at(dense, (np.repeat(np.arange(rows), np.diff(starts)), columns), data)
    return {**arrays, "features": dense}


def _edges(arrays: _Arrays) -> np.ndarray:
    refuse_twice(arrays, ("edge_index", "edges"))
    for name, axis in (("edge_index", 0), ("edges", 1)):
        if name in arrays:
            found = arrays[name]
            if found.ndim != 2 or found.shape[axis] != 2 or found.dtype.kind not in "iu":
                expected = "(2, E)" if axis == 0 else "(E, 2)"
                raise ValueError(f"{name} is {found.dtype} {found.shape}; expected integers {expected}")
            return found if axis == 0 else found.T
    raise no_array("'edge_index' or 'edges'", arrays, _GENERAL)


def _num_nodes(arrays: _Arrays, features: np.ndarray | None) -> int:
    if features is not None:
        return len(features)
    if "graph" in arrays:
        return len(arrays["graph"])
    if "num_nodes" in arrays:
        count = int(_checked("num_nodes", arrays, (), "iu"))
        check_counted("num_nodes", count, "give them features", max(COUNTED, EXPANSION * _edges(arrays).shape[1]))
        if count < 1:
            raise ValueError(f"num_nodes is {count}; expected at least one")
        return count
    raise ValueError("has no 'features' and no 'num_nodes'; give one of them")


def _answers(arrays: _Arrays, examples: int, *, of_nodes: bool) -> dict[str, Any]:
    """Labels or targets, their names, and the split."""
    found: dict[str, Any] = {}
    named = next((name for name in ("labels", "y") if name in arrays), None)
    if named is not None and "targets" in arrays:
        raise ValueError(f"has {named} and targets; a run predicts one of them: leave the other out")
    if named is not None:
        labels, classes = _labels(named, arrays, examples, may_miss=of_nodes)
        found = {"node_labels" if of_nodes else "labels": labels, "classes": classes}
    elif "targets" in arrays:
        targets = _targets(arrays, examples, of_nodes=of_nodes)
        names = _texts("target_names", arrays, targets.shape[1]) or names_of_targets(targets.shape[1])
        found = {"node_targets" if of_nodes else "targets": targets, "target_names": names}
    return found | ({"marks": _marks(arrays, examples)} if found else {})


def _targets(arrays: _Arrays, examples: int, *, of_nodes: bool) -> np.ndarray:
    """Numbers of graphs or of nodes, float64 `(examples, T)`; of nodes NaN where there is none."""
    came = arrays["targets"]
    if of_nodes and came.ndim in (1, 2) and len(came) == 1 < examples:
        raise ValueError(
            f"targets is {came.dtype} {came.shape}; expected ({examples}, T), as those of a file without the array "
            "graph are of nodes: give graph, 0 for every node, where they are of the graph"
        )
    targets = _floats(arrays, ("targets",), 2, rows=examples)
    assert targets is not None
    if targets.shape[1] == 0:
        raise ValueError(f"targets is {came.dtype} {came.shape}; expected at least one number")
    may_miss = of_nodes & np.isnan(targets)
    for i, c in np.argwhere(~((np.abs(targets) <= LARGEST) | may_miss))[:1].tolist():
        expected = f"{FINITE}, or NaN where it is not known" if of_nodes else FINITE
        raise ValueError(f"targets[{i}, {c}] is {targets[i, c]:g}; expected {expected}")
    return targets


def _labels(named: str, arrays: _Arrays, n: int, *, may_miss: bool) -> tuple[np.ndarray, tuple[str, ...]]:
    labels = _checked(named, arrays, (n,), "iu", "U")
    is_missing = (labels == "") if labels.dtype.kind == "U" else (labels == -1)
    if labels.dtype.kind == "U" and is_missing.any() and not may_miss:
        at = int(is_missing.argmax())
        raise ValueError(f"{named}[{at}] is empty; name the class of each graph, or leave the graph out")
    is_missing &= may_miss
    if "classes" not in arrays or labels.dtype.kind == "U":
        numbers, classes = ClassNames(None).number([str(label) for label in labels[~is_missing].tolist()])
    else:
        classes, numbers = tuple(map(str, arrays["classes"].ravel())), labels[~is_missing].tolist()
        for i in np.flatnonzero(~is_missing & ((labels < 0) | (labels >= len(classes))))[:1].tolist():
            raise ValueError(f"{named}[{i}] is {labels[i]}, but there are {len(classes)} classes")
    found = np.full(n, -1, np.int64)
    found[~is_missing] = numbers
    return found, classes


def _marks(arrays: _Arrays, n: int) -> SplitMarks:
    marks, listed = marks_of_arrays(arrays, n), [name for name in _MEMBERS if name in arrays]
    if marks.given is not None and listed:
        raise ValueError(f"has split and {listed[0]}, which say the same; keep one")
    if marks.given is not None:
        return marks
    found = np.full(n, -1, np.int64)
    words = split_words(lambda word: f"{word}_idx" in arrays)
    for split, word in words.items():
        name, members = f"{word}_idx", arrays[f"{word}_idx"]
        if members.ndim != 1 or members.dtype.kind not in "iu" or (members < 0).any() or (members >= n).any():
            raise ValueError(f"{name} is {members.dtype} {members.shape}; expected numbers from 0 to {n - 1}")
        for i in np.flatnonzero(found[members] >= 0)[:1].tolist():
            raise ValueError(f"{name}[{i}] is {members[i]}, which is in another split too")
        found[members] = SPLITS.index(split)
    return replace(marks, given=torch.from_numpy(found)) if words else marks


def _floats(arrays: _Arrays, names: tuple[str, ...], ndim: int, rows: int | None = None) -> np.ndarray | None:
    """The first array of these names as float64 with `ndim` axes; a missing last axis has one entry."""
    named = next((name for name in names if name in arrays), None)
    if named is None:
        return None
    found = arrays[named]
    if ndim == 2 and found.ndim == 1:
        found = found[:, None]
    if found.dtype.kind not in "biuf" or found.ndim != ndim or (rows is not None and len(found) != rows):
        expected = "(" + ", ".join(["rows" if rows is None else str(rows), "columns"][:ndim]) + ")"
        raise ValueError(f"{named} is {arrays[named].dtype} {arrays[named].shape}; expected numbers {expected}")
    return found.astype(np.float64)


def _checked(name: str, arrays: _Arrays, shape: tuple[int, ...], *kinds: str) -> np.ndarray:
    found = arrays[name]
    if found.shape != shape or not any(found.dtype.kind in kind for kind in kinds):
        words = " or ".join({"iu": "integers", "U": "texts", "b": "bool"}[kind] for kind in kinds)
        raise ValueError(f"{name} is {found.dtype} {found.shape}; expected {words} {shape}")
    return found


def _texts(name: str, arrays: _Arrays, count: int) -> list[str] | None:
    return list(map(str, _checked(name, arrays, (count,), "U", "iu").tolist())) if name in arrays else None


def _names(what: str, arrays: _Arrays, count: int, known: tuple[str, ...] | None) -> tuple[str, ...]:
    """Names of `count` columns; those that a model knows must be equal."""
    own = _texts(f"{what}_names", arrays, count)
    check_names_differ(f"{what.replace('_', ' ')}s", tuple(own or ()))
    if known is None:
        return tuple(own) if own is not None else tuple(f"{what}_{c}" for c in range(count))
    if count != len(known) or (own is not None and tuple(own) != known):
        raise ValueError(
            f"has {count} {what}s {', '.join((own or [])[:6])}; the model knows {len(known)}: {', '.join(known[:6])}"
        )
    return known
