"""Tidying lists of edges: loops, duplicates and directions."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np

from fredholm.tasks.files.cells import FINITE, LARGEST


@final
@dataclass(frozen=True)
class Edges:
    """Edges without loops and duplicates, sorted by source and target.

    `index` is int64 `(2, E)`, sources over targets; `weights` float32 `(E,)` and `features` `(E, c)` are of the
    same edges. `notes` report the edges of the list that were dropped, merged or mirrored.
    """

    index: np.ndarray
    weights: np.ndarray | None
    features: np.ndarray | None
    notes: tuple[str, ...]


def tidy_edges(
    index: np.ndarray,
    weights: np.ndarray | None,
    features: np.ndarray | None,
    *,
    graph: np.ndarray,
    is_directed: bool,
    place: Callable[[int], str],
    node_name: Callable[[int], str] = str,
) -> Edges:
    """The edges of a list in the form that a domain takes.

    An edge from a node to itself is dropped: the operator's term W u(x) stands for it. An edge that is listed twice
    counts once. Without directions, each edge is taken both ways, however often it is listed.

    Args:
        index: integers `(2, E)`, sources over targets, counted from 0.
        weights: `(E,)`, finite and >= 0.
        features: `(E, c)`, finite.
        graph: the graph of each node, `(nodes,)`.
        is_directed: whether edges have directions.
        place: maps an edge to its place in the data, for messages.
        node_name: maps a node to its name in messages.

    Raises:
        ValueError: an edge has an end that is no node or is in two graphs, a weight or feature is out of range, or
            duplicates of an edge have different weights or features. The message begins with the edge's place.
    """
    index = index.astype(np.int64)
    _check_ends(index, graph, place, node_name)
    _check_values(weights, features, place)
    kept = np.flatnonzero(index[0] != index[1])
    loops = index.shape[1] - len(kept)
    ends = index[:, kept]
    pairs = ends if is_directed else np.sort(ends, axis=0)
    keys = pairs[0] * len(graph) + pairs[1]
    _, chosen, group = np.unique(keys, return_index=True, return_inverse=True)
    _check_same(weights, features, kept, chosen[group], place, is_directed=is_directed)
    num_ordered = len(np.unique(ends[0] * len(graph) + ends[1]))
    ends, chosen = pairs[:, chosen], kept[chosen]
    one_way = 0
    if not is_directed:
        one_way = 2 * len(chosen) - num_ordered
        ends, chosen = np.concatenate([ends, ends[::-1]], axis=1), np.concatenate([chosen, chosen])
    order = np.lexsort((ends[1], ends[0]))
    ends, chosen = ends[:, order], chosen[order]
    changes = (
        (loops, "from a node to itself: dropped"),
        (len(kept) - num_ordered, "listed again: counted once"),
        (one_way, "listed one way: taken both ways"),
    )
    return Edges(
        np.ascontiguousarray(ends),
        None if weights is None else weights[chosen].astype(np.float32),
        None if features is None else features[chosen],
        tuple(f"{count} edge{'s' if count > 1 else ''} {what}" for count, what in changes if count),
    )


def _check_ends(index: np.ndarray, graph: np.ndarray, place: Callable[[int], str], name: Callable[[int], str]) -> None:
    is_off = (index < 0) | (index >= len(graph))
    for i in np.flatnonzero(is_off.any(0))[:1].tolist():
        node = int(index[:, i][is_off[:, i]][0])
        raise ValueError(f"{place(i)}: there is no node {name(node)}; expected {name(0)} to {name(len(graph) - 1)}")
    for i in np.flatnonzero(graph[index[0]] != graph[index[1]])[:1].tolist():
        source, target = map(name, index[:, i].tolist())
        raise ValueError(f"{place(i)}: nodes {source} and {target} are of two graphs; an edge joins nodes of one")


def _check_values(weights: np.ndarray | None, features: np.ndarray | None, place: Callable[[int], str]) -> None:
    if weights is not None:
        for i in np.flatnonzero(~((weights >= 0) & (weights <= LARGEST)))[:1].tolist():
            raise ValueError(
                f"{place(i)}: weight {weights[i]:g}; expected a finite number of at least 0 and at most {LARGEST:.2g}"
            )
    if features is not None:
        for i, c in np.argwhere(~(np.abs(features) <= LARGEST))[:1].tolist():
            raise ValueError(f"{place(i)}: feature {c + 1} is {features[i, c]:g}; expected {FINITE}")


def _check_same(
    weights: np.ndarray | None,
    features: np.ndarray | None,
    kept: np.ndarray,
    first: np.ndarray,
    place: Callable[[int], str],
    *,
    is_directed: bool,
) -> None:
    """Raises ValueError where an edge is not like the first one with its ends, at `kept[first]`."""
    for name, values in (("weight", weights), ("features", features)):
        if values is None:
            continue
        rows = values[kept].reshape(len(kept), math.prod(values.shape[1:]))
        for i in np.flatnonzero((rows != rows[first]).any(1))[:1].tolist():
            hint = "" if is_directed else ", or take edges as directed where directions differ"
            this, other = place(int(kept[i])), place(int(kept[first[i]]))
            what = name.removesuffix("s")
            raise ValueError(f"{this}: has another {what} than the same edge, {other}; give one{hint}")
