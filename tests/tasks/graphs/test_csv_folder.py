import gzip
from functools import partial
from pathlib import Path

import pytest
import torch

from fredholm.tasks.graphs import open_graphs
from tests.refusals import refused
from tests.tasks.graphs.build import SEVERAL, write_csv, write_several


def test_one_graph_with_every_optional_column(tmp_path: Path) -> None:
    graph = open_graphs(write_csv(tmp_path / "people"))
    assert (len(graph), graph.names, graph.node_names) == (1, ("people",), ("ann", "bob", "cid", "dan"))
    assert graph.feature_names == ("age", "pay")
    assert graph.features.tolist() == [[30, 1.5], [40, 2.5], [50, 3.5], [60, 4.5]]
    assert graph.edge_index.T.tolist() == [[0, 1], [0, 2], [1, 0], [1, 2], [1, 3], [2, 0], [2, 1], [3, 1]]
    assert graph.edge_weights is not None
    assert graph.edge_weights.tolist() == [1.0, 0.5, 1.0, 2.0, 1.0, 0.5, 2.0, 1.0]
    assert graph.edge_feature_names == ("bond",)
    assert graph.edge_features is not None
    assert graph.edge_features[:, 0].tolist() == [0.5, 2.5, 0.5, 1.5, 3.5, 2.5, 1.5, 3.5]
    assert graph.weights is not None
    assert graph.weights.tolist() == [1, 2, 1, 0]
    assert graph.classes == ("blue", "red")
    assert graph.node_labels is not None
    assert graph.node_labels.tolist() == [1, 0, 1, -1]
    assert graph.marks.given is not None
    assert graph.marks.given.tolist() == [0, 1, 2, -1]
    assert graph.notes == ("4 edges listed one way: taken both ways",)
    assert graph.edge_offsets.tolist() == [0, 8]


def test_directed_edges(tmp_path: Path) -> None:
    graph = open_graphs(write_csv(tmp_path), is_directed=True)
    assert graph.edge_index.T.tolist() == [[0, 1], [1, 2], [2, 0], [3, 1]]
    assert graph.is_directed
    assert graph.notes == ()


def test_several_graphs_whose_nodes_are_interleaved(tmp_path: Path) -> None:
    graphs = open_graphs(write_several(tmp_path))
    assert graphs.names == ("line", "tri")
    assert graphs.node_offsets.tolist() == [0, 3, 6]
    assert graphs.features[:, 0].tolist() == [5, 6, 7, 0, 1, 2]
    assert graphs.edge_offsets.tolist() == [0, 4, 10]
    assert graphs.edge_index[:, :4].T.tolist() == [[0, 1], [1, 0], [1, 2], [2, 1]]
    assert graphs.edge_index[:, 4:].T.tolist() == [[0, 1], [0, 2], [1, 0], [1, 2], [2, 0], [2, 1]]
    assert graphs.classes == ("closed", "open")
    assert graphs.labels is not None
    assert graphs.labels.tolist() == [1, 0]
    assert graphs.marks.given is not None
    assert graphs.marks.given.tolist() == [0, 2]
    only = graphs.select(torch.tensor([1]))
    assert (only.names, only.features[:, 0].tolist()) == (("tri",), [0, 1, 2])
    assert torch.equal(only.edge_index, graphs.edge_index[:, 4:])
    assert only.labels is not None
    assert only.labels.tolist() == [0]


def test_nodes_with_unique_names_need_no_graph_column(tmp_path: Path) -> None:
    nodes = "id,graph\na,tri\nb,tri\nx,line\ny,line\n"
    graphs = open_graphs(write_several(tmp_path, edges="source,target\na,b\nx,y\n", nodes=nodes))
    assert graphs.edge_offsets.tolist() == [0, 2, 4]
    assert graphs.features.shape == (4, 0)


def test_targets_of_graphs(tmp_path: Path) -> None:
    graphs = open_graphs(write_several(tmp_path, graphs="graph,target_a,target_b\ntri,1,2\nline,3,4\n"))
    assert graphs.names == ("tri", "line")
    assert graphs.target_names == ("target_a", "target_b")
    assert graphs.targets is not None
    assert graphs.targets.tolist() == [[1, 2], [3, 4]]
    assert graphs.labels is None


