"""Small folders of graphs, written by hand."""

from pathlib import Path

import numpy as np

from fredholm.tasks.graphs import GraphSet
from fredholm.tasks.graphs.listed import Listed

PATHS = {
    "edges.csv": "source,target,weight,bond\nann,bob,1,0.5\nbob,cid,2,1.5\ncid,ann,0.5,2.5\ndan,bob,1,3.5\n",
    "nodes.csv": "id,label,split,weight,age,pay\nann,red,train,1,30,1.5\nbob,blue,val,2,40,2.5\ncid,red,test,1,50,3.5\n"
    "dan,,,0,60,4.5\n",
}
"""One graph of four people, with every optional column."""
SEVERAL = {
    "edges.csv": "graph,source,target\ntri,1,2\ntri,2,3\ntri,3,1\nline,1,2\nline,2,3\n",
    "nodes.csv": "graph,id,charge\ntri,1,0\ntri,2,1\nline,1,5\ntri,3,2\nline,2,6\nline,3,7\n",
    "graphs.csv": "graph,label,split\nline,open,train\ntri,closed,test\n",
}
"""A triangle and a line whose nodes are interleaved."""
TU = {
    "A": "1, 2\n2, 1\n2, 3\n3, 2\n4, 5\n5, 4\n",
    "graph_indicator": "1\n1\n1\n2\n2\n",
    "graph_labels": "1\n-1\n",
    "node_labels": "0\n2\n0\n2\n5\n",
    "node_attributes": "0.5, 1\n1.5, 2\n2.5, 3\n3.5, 4\n4.5, 5\n",
    "edge_labels": "0\n0\n1\n1\n0\n0\n",
}
"""Two lines, of three and of two nodes."""


def write_csv(folder: Path, **changed: str) -> Path:
    """Writes the tables of `PATHS`, with `edges`, `nodes` and `graphs` replaced where given; "" leaves one out."""
    return write(folder, PATHS | {f"{name}.csv": text for name, text in changed.items()})


def write_several(folder: Path, **changed: str) -> Path:
    """Writes the tables of `SEVERAL` in the same way."""
    return write(folder, SEVERAL | {f"{name}.csv": text for name, text in changed.items()})


def write_tu(folder: Path, **changed: str) -> Path:
    """Writes the files of `TU` in the same way; they are named by the ends of their names."""
    return write(folder, {f"TOY_{name}.txt": text for name, text in (TU | changed).items()})


def write(folder: Path, files: dict[str, str]) -> Path:
    """A new folder with these files; files without text are left out."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        if text:
            (folder / name).write_text(text)
    return folder


def listed(edges: list[tuple[int, int]], nodes: int, *, is_directed: bool = False) -> GraphSet:
    """One graph whose nodes have their number as feature."""
    return Listed(
        graph=np.zeros(nodes, np.int64),
        names=["g"],
        features=np.arange(nodes, dtype=np.float64)[:, None],
        feature_names=["number"],
        edges=np.array(edges, np.int64).reshape(-1, 2).T,
        node_place=lambda i: f"node {i}",
        edge_place=lambda i: f"edge {i}",
        node_names=[str(i) for i in range(nodes)],
        is_directed=is_directed,
    ).graphs()


def rings(folder: Path, *, count: int = 24, targets: bool = False, split: bool = False, one_way: bool = False) -> Path:
    """Rings and lines of 4 to 7 nodes, with the class ring or line, or with the number of nodes as target."""
    edges, nodes, graphs = ["graph,source,target"], ["graph,id,heat"], [f"graph,{'target' if targets else 'label'}"]
    for i in range(count):
        size, is_ring = 4 + i % 4, i % 2 == 0
        ends = [(k, k + 1) for k in range(size - 1)] + ([(size - 1, 0)] if is_ring else [])
        edges += [f"g{i},{a},{b}" for a, b in _listed_ends(ends, one_way)]
        nodes += [f"g{i},{k},{(i * 7 + k * 3) % 5}" for k in range(size)]
        graphs.append(f"g{i},{size if targets else ('ring' if is_ring else 'line')}")
    if split:
        words = ["train", "train", "valid", "test"]
        graphs = [f"{line},{'split' if i == 0 else words[i % 4]}" for i, line in enumerate(graphs)]
    tables = {"edges.csv": edges, "nodes.csv": nodes, "graphs.csv": graphs}
    return write(folder, {name: "\n".join(lines) for name, lines in tables.items()})


def two_groups(
    folder: Path, *, size: int = 15, split: bool = False, one_way: bool = False, targets: bool = False
) -> Path:
    """One graph of two rings with chords, joined by one edge; nodes have the class of their ring, and noisy features.

    With `targets`, nodes have a number instead of a class, about 10 in one ring and 20 in the other.
    """
    drawn = np.random.default_rng(0)
    ends, nodes = [(0, size)], [f"id,{'target' if targets else 'label'}{',split' if split else ''},x,y"]
    for group in range(2):
        for k in range(size):
            node = group * size + k
            ends += [(node, group * size + (k + step) % size) for step in (1, 2, 5)]
            word = f",{('train', 'valid', 'test')[k % 3]}" if split else ""
            x, y = drawn.normal(size=2) + np.array([group, 0])
            found = f"{10 + 10 * group + k % 4 / 10}" if targets else "left" if group == 0 else "right"
            nodes.append(f"n{node},{found}{word},{x:.4f},{y:.4f}")
    edges = ["source,target", *(f"n{a},n{b}" for a, b in _listed_ends(ends, one_way))]
    return write(folder, {"edges.csv": "\n".join(edges), "nodes.csv": "\n".join(nodes)})


def _listed_ends(ends: list[tuple[int, int]], one_way: bool) -> list[tuple[int, int]]:
    return ends if one_way else [pair for a, b in ends for pair in ((a, b), (b, a))]
