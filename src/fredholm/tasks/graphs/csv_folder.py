"""Graphs in a folder of tables: edges.csv, nodes.csv and, of several graphs, graphs.csv."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np

from fredholm.tasks.files.cells import MISSING, has_commas, is_number, parse_value, without_signs
from fredholm.tasks.files.table_text import first_repeated
from fredholm.tasks.sentences.table import Row, Table, read_table
from fredholm.tasks.splits.split_marks import MARKS, SplitMarks, marks_of_cells
from fredholm.tasks.targets.class_names import ClassNames

from .graph_set import GraphSet
from .listed import Listed
from .one_hot import Columns, refuse_like_names, words_as_columns

EDGES, NODES, GRAPHS = "edges.csv", "nodes.csv", "graphs.csv"
_OF_EDGES = ("source", "target", "weight", "graph")
_OF_NODES = ("id", "graph", "label", "split", "weight")
_OF_GRAPHS = ("graph", "label", *MARKS)
_NEEDED = {
    "source": "the node where an edge begins",
    "target": "the node where it ends",
    "id": "the name of a node",
    "graph": "the graph that a row is of",
}


def is_csv_folder(folder: Path) -> bool:
    """Whether the folder has a table of edges, or one of nodes, beside which `read_csv_folder` misses the edges."""
    return any(_find(folder, name) is not None for name in (EDGES, NODES))


def read_csv_folder(
    folder: Path,
    *,
    is_directed: bool = False,
    features: tuple[str, ...] | None = None,
    edge_features: tuple[str, ...] | None = None,
) -> GraphSet:
    """Read tables with a header; the names of columns below may be in any case.

    - `edges.csv`: `source` and `target`, names of nodes; `weight`; all other columns are features of edges.
    - `nodes.csv`: `id`; `weight`, the weight of the node in means; all other columns are features. Without this file,
      nodes are those that edges join.
    - A column of features holds numbers, or words, which become one-hot features `column=word`; empty cells of words
      are 0 in all of these.
    - One graph: `label` of a node is its class, or empty; or `target`, `target_...` are numbers to predict, all or
      none of them empty; `split`, `group` and `time` beside these: see `marks_of_cells`.
    - Several graphs: a column `graph` in `nodes.csv` names the graph of each node, and one in `edges.csv` that of each
      edge; without the latter, each node has a name of its own. `graphs.csv` has `graph`, the class `label` or the
      numbers `target`, `target_...`, and `split`, `group` and `time` likewise, and no others.

    Args:
        folder: the folder with `edges.csv` or `edges.csv.gz`, and likewise the others.
        is_directed: whether edges have directions, from source to target.
        features: features of nodes to return, in this order; None: all other columns, in the table's order, and words
            in alphabetical order.
        edge_features: likewise for edges.

    Raises:
        ValueError: there are no edges, a table is broken, a column is missing, holds numbers and words, or words of
            which nearly every row has its own, features of two columns have one name, a word or a name is unknown, a
            name is repeated, there are labels and targets, and what `Listed.graphs` refuses. The message names file
            and line.
    """
    edges_file = _find(folder, EDGES)
    if edges_file is None:
        raise ValueError(
            f"{folder}: has {NODES} and no {EDGES}; add it, with the columns source and target, the ids of two nodes "
            "on each line"
        )
    edges = _Cells(read_table(edges_file), _OF_EDGES)
    nodes_file, graphs_file = _find(folder, NODES), _find(folder, GRAPHS)
    nodes = None if nodes_file is None else _nodes(read_table(nodes_file), features)
    graphs = None if graphs_file is None else _Cells(read_table(graphs_file), _OF_GRAPHS)
    return _Tables(edges, nodes, graphs).graphs(is_directed, features, edge_features)


@final
@dataclass(frozen=True)
class _Cells:
    """A table in which columns with usual names are found in any case."""

    table: Table
    usual: tuple[str, ...]
    targets: tuple[str, ...] = ()
    """Columns of numbers to predict."""

    @cached_property
    def columns(self) -> dict[str, str]:
        """The names in the file of the usual columns that it has."""
        found: dict[str, str] = {}
        for name in self.table.names:
            word = name.lower()
            if word in self.usual:
                if word in found:
                    raise ValueError(
                        f"{self.table.path}, line 1: columns {found[word]!r} and {name!r} are one; keep one"
                    )
                found[word] = name
        return found

    @cached_property
    def others(self) -> tuple[str, ...]:
        """All other columns."""
        usual = {*self.columns.values(), *self.targets}
        return tuple(name for name in self.table.names if name not in usual)

    def place(self, i: int) -> str:
        """File and line of row i."""
        return f"{self.table.path}, line {self.table.rows[i].line}"

    def need(self, *words: str) -> None:
        """Raises ValueError unless all these usual columns exist."""
        if absent := [word for word in words if word not in self.columns]:
            raise ValueError(
                f"{self.table.path}, line 1: no column {', '.join(map(repr, absent))}; the columns are "
                f"{', '.join(self.table.names)}; expected {' and '.join(_NEEDED[word] for word in absent)} there"
            )

    def texts(self, word: str) -> list[str]:
        """The cells of a usual column, stripped."""
        column = self.columns[word]
        return [row.cells[column].strip() for row in self.table.rows]

    def names(self, word: str) -> list[str]:
        """The cells of a usual column, stripped; raises ValueError where one is empty."""
        found = self.texts(word)
        for i, text in enumerate(found):
            if not text:
                raise ValueError(f"{self.place(i)}: column {self.columns[word]!r}: is empty; expected a name")
        return found

    def numbers(self, columns: Sequence[str], *, may_miss: bool = False) -> np.ndarray:
        """The numbers of some columns, `(rows, columns)`; with `may_miss`, NaN where a cell is empty."""
        self._check_columns(columns)
        rows = [self._row(row, columns, i, may_miss) for i, row in enumerate(self.table.rows)]
        return np.array(rows, np.float64).reshape(len(rows), len(columns))

    def _check_columns(self, columns: Sequence[str]) -> None:
        known = set(self.table.names)
        if absent := [name for name in columns if name not in known]:
            raise ValueError(
                f"{self.table.path}, line 1: no column {', '.join(map(repr, absent[:6]))}; the columns are "
                f"{', '.join(self.table.names[:20])}"
            )

    def _row(self, row: Row, columns: Sequence[str], i: int, may_miss: bool) -> list[float]:
        found = []
        for name in columns:
            try:
                value = parse_value(row.cells[name]) if may_miss else parse_value(row.cells[name], _OF_WORDS)
            except ValueError as error:
                raise ValueError(f"{self.place(i)}: column {name!r}: {error}") from error
            if value != value and not may_miss:
                raise ValueError(f"{self.place(i)}: column {name!r}: is missing; expected a finite number")
            found.append(value)
        return found

    def features(self, known: Sequence[str] | None) -> Columns:
        """Columns of numbers as they are, and columns of words one-hot; all, or those that a model knows."""
        columns = self.others if known is None else self._columns_of(known)
        self._check_columns(columns)
        is_words = {name: self._is_words(name) if known is None else name not in known for name in columns}
        for name in columns:
            if is_words[name]:
                refuse_like_names(name, columns, f"{self.table.path}, line 1")
        of_numbers = [name for name in columns if not is_words[name]]
        numbers = dict(zip(of_numbers, self.numbers(of_numbers).T, strict=True))
        found = dict[str, np.ndarray]()
        for name in columns:
            if is_words[name]:
                words = [row.cells[name].strip() for row in self.table.rows]
                found |= words_as_columns(name, words, known=known, place=self.place)
            else:
                found[name] = numbers[name]
        names = tuple(found) if known is None else tuple(known)
        return Columns(
            np.stack([found[name] for name in names], 1) if names else np.zeros((len(self.table.rows), 0)), names
        )

    def _columns_of(self, known: Sequence[str]) -> tuple[str, ...]:
        """The columns of the table that known features come from, `name` or `name=word`."""
        own = set(self.table.names)
        found = dict[str, None]()
        for name in known:
            stems = [name, *(name[:i] for i, letter in enumerate(name) if letter == "=")]
            found[next((stem for stem in stems if stem in own), stems[-1])] = None
        return tuple(found)

    def _is_words(self, column: str) -> bool:
        """Whether a column holds words, and no number."""
        texts = {row.cells[column].strip() for row in self.table.rows}
        if any(is_number(without_signs(text)) or has_commas(text) for text in texts if text.lower() not in MISSING):
            return False
        return any(text.lower() not in MISSING for text in texts)

    def weights(self) -> np.ndarray | None:
        """The column `weight`, if there is one."""
        return self.numbers([self.columns["weight"]])[:, 0] if "weight" in self.columns else None

    def marks(self) -> SplitMarks:
        """Splits, groups and times, from the columns of `MARKS`."""
        return marks_of_cells(
            {word: self.texts(word) for word in MARKS if word in self.columns},
            lambda i, word: f"{self.place(i)}: column {self.columns[word]!r}",
        )

    def labels(self) -> tuple[np.ndarray | None, tuple[str, ...]]:
        """The column `label` as numbers, -1 where empty, and the classes; None where there is no such column."""
        if "label" not in self.columns:
            return None, ()
        words = self.texts("label")
        numbers, classes = ClassNames(None).number([word for word in words if word])
        labels = np.full(len(words), -1, np.int64)
        labels[[i for i, word in enumerate(words) if word]] = numbers
        return labels, classes


def _nodes(table: Table, known: tuple[str, ...] | None) -> _Cells:
    """A table of nodes; columns of splits are read only beside a label or targets.

    Args:
        table: the table.
        known: features that a model knows, which are never taken for targets, whatever their names.
    """
    words = ((name, name.lower()) for name in table.names if name not in (known or ()))
    targets = tuple(name for name, word in words if word == "target" or word.startswith("target_"))
    found = _Cells(table, _OF_NODES, targets)
    return _Cells(table, (*_OF_NODES, *MARKS), targets) if "label" in found.columns or targets else found


_OF_WORDS = "make all cells of the column words"
"""Advice for messages about a feature that is no number, beside numbers."""


@final
@dataclass(frozen=True)
class _Tables:
    """All tables of a folder."""

    edges: _Cells
    nodes: _Cells | None
    list_of_graphs: _Cells | None

    def graphs(
        self, is_directed: bool, known: tuple[str, ...] | None, known_of_edges: tuple[str, ...] | None
    ) -> GraphSet:
        """The graphs of the tables; see `read_csv_folder`."""
        edges, nodes = self.edges, self.nodes
        edges.need("source", "target")
        ids, of_node = self._nodes()
        graph_names, graph = self._graphs(of_node)
        if known and nodes is None:
            raise ValueError(f"{edges.table.path.parent}: has no {NODES}; expected one with {', '.join(known[:20])}")
        features = Columns(np.zeros((len(ids), 0)), ()) if nodes is None else nodes.features(known)
        of_edges = edges.features(known_of_edges)
        facts = self._of_nodes() if self.list_of_graphs is None else self._of_graphs(self.list_of_graphs)
        return Listed(
            graph=graph,
            names=graph_names,
            features=features.values,
            feature_names=features.names,
            edges=self._edges(ids, of_node),
            node_place=(lambda i: ids[i]) if nodes is None else nodes.place,
            edge_place=edges.place,
            node_name=lambda i: repr(ids[i]),
            edge_weights=edges.weights(),
            edge_features=of_edges.values if of_edges.names else None,
            edge_feature_names=of_edges.names,
            weights=None if nodes is None else nodes.weights(),
            node_names=ids,
            is_directed=is_directed,
            **facts,
        ).graphs()

    def _nodes(self) -> tuple[list[str], list[str]]:
        """Name and graph of each node; the graph is "" where there is one."""
        nodes, edges = self.nodes, self.edges
        if nodes is None:
            if self.list_of_graphs is not None or "graph" in edges.columns:
                raise ValueError(
                    f"{edges.table.path.parent}: has no {NODES}; expected one with the columns graph and id"
                )
            pairs = zip(edges.names("source"), edges.names("target"), strict=True)
            found = list(dict.fromkeys(name for pair in pairs for name in pair))
            return found, [""] * len(found)
        nodes.need("id", *(["graph"] if self.list_of_graphs is not None or "graph" in edges.columns else []))
        ids = nodes.names("id")
        of_node = nodes.names("graph") if "graph" in nodes.columns else [""] * len(ids)
        seen: dict[tuple[str, str], int] = {}
        for i, key in enumerate(zip(of_node, ids, strict=True)):
            if key in seen:
                raise ValueError(f"{nodes.place(i)}: node {ids[i]!r} is there twice, first in {nodes.place(seen[key])}")
            seen[key] = i
        return ids, of_node

    def _graphs(self, of_node: list[str]) -> tuple[list[str], np.ndarray]:
        """The names of the graphs, and the index of each node's graph."""
        listed, nodes = self.list_of_graphs, self.nodes
        if listed is None:
            names = list(dict.fromkeys(of_node))
        else:
            listed.need("graph")
            names = listed.names("graph")
            if (twice := first_repeated(names)) is not None:
                raise ValueError(f"{listed.place(twice)}: graph {names[twice]!r} is there twice")
            with_nodes = set(of_node)
            for i, name in enumerate(names):
                if name not in with_nodes:
                    raise ValueError(f"{listed.place(i)}: graph {name!r} has no nodes; expected at least one")
        number = {name: i for i, name in enumerate(names)}
        for i, name in enumerate(of_node):
            if name not in number:
                assert nodes is not None
                raise ValueError(f"{nodes.place(i)}: graph {name!r} is not in {GRAPHS}")
        folder = self.edges.table.path.parent.name
        return [name or folder for name in names], np.array([number[name] for name in of_node], np.int64)

    def _edges(self, ids: list[str], of_node: list[str]) -> np.ndarray:
        """Node indices of the ends of each edge, `(2, E)`."""
        edges, nodes = self.edges, self.nodes
        ends = edges.names("source"), edges.names("target")
        has_graph = "graph" in edges.columns
        of_edge = edges.names("graph") if has_graph else [""] * len(ends[0])
        place: dict[tuple[str, str], int] = {}
        for i, (name, graph) in enumerate(zip(ids, of_node, strict=True)):
            key = (graph if has_graph else "", name)
            if key in place and nodes is not None:
                raise ValueError(
                    f"{nodes.place(i)}: node {name!r} is in two graphs, also in {nodes.place(place[key])}; "
                    f"give {EDGES} a column 'graph', or nodes names of their own"
                )
            place[key] = i
        for k in range(len(of_edge)):
            for end in (ends[0][k], ends[1][k]):
                if (of_edge[k], end) not in place:
                    where = f" of graph {of_edge[k]!r}" if has_graph else ""
                    raise ValueError(f"{edges.place(k)}: there is no node {end!r}{where} in {NODES}")
        return np.array(
            [[place[graph, end] for graph, end in zip(of_edge, side, strict=True)] for side in ends], np.int64
        )

    def _of_nodes(self) -> dict[str, Any]:
        """Labels or targets, and the marks, of one graph's nodes, or nothing."""
        nodes = self.nodes
        if nodes is None or "graph" in nodes.columns:
            return {}
        labels, classes = nodes.labels()
        if labels is not None and nodes.targets:
            raise ValueError(f"{nodes.table.path}, line 1: has the columns 'label' and {nodes.targets[0]!r}; keep one")
        if labels is not None:
            return {"node_labels": labels, "classes": classes, "marks": nodes.marks()}
        if not nodes.targets:
            return {}
        targets = nodes.numbers(nodes.targets, may_miss=True)
        return {"node_targets": targets, "target_names": nodes.targets, "marks": nodes.marks()}

    def _of_graphs(self, graphs: _Cells) -> dict[str, Any]:
        """Labels or targets, and the marks, of the graphs."""
        if self.nodes is not None and ("label" in self.nodes.columns or self.nodes.targets):
            column = self.nodes.columns["label"] if "label" in self.nodes.columns else self.nodes.targets[0]
            raise ValueError(
                f"{self.nodes.table.path}, line 1: has a column {column!r} beside {GRAPHS}; labels and targets are "
                "either of nodes or of graphs: rename the column if it is a feature"
            )
        labels, classes = graphs.labels()
        targets = tuple(name for name in graphs.others if name.lower().startswith("target"))
        if unread := [name for name in graphs.others if name not in targets]:
            raise ValueError(
                f"{graphs.table.path}, line 1: nothing reads the column {unread[0]!r}; expected "
                f"{', '.join(_OF_GRAPHS)}, target and target_...: name it so, or leave it out"
            )
        if labels is not None and targets:
            raise ValueError(f"{graphs.table.path}, line 1: has the columns 'label' and {targets[0]!r}; keep one")
        for i in [] if labels is None else np.flatnonzero(labels < 0)[:1].tolist():
            raise ValueError(f"{graphs.place(i)}: column {graphs.columns['label']!r}: is empty; expected a class")
        found = {"marks": graphs.marks(), "labels": labels, "classes": classes}
        return found | ({"targets": graphs.numbers(targets), "target_names": targets} if targets else {})


def _find(folder: Path, name: str) -> Path | None:
    return next((file for file in (folder / name, folder / f"{name}.gz") if file.is_file()), None)