def test_edges_alone_make_a_graph(tmp_path: Path) -> None:
    graph = open_graphs(write_csv(tmp_path, nodes="", edges="Target,Source\nb,a\nc,b\n"))
    assert graph.node_names == ("a", "b", "c")
    assert graph.features.shape == (3, 0)
    assert graph.node_labels is None
    assert open_graphs(tmp_path / "edges.csv").node_names == graph.node_names


def test_features_of_a_model_are_found_by_name(tmp_path: Path) -> None:
    graph = open_graphs(write_csv(tmp_path), features=("pay",), edge_features=())
    assert graph.features[:, 0].tolist() == [1.5, 2.5, 3.5, 4.5]
    assert graph.edge_features is None
    with refused(ValueError, "nodes.csv, line 1: no column 'height'; the columns are id, label, split"):
        open_graphs(tmp_path, features=("height",))


EDGES_OF_TWO = "source,target,bond\na,b,single\n"
WORDS = "id,element,charge\na,C,1\nb,Na,2\nc,,3\nd,C,4\n"


def test_columns_of_words_become_one_hot_features(tmp_path: Path) -> None:
    edges = "source,target,bond\na,b,single\nb,c,double\nc,d,single\n"
    graph = open_graphs(write_csv(tmp_path / "a", nodes=WORDS, edges=edges))
    assert graph.feature_names == ("element=C", "element=Na", "charge")
    assert graph.features.tolist() == [[1, 0, 1], [0, 1, 2], [0, 0, 3], [1, 0, 4]]
    assert graph.edge_feature_names == ("bond=double", "bond=single")
    assert graph.edge_features is not None
    assert graph.edge_features.tolist() == [[0, 1], [0, 1], [1, 0], [1, 0], [0, 1], [0, 1]]
    known = partial(open_graphs, features=graph.feature_names, edge_features=graph.edge_feature_names)
    fewer = known(write_csv(tmp_path / "b", nodes="id,charge,element\na,1,C\nb,2,\n", edges=EDGES_OF_TWO))
    assert (fewer.feature_names, fewer.features.tolist()) == (graph.feature_names, [[1, 0, 1], [0, 0, 2]])
    for tables, message in (
        (
            {"nodes": "id,charge,element\na,1,C\nb,2,F\n"},
            "column 'element': 'F' is none that the model knows; expected",
        ),
        ({"nodes": "id,charge\na,1\nb,2\n"}, "nodes.csv, line 1: no column 'element'; the columns are id, charge"),
    ):
        with refused(ValueError, message):
            known(write_csv(tmp_path / "c", edges=EDGES_OF_TWO, **tables))


def test_a_column_of_names_is_no_feature(tmp_path: Path) -> None:
    nodes = "\n".join(["id,name", *(f"n{i},person {i}" for i in range(21))])
    with refused(ValueError, "nodes.csv, line 2: column 'name' has 21 different words in 21 rows", "leave it out"):
        open_graphs(write_csv(tmp_path, nodes=nodes, edges="source,target\nn0,n1\n"))


