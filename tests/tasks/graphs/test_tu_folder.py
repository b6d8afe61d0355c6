from pathlib import Path

import numpy as np
import pytest
import torch

from fredholm.tasks.graphs import open_graphs
from tests.refusals import refused
from tests.tasks.graphs.build import write_tu


def test_a_folder_with_every_optional_file(tmp_path: Path) -> None:
    graphs = open_graphs(write_tu(tmp_path))
    assert graphs.names == ("1", "2")
    assert graphs.feature_names == (
        *("node_attribute_0", "node_attribute_1"),
        *("node_label=0", "node_label=2", "node_label=5"),
    )
    assert graphs.features.tolist() == [
        [0.5, 1, 1, 0, 0],
        [1.5, 2, 0, 1, 0],
        [2.5, 3, 1, 0, 0],
        [3.5, 4, 0, 1, 0],
        [4.5, 5, 0, 0, 1],
    ]
    assert graphs.node_offsets.tolist() == [0, 3, 5]
    assert graphs.edge_offsets.tolist() == [0, 4, 6]
    assert graphs.edge_index.T.tolist() == [[0, 1], [1, 0], [1, 2], [2, 1], [0, 1], [1, 0]]
    assert graphs.edge_feature_names == ("edge_label=0", "edge_label=1")
    assert graphs.edge_features is not None
    assert graphs.edge_features.tolist() == [[1, 0], [1, 0], [0, 1], [0, 1], [1, 0], [1, 0]]
    assert graphs.classes == ("-1", "1")
    assert graphs.labels is not None
    assert graphs.labels.tolist() == [1, 0]
    assert graphs.notes == ()


def test_targets_of_graphs(tmp_path: Path) -> None:
    graphs = open_graphs(write_tu(tmp_path, graph_labels="", graph_attributes="0.5, 1\n2.5, 3\n"))
    assert graphs.target_names == ("target_0", "target_1")
    assert graphs.targets is not None
    assert graphs.targets.tolist() == [[0.5, 1.0], [2.5, 3.0]]


def test_labels_keep_the_columns_of_a_model(tmp_path: Path) -> None:
    known = ("node_attribute_0", "node_attribute_1", "node_label=0", "node_label=1", "node_label=2", "node_label=5")
    graphs = open_graphs(write_tu(tmp_path), features=known, edge_features=("edge_label=1", "edge_label=0"))
    assert graphs.feature_names == known
    assert graphs.features[:, 3].tolist() == [0.0] * 5
    assert graphs.features[:, 5].tolist() == [0, 0, 0, 0, 1]
    assert graphs.edge_features is not None
    assert graphs.edge_features[:, 0].tolist() == [0, 0, 1, 1, 0, 0]
    with refused(ValueError, "TOY_node_labels.txt, line 5: label 5 is none that the model knows"):
        open_graphs(tmp_path, features=known[:-1])
    with refused(ValueError, "TOY_node_attributes.txt, line 1: there are 2 attributes of a node; the model knows 1"):
        open_graphs(tmp_path, features=known[1:])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"A": "1, 2\n2, 9\n", "edge_labels": ""}, "TOY_A.txt, line 2: there is no node 9; expected 1 to 5"),
        ({"A": "1, 2\n3, 4\n", "edge_labels": ""}, "TOY_A.txt, line 2: nodes 3 and 4 are of two graphs"),
        ({"A": "1, 2\n0, 1\n"}, "TOY_A.txt, line 2: 0; expected whole numbers from 1 on"),
        ({"A": "1, 2\n1, x\n"}, "TOY_A.txt, line 2: '1, x' are no numbers"),
        ({"A": "1, 2\n1, 1_0\n", "edge_labels": ""}, "TOY_A.txt, line 2: '1, 1_0' are no numbers"),
        ({"A": "1, 2\n1\n"}, "TOY_A.txt, line 2: has 1 numbers; expected 2, as in line 1"),
        ({"A": "1, 2, 3\n"}, "TOY_A.txt, line 1: has 3 numbers; expected 2"),
        ({"A": "1, 2\n\n2, 1\n"}, "TOY_A.txt, line 2: has 0 numbers; expected 2"),
        ({"A": ""}, "TOY_A.txt: cannot be read"),
        ({"edge_labels": "0\n1\n"}, "TOY_edge_labels.txt: has 2 lines; expected 6"),
        ({"edge_labels": "0\n1\n1\n1\n0\n0\n"}, "TOY_A.txt, line 2: has another feature than the same edge"),
        ({"graph_labels": "1\n"}, "TOY_graph_labels.txt: has 1 lines; expected 2"),
        ({"node_attributes": "1\n2\nnan\n4\n5\n"}, "TOY_node_attributes.txt, line 3: number 1 is nan; expected a"),
        ({"graph_labels": "1\nnan\n"}, "TOY_graph_labels.txt, line 2: number 1 is nan; expected a finite number"),
        ({"graph_labels": "1, 2\n1, 3\n"}, "TOY_graph_labels.txt, line 1: has 2 numbers; expected one class a graph"),
        (
            {"graph_labels": "1\n9007199254740993\n"},
            "TOY_graph_labels.txt, line 2: label 9007199254740992 is too large; expected numbers below 2^53",
        ),
        (
            {"node_labels": "0\n2\n0\n-9007199254740993\n5\n"},
            "TOY_node_labels.txt, line 4: label -9007199254740992 is too large; expected numbers below 2^53",
        ),
        ({"graph_indicator": "1\n1\n1\n3\n3\n", "graph_labels": "1\n1\n1\n"}, "graph '2' has no nodes"),
    ],
)
def test_bad_folders(tmp_path: Path, changed: dict[str, str], message: str) -> None:
    write_tu(tmp_path, **changed)
    with refused(ValueError, message):
        open_graphs(tmp_path)


def test_a_folder_in_two_formats_is_refused(tmp_path: Path) -> None:
    write_tu(tmp_path)
    (tmp_path / "edges.csv").write_text("source,target\na,b\n")
    with refused(ValueError, "holds edges.csv and TOY_A.txt; keep one of them"):
        open_graphs(tmp_path)


def test_a_folder_and_its_arrays_give_the_same_graphs(tmp_path: Path, shared_data: Path) -> None:
    """MUTAG, written in the format of the collection."""
    arrays = np.load(shared_data / "tudataset" / "MUTAG.npz")
    tables = {
        "A": arrays["edges"] + 1,
        "graph_indicator": arrays["graph_indicator"] + 1,
        **{name: arrays[name] for name in ("graph_labels", "node_labels", "edge_labels")},
    }
    for name, table in tables.items():
        np.savetxt(tmp_path / f"MUTAG_{name}.txt", table, fmt="%d", delimiter=", ")
    folder, file = open_graphs(tmp_path), open_graphs(shared_data / "tudataset" / "MUTAG.npz")
    assert (len(folder), len(folder.features), folder.edge_index.shape[1]) == (188, 3371, 7442)
    for name, value in vars(file).items():
        got = getattr(folder, name)
        assert torch.equal(got, value) if isinstance(value, torch.Tensor) else name == "names" or got == value
