"""Graphs in a folder of the TUDataset collection (Morris et al., 2020)."""

import functools
from pathlib import Path

import numpy as np

from fredholm.tasks.files.cells import FINITE, LARGEST, parse_number
from fredholm.tasks.targets.class_names import ClassNames
from fredholm.tasks.text import read_text

from .graph_set import GraphSet
from .listed import Listed
from .one_hot import check_labels, columns_of, label_text

_END = "_graph_indicator.txt"


def tu_name(folder: Path) -> str | None:
    """The name that the files of the folder begin with, such as MUTAG; None: it is no folder of that collection."""
    found = sorted(file.name.removesuffix(_END) for file in folder.glob(f"*{_END}"))
    return found[0] if len(found) == 1 else None


def read_tu_folder(
    folder: Path,
    *,
    is_directed: bool = False,
    features: tuple[str, ...] | None = None,
    edge_features: tuple[str, ...] | None = None,
) -> GraphSet:
    """Read `NAME_A.txt`, `NAME_graph_indicator.txt` and the optional files beside them.

    Line k of `NAME_A.txt` is an edge, two numbers of nodes from 1 on; line i of `NAME_graph_indicator.txt` is the graph
    of node i. `NAME_graph_labels.txt` are classes, `NAME_graph_attributes.txt` targets; where both exist,
    classes are read. Nodes have `NAME_node_attributes.txt`, numbers, and `NAME_node_labels.txt`, each label of which
    becomes a feature that is 1 or 0; edges have `NAME_edge_attributes.txt`, `NAME_edge_labels.txt` likewise.

    Args:
        folder: the folder of these files.
        is_directed: whether edges have directions.
        features: names of the node features to read, such as node_label=3; None: all that are there.
        edge_features: likewise of edges.

    Raises:
        ValueError: a file is absent, has another number of lines or is not of numbers, a label is unknown, and what
            `Listed.graphs` refuses. The message names file and line.
    """
    name = tu_name(folder)
    assert name is not None

    def path(what: str) -> Path:
        return folder / f"{name}_{what}.txt"

    def place(what: str, i: int) -> str:
        return f"{path(what)}, line {i + 1}"

    def beside(prefix: str, rows: int) -> tuple[np.ndarray | None, np.ndarray | None]:
        files = path(f"{prefix}_attributes"), path(f"{prefix}_labels")
        attributes, labels = (_read(file, rows) if file.is_file() else None for file in files)
        return attributes, labels

    edges = _read_numbers(path("A"), columns=2)
    graph = _read_numbers(path("graph_indicator"), columns=1)[:, 0] - 1
    num_graphs = int(graph.max()) + 1
    if num_graphs > len(graph):
        i = int(graph.argmax())
        raise ValueError(f"{place('graph_indicator', i)}: graph {num_graphs}, but there are {len(graph)} nodes in all")
    targets, labels = beside("graph", num_graphs)
    if labels is not None:
        if labels.shape[1] != 1:
            raise ValueError(f"{place('graph_labels', 0)}: has {labels.shape[1]} numbers; expected one class a graph")
        check_labels(labels, functools.partial(place, "graph_labels"))
        numbers, classes = ClassNames(None).number([label_text(label) for label in labels[:, 0].tolist()])
        found = {"labels": np.array(numbers), "classes": classes}
    else:
        count = 0 if targets is None else targets.shape[1]
        found = {"targets": targets, "target_names": names_of_targets(count)}
    nodes = columns_of("node", *beside("node", len(graph)), known=features, place=place, rows=len(graph))
    joined = columns_of("edge", *beside("edge", len(edges)), known=edge_features, place=place, rows=len(edges))
    return Listed(
        graph=graph,
        names=[str(i + 1) for i in range(num_graphs)],
        features=nodes.values,
        feature_names=nodes.names,
        edges=edges.T - 1,
        edge_features=joined.values if joined.names else None,
        edge_feature_names=joined.names,
        node_place=lambda i: place("node_attributes", i),
        edge_place=lambda i: place("A", i),
        node_name=lambda i: str(i + 1),
        is_directed=is_directed,
        **found,
    ).graphs()


def names_of_targets(count: int) -> tuple[str, ...]:
    """Default names of targets, for files without names."""
    return ("target",) if count == 1 else tuple(f"target_{i}" for i in range(count))


def _read_numbers(path: Path, columns: int) -> np.ndarray:
    """Whole numbers from 1 on, `(rows, columns)`."""
    found = _read(path, None, columns)
    for i, c in np.argwhere(~((found >= 1) & (found == np.floor(found))))[:1].tolist():
        raise ValueError(f"{path}, line {i + 1}: {found[i, c]:g}; expected whole numbers from 1 on")
    return found.astype(np.int64)


def _read(path: Path, rows: int | None, columns: int | None = None) -> np.ndarray:
    """The numbers of a file, separated by commas or blanks, `(rows, columns)`; an empty last line does not count."""
    lines = read_text(path).rstrip().splitlines()
    try:
        found = np.loadtxt([line.replace(",", " ") for line in lines], ndmin=2, comments=None)
    except ValueError:
        found = np.empty((0, 0))
    if len(found) != len(lines):  # a line is broken, or empty
        found = np.array([_numbers(path, i, line, lines[0]) for i, line in enumerate(lines)])
    for i, c in np.argwhere(~(np.abs(found) <= LARGEST))[:1].tolist():
        raise ValueError(f"{path}, line {i + 1}: number {c + 1} is {found[i, c]:g}; expected {FINITE}")
    if rows is not None and len(found) != rows:
        raise ValueError(f"{path}: has {len(found)} lines; expected {rows}")
    if columns is not None and found.shape[1] != columns:
        raise ValueError(f"{path}, line 1: has {found.shape[1]} numbers; expected {columns}")
    return found


def _numbers(path: Path, i: int, line: str, first: str) -> list[float]:
    words, expected = line.replace(",", " ").split(), len(first.replace(",", " ").split())
    if len(words) != expected:
        raise ValueError(f"{path}, line {i + 1}: has {len(words)} numbers; expected {expected}, as in line 1")
    try:
        return [parse_number(word) for word in words]
    except ValueError as error:
        raise ValueError(f"{path}, line {i + 1}: {line.strip()[:40]!r} are no numbers") from error