def test_gzipped_tables(tmp_path: Path) -> None:
    write_csv(tmp_path / "a")
    (tmp_path / "b").mkdir()
    for file in (tmp_path / "a").iterdir():
        (tmp_path / "b" / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
    assert torch.equal(open_graphs(tmp_path / "b").features, open_graphs(tmp_path / "a").features)


NODES = "id,label,split,x\na,p,train,1\nb,q,test,2\n"
EDGES = "source,target\na,b\n"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"nodes": "id,x\na,1\nb,\n"}, "nodes.csv, line 3: column 'x': is missing; expected a finite number"),
        ({"nodes": "id,x\na,1\nb,NaN\n"}, "nodes.csv, line 3: column 'x': is missing"),
        ({"nodes": "id,x\na,1\nb,blue\n"}, "column 'x': 'blue' is no finite number; write one, or make all cells"),
        (
            {"nodes": "id,x,x=s\na,r,1\nb,s,2\n"},
            "nodes.csv, line 1: column 'x=s' is called like a feature of the column of words 'x'; rename one",
        ),
        ({"nodes": "id,x\na,1\nb,2,3\n"}, "nodes.csv, line 3: has 3 cells; expected 2"),
        ({"nodes": "id,x\n"}, "nodes.csv: has no rows below its header"),
        (
            {"nodes": "name,x\na,1\nb,2\n"},
            "nodes.csv, line 1: no column 'id'; the columns are name, x; expected the name of a node there",
        ),
        ({"nodes": "id,x\na,1\n,2\n"}, "nodes.csv, line 3: column 'id': is empty; expected a name"),
        ({"nodes": "id,x\na,1\na,2\n"}, "nodes.csv, line 3: node 'a' is there twice, first in"),
        (
            {"nodes": "id,label,split\na,p,train\nb,q,exam\n"},
            "nodes.csv, line 3: column 'split': 'exam' is no split; expected train, valid",
        ),
        ({"nodes": "id,weight\na,1\nb,-1\n"}, "nodes.csv, line 3: weight -1; expected a finite number of at least 0"),
        ({"nodes": "id,weight\na,0\nb,0\n"}, "nodes.csv, line 2: all nodes of graph '"),
        ({"nodes": "id,weight\na,1e-60\nb,0\n"}, "have weight 0, in float32; expected one that counts"),
        ({"nodes": "id,ID\na,0\nb,0\n"}, "nodes.csv, line 1: columns 'id' and 'ID' are one; keep one"),
        ({"edges": "source,target\na,b\na,c\n"}, "edges.csv, line 3: there is no node 'c' in nodes.csv"),
        ({"edges": "source,target,weight\na,b,-3\n"}, "edges.csv, line 2: weight -3; expected a finite number"),
        ({"edges": "source,target,weight\na,b,1\nb,a,2\n"}, "edges.csv, line 3: has another weight than the same edge"),
        ({"edges": "source,target,long\na,b,x\nb,a,1\n"}, "edges.csv, line 2: column 'long': 'x' is no finite number"),
        (
            {"edges": "from,to\na,b\n"},
            "no column 'source', 'target'; the columns are from, to; expected the node where an edge begins and",
        ),
        ({"edges": "graph,source,target\ng,a,b\n"}, "nodes.csv, line 1: no column 'graph'"),
        ({"edges": ""}, "has nodes.csv and no edges.csv; add it, with the columns source and target"),
    ],
)
def test_bad_tables_of_one_graph(tmp_path: Path, changed: dict[str, str], message: str) -> None:
    write_csv(tmp_path, **({"nodes": NODES, "edges": EDGES} | changed))
    with refused(ValueError, message):
        open_graphs(tmp_path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"graphs": "graph,label\ntri,a\nline,b\nstar,c\n"}, "graphs.csv, line 4: graph 'star' has no nodes"),
        ({"graphs": "graph,label\ntri,a\n"}, "nodes.csv, line 4: graph 'line' is not in graphs.csv"),
        ({"graphs": "graph,label\ntri,a\nline,\n"}, "graphs.csv, line 3: column 'label': is empty; expected a class"),
        ({"graphs": "graph,label\ntri,a\ntri,b\n"}, "graphs.csv, line 3: graph 'tri' is there twice"),
        ({"graphs": "graph,label,target\ntri,a,1\nline,b,2\n"}, "has the columns 'label' and 'target'; keep one"),
        (
            {"graphs": "graph,label,groups\ntri,a,p\nline,b,q\n"},
            "graphs.csv, line 1: nothing reads the column 'groups'; expected graph, label, split, group, time, target",
        ),
        ({"graphs": "graph,target\ntri,1\nline,much\n"}, "graphs.csv, line 3: column 'target': 'much' is no finite"),
        (
            {"graphs": "graph,label,split\ntri,a,train\nline,b,all\n"},
            "line 3: column 'split': 'all' is no split",
        ),
        ({"graphs": "name,label\ntri,a\nline,b\n"}, "graphs.csv, line 1: no column 'graph'"),
        ({"nodes": "graph,id,label\ntri,1,a\nline,1,b\n"}, "nodes.csv, line 1: has a column 'label' beside graphs.csv"),
        ({"nodes": "id,x\n1,1\n"}, "nodes.csv, line 1: no column 'graph'"),
        (
            {"edges": "graph,source,target\ntri,1,2\ntri,1,9\n"},
            "edges.csv, line 3: there is no node '9' of graph 'tri'",
        ),
        ({"edges": "source,target\n1,2\n"}, "node '1' is in two graphs, also in"),
        ({"nodes": ""}, "has no nodes.csv; expected one with the columns graph and id"),
    ],
)
def test_bad_tables_of_several_graphs(tmp_path: Path, changed: dict[str, str], message: str) -> None:
    write_several(tmp_path, **changed)
    with refused(ValueError, message):
        open_graphs(tmp_path)


