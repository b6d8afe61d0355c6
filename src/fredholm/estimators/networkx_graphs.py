"""Graphs of networkx as arrays: attributes of nodes and edges become features."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from fredholm.tasks.files.terminal_text import first_few
from fredholm.tasks.graphs import GraphArrays
from fredholm.tasks.graphs.one_hot import Columns, refuse_like_names, words_as_columns

WEIGHT, POS = "weight", "pos"
"""Attributes that are no features: the weight of an edge, and the position of a node."""


@final
class NetworkxGraphs(NamedTuple):
    """Graphs of networkx as arrays, and the names of their features."""

    graphs: list[GraphArrays]
    features: tuple[str, ...]
    edge_features: tuple[str, ...]


def is_of_networkx(graph: Any) -> bool:
    """Whether a graph has the interface of `networkx.Graph`."""
    return all(hasattr(graph, name) for name in ("nodes", "edges", "adj", "is_directed"))


def arrays_of_networkx(graphs: Sequence[Any], known: tuple[Sequence[str], Sequence[str]] | None) -> NetworkxGraphs:
    """Reads graphs of networkx.

    Attributes are sorted by name. Numbers and truth values are features as they are, sequences of k numbers are k
    features `name_0` and so on, and words are one-hot features `name=word`. An edge without direction is taken both
    ways. The attribute `weight` of edges is their weight, and `pos` of nodes is their position.

    Args:
        graphs: instances of `networkx.Graph`, `DiGraph`, `MultiGraph` or `MultiDiGraph`.
        known: features of nodes and of edges that a model knows, whose words are then taken; None: there is no model.

    Raises:
        ValueError: a graph has no nodes, not all nodes or edges have the same attributes, an attribute is of another
            kind, features are not the known ones, and what `words_as_columns` refuses.
    """
    nodes = [list(graph.nodes(data=True)) for graph in graphs]
    edges = [_edges_of(graph) for graph in graphs]
    for i, own in enumerate(nodes):
        if not own:
            raise ValueError(f"graph {i} of X has no nodes; expected at least one")
    of_nodes = [(f"graph {i} of X, node {name!r}", row) for i, own in enumerate(nodes) for name, row in own]
    of_edges = [(f"graph {i} of X, edge {a!r}, {b!r}", row) for i, own in enumerate(edges) for a, b, row in own]
    features, pos = _features(of_nodes, POS, None if known is None else known[0])
    edge_features, weights = _features(of_edges, WEIGHT, None if known is None else known[1])
    for what, own, expected in zip(("nodes", "edges"), (features, edge_features), known or (), strict=False):
        if own.names != tuple(expected):
            got, wanted = (first_few([*map(repr, names)]) or "none" for names in (own.names, expected))
            raise ValueError(f"X: the features of {what} are {got}; the model knows {wanted}")
    if weights is not None and weights.shape[1] != 1:
        raise ValueError(f"{of_edges[0][0]}: {WEIGHT} has {weights.shape[1]} numbers; expected one")
    found, node, edge = list[GraphArrays](), 0, 0
    for own, joined in zip(nodes, edges, strict=True):
        number = {name: i for i, (name, _) in enumerate(own)}
        rows, of_rows = slice(node, node + len(own)), slice(edge, edge + len(joined))
        ends = np.array([[number[a], number[b]] for a, b, _ in joined], np.int64).reshape(-1, 2).T
        found.append(
            GraphArrays(
                len(own),
                ends,
                features.values[rows] if features.names else None,
                edge_features.values[of_rows] if edge_features.names else None,
                None if weights is None else weights[of_rows],
                None if pos is None else pos[rows],
            )
        )
        node, edge = rows.stop, of_rows.stop
    return NetworkxGraphs(found, features.names, edge_features.names)


def _edges_of(graph: Any) -> list[tuple[Any, Any, Mapping[str, Any]]]:
    """Both ends and the attributes of each edge, in both directions where edges have none."""
    edges = list(graph.edges(data=True))
    return edges if graph.is_directed() else [*edges, *((b, a, row) for a, b, row in edges if a != b)]


def _features(
    rows: Sequence[tuple[str, Mapping[str, Any]]], apart: str, known: Sequence[str] | None
) -> tuple[Columns, np.ndarray | None]:
    """Attributes of all rows as features, and the attribute `apart`, `(rows, k)`, or None where there is none.

    Args:
        rows: place in the data, for messages, and attributes of each node or edge.
        apart: name of the attribute that is no feature.
        known: names of the features that a model knows; None: there is no model.
    """
    if not rows:
        return Columns(np.zeros((0, len(known or ()))), tuple(known or ())), None
    names = sorted(rows[0][1], key=str)
    for place, row in rows:
        if different := set(row) ^ set(names):
            raise ValueError(
                f"{place}: {sorted(map(str, different))[0]!r} is an attribute of some nodes or edges alone; give it to "
                "all of them, or to none"
            )
    found, alone = dict[str, np.ndarray](), None
    for name in names:
        values = [row[name] for _, row in rows]
        if all(value is None or isinstance(value, str) for value in values):
            refuse_like_names(str(name), map(str, names), "X")
            own = None if known is None else [each for each in known if each.startswith(f"{name}=")]
            more = words_as_columns(
                str(name), [(value or "").strip() for value in values], known=own or None, place=lambda i: rows[i][0]
            )
        else:
            numbers = _numbers(name, values, rows)
            if name == apart:
                alone = numbers
                continue
            is_one = np.ndim(values[0]) == 0
            more = {str(name) if is_one else f"{name}_{k}": numbers[:, k] for k in range(numbers.shape[1])}
        if twice := sorted(found.keys() & more.keys()):
            raise ValueError(f"X: two attributes of nodes or edges give the feature {twice[0]!r}; rename one")
        found |= more
    return Columns(np.stack([*found.values()], 1) if found else np.zeros((len(rows), 0)), tuple(found)), alone


def _numbers(name: Any, values: Sequence[Any], rows: Sequence[tuple[str, Mapping[str, Any]]]) -> np.ndarray:
    """An attribute of numbers, or of sequences of equally many numbers, float64 `(rows, k)`."""
    found = list[np.ndarray]()
    for (place, _), value in zip(rows, values, strict=True):
        try:
            own = np.asarray(value)
        except ValueError:  # sequences of several lengths
            own = np.array(None)
        if own.dtype.kind not in "biuf" or own.ndim > 1 or (found and own.shape != found[0].shape):
            is_word = value is None or isinstance(value, str)
            wanted = "numbers, as elsewhere, or words everywhere" if is_word else "a number, or as many as before"
            raise ValueError(f"{place}: {name!r} is {repr(value)[:60]}; expected {wanted}")
        found.append(own)
    return np.stack(found).astype(np.float64).reshape(len(rows), -1)