def test_an_edge_between_two_graphs(tmp_path: Path) -> None:
    nodes = "id,graph\na,tri\nb,tri\nx,line\ny,line\n"
    write_several(tmp_path, edges="source,target\na,b\nb,x\n", nodes=nodes)
    with refused(ValueError, "edges.csv, line 3: nodes 'b' and 'x' are of two graphs"):
        open_graphs(tmp_path)


def test_nothing_to_open(tmp_path: Path) -> None:
    with refused(ValueError, "no graphs at", "expected a folder with edges.csv"):
        open_graphs(tmp_path)
    with refused(ValueError, "no graphs at 'absent'"):
        open_graphs("absent")


def test_columns_give_the_splits_groups_and_times(tmp_path: Path) -> None:
    graphs = write_several(tmp_path / "several")
    (graphs / "graphs.csv").write_text("graph,label,Group,time\nline,open,p,2020-01-02\ntri,closed,q,2020-01-01\n")
    marks = open_graphs(graphs).marks
    assert marks.times is not None
    assert (marks.given, marks.groups, marks.times.diff().tolist()) == (None, ("p", "q"), [-86400])
    (graphs / "graphs.csv").write_text("graph,label,time\nline,open,2\ntri,closed,late\n")
    with refused(ValueError, "graphs.csv, line 3: column 'time'"):
        open_graphs(graphs)
    nodes = tmp_path / "one"
    nodes.mkdir()
    (nodes / "edges.csv").write_text("source,target\na,b\n")
    (nodes / "nodes.csv").write_text("id,label,group,x\na,p,1,5\nb,q,2,6\n")
    graph = open_graphs(nodes)
    assert (graph.marks.groups, graph.feature_names) == (("1", "2"), ("x",))
    (nodes / "nodes.csv").write_text("id,group,x\na,1,5\nb,2,6\n")  # without classes or targets the column is a feature
    assert (open_graphs(nodes).marks.groups, open_graphs(nodes).feature_names) == (None, ("group", "x"))


def test_targets_of_nodes(tmp_path: Path) -> None:
    nodes = "id,Target,target_area,targeted,split\nann,1.5,2,7,train\nbob,,,8,\ncid,-1,4,9,test\ndan,0,5,6,\n"
    graph = open_graphs(write_csv(tmp_path, nodes=nodes))
    assert (graph.target_names, graph.feature_names) == (("Target", "target_area"), ("targeted",))
    assert graph.node_targets is not None
    assert graph.node_targets[[0, 2, 3]].tolist() == [[1.5, 2], [-1, 4], [0, 5]]
    assert (graph.known_nodes.tolist(), bool(graph.node_targets[1].isnan().all())) == ([0, 2, 3], True)
    assert graph.marks.given is not None
    assert graph.marks.given.tolist() == [0, -1, 2, -1]
    # a model with a feature of that name reads the column as a feature
    write_csv(tmp_path, nodes="id,target,target_area\nann,,1\nbob,2,3\ncid,,4\ndan,,5\n")
    known = open_graphs(tmp_path, features=("target_area",))
    assert (known.target_names, known.features.flatten().tolist()) == (("target",), [1, 3, 4, 5])


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ("id,label,target\nann,a,1\n", "nodes.csv, line 1: has the columns 'label' and 'target'; keep one"),
        ("id,target\nann,many\n", "nodes.csv, line 2: column 'target': 'many' is no finite number"),
        ("id,target\nann,inf\n", "nodes.csv, line 2: column 'target': 'inf' is no finite number"),
        ("id,target_a,target_b\nann,1,\n", "nodes.csv, line 2: target_b is missing, and others are there"),
    ],
)
def test_bad_targets_of_nodes_are_refused(nodes: str, message: str, tmp_path: Path) -> None:
    others = "".join(f"{name}{',' * nodes.splitlines()[0].count(',')}\n" for name in ("bob", "cid", "dan"))
    with refused(ValueError, message):
        open_graphs(write_csv(tmp_path, nodes=nodes + others))


def test_targets_of_nodes_in_several_graphs_are_refused(tmp_path: Path) -> None:
    nodes = SEVERAL["nodes.csv"].replace("charge", "target")
    with refused(ValueError, "nodes.csv, line 1: has a column 'target' beside graphs.csv"):
        open_graphs(write_several(tmp_path, nodes=nodes))
