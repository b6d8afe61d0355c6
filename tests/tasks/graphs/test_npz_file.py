from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fredholm.tasks.graphs import GraphSet, open_graphs
from tests.refusals import refused
from tests.tasks.graphs.build import write_csv, write_several, write_tu

ONE: dict[str, Any] = {
    "edges": np.array([[0, 1], [1, 2]]),
    "features": np.array([[1.0, 2], [3, 4], [5, 6]]),
    "labels": np.array([1, 0, -1]),
    "classes": np.array(["no", "yes"]),
    "val_idx": np.array([1]),
    "train_idx": np.array([0]),
}
TWO: dict[str, Any] = {
    "edge_index": np.array([[0, 1], [2, 1]]),
    "graph": np.array([0, 1, 0]),
    "x": np.array([1.0, 2, 3]),
    "targets": np.array([0.5, 1.5]),
}


def save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def assert_same(actual: GraphSet, expected: GraphSet) -> None:
    for name, value in (vars(expected) | vars(expected.marks)).items():
        got = getattr(actual.marks if hasattr(actual.marks, name) else actual, name)
        if name == "marks":
            continue
        assert name == "notes" or (torch.equal(got, value) if isinstance(value, torch.Tensor) else got == value), name


def test_one_graph(tmp_path: Path) -> None:
    graph = open_graphs(save(tmp_path / "a.npz", **ONE))
    assert graph.feature_names == ("feature_0", "feature_1")
    assert graph.classes == ("no", "yes")
    assert graph.node_labels is not None
    assert graph.node_labels.tolist() == [1, 0, -1]
    assert graph.marks.given is not None
    assert graph.marks.given.tolist() == [0, 1, -1]
    assert graph.node_names == ("0", "1", "2")
    assert graph.edge_index.T.tolist() == [[0, 1], [1, 0], [1, 2], [2, 1]]


def test_several_graphs(tmp_path: Path) -> None:
    graphs = open_graphs(save(tmp_path / "a.npz", **TWO))
    assert graphs.notes == ("1 edge from a node to itself: dropped", "1 edge listed one way: taken both ways")
    assert graphs.node_offsets.tolist() == [0, 2, 3]
    assert graphs.features[:, 0].tolist() == [1, 3, 2]
    assert graphs.edge_index.T.tolist() == [[0, 1], [1, 0]]
    assert graphs.targets is not None
    assert graphs.targets.tolist() == [[0.5], [1.5]]
    assert graphs.target_names == ("target",)


def test_saved_graphs_are_read_back(tmp_path: Path) -> None:
    for i, folder in enumerate((write_csv(tmp_path / "a"), write_several(tmp_path / "b"), write_tu(tmp_path / "c"))):
        for is_directed in (False, True):
            graphs = open_graphs(folder, is_directed=is_directed)
            graphs.save(tmp_path / f"{i}.npz")
            assert_same(open_graphs(tmp_path / f"{i}.npz"), graphs)


def test_groups_and_times_are_saved(tmp_path: Path) -> None:
    marks = {"groups": np.array(["p", "q", "p"]), "example_times": np.array([3.0, 1.5, 2.0])}
    graph = open_graphs(save(tmp_path / "a.npz", **ONE | marks))
    assert graph.marks.groups == ("p", "q", "p")
    graph.save(tmp_path / "b.npz")
    again = open_graphs(tmp_path / "b.npz").marks
    assert again.times is not None
    assert (again.groups, again.times.tolist()) == (("p", "q", "p"), [3.0, 1.5, 2.0])


def test_sparse_features_are_rows(tmp_path: Path) -> None:
    sparse = {"x_indptr": np.array([0, 2, 2, 3]), "x_indices": np.array([0, 3, 1]), "x_data": np.array([1.0, 2, 3])}
    graph = open_graphs(save(tmp_path / "a.npz", **ONE | {"features": None} | sparse))
    assert graph.features.tolist() == [[1, 0, 0, 2], [0, 0, 0, 0], [0, 3, 0, 0]]
    twice = sparse | {"x_indices": np.array([3, 3, 1])}
    graph = open_graphs(save(tmp_path / "c.npz", **ONE | {"features": None} | twice))
    assert graph.features.tolist() == [[0, 0, 0, 3], [0, 0, 0, 0], [0, 3, 0, 0]]
    wide = open_graphs(save(tmp_path / "b.npz", **ONE | {"features": None, "x_shape": np.array([3, 6])} | sparse))
    assert wide.features.shape == (3, 6)


def test_cora(shared_data: Path) -> None:
    graph = open_graphs(shared_data / "planetoid" / "cora.npz")
    assert graph.features.shape == (2708, 1433)
    assert graph.edge_index.shape == (2, 2 * 5278)
    assert len(graph.classes) == 7
    assert graph.marks.given is not None
    assert graph.node_labels is not None
    assert [int((graph.marks.given == part).sum()) for part in range(3)] == [140, 500, 1000]
    assert graph.node_labels[graph.marks.given == 0].bincount().tolist() == [20] * 7
    assert int(graph.features.sum()) == 49216


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (ONE | {"edges": None}, "has no array 'edge_index' or 'edges'; the arrays are features, labels"),
        (ONE | {"edges": np.zeros((2, 3), int)}, "edges is int64 (2, 3); expected integers (E, 2)"),
        (ONE | {"edges": np.zeros((2, 2))}, "edges is float64 (2, 2); expected integers (E, 2)"),
        (ONE | {"edges": np.array([[0, 1], [1, 3]])}, "edge 1: there is no node 3; expected 0 to 2"),
        (ONE | {"features": None}, "has no 'features' and no 'num_nodes'; give one of them"),
        (ONE | {"features": np.array([[1.0], [2], [np.inf]])}, "node 2: feature_0 is inf; expected a finite number"),
        (
            ONE | {"features": np.array([["a"], ["b"], ["c"]])},
            "features is <U1 (3, 1); expected numbers (rows, columns)",
        ),
        (ONE | {"labels": np.array([1, 0])}, "labels is int64 (2,); expected integers or texts (3,)"),
        (ONE | {"labels": np.array([1, 0, 2])}, "labels[2] is 2, but there are 2 classes"),
        (ONE | {"val_idx": np.array([0])}, "val_idx[0] is 0, which is in another split too"),
        (ONE | {"val_idx": np.array([7])}, "val_idx is int64 (1,); expected numbers from 0 to 2"),
        (ONE | {"split": np.array(["train", "exam", ""])}, "split[1] is 'exam'; expected train, valid or test"),
        (ONE | {"weights": np.array([1.0, -1, 1])}, "node 1: weight -1; expected a finite number of at least 0"),
        (ONE | {"weights": np.array([1.0, 1])}, "weights is float64 (2,); expected numbers (3)"),
        (ONE | {"edge_weights": np.array([1.0, -1])}, "edge 1: weight -1"),
        (ONE | {"feature_names": np.array(["a"])}, "feature_names is <U1 (1,); expected texts or integers (2,)"),
        (ONE | {"pos": np.array([[1.0], [np.nan], [1]])}, "node 1: coordinate 1 is nan; expected a finite number"),
        (TWO | {"edge_index": np.array([[0], [1]])}, "edge 0: nodes 0 and 1 are of two graphs"),
        (TWO | {"graph": np.array([0, 2, 0])}, "graph has no node of graph 1, and of graph 2; number graphs from 0 on"),
        (TWO | {"graph": np.array([0, -1, 0])}, "graph[1] is -1; expected numbers from 0 on"),
        (TWO | {"targets": None, "labels": np.array(["a", ""])}, "labels[1] is empty; name the class of each graph"),
        (TWO | {"targets": np.array([1.0, np.nan])}, "targets[1, 0] is nan; expected a finite number"),
        (
            {"graph_indicator": np.array([0, 0]), "edges": np.array([[0, 1]]), "node_labels": np.array([1])},
            "node_labels is",
        ),
        ({"edges": np.array([[0, 1]]), "x_indptr": np.array([0, 1])}, "has x_indptr but no x_indices"),
        (
            {"edges": np.array([[0, 1]]), "x_indptr": np.arange(3), "x_indices": np.zeros(2), "x_data": np.ones(2)},
            "are int64 (3,), float64 (2,), float64 (2,); expected integers, integers and numbers in a row",
        ),
    ],
)
def test_bad_arrays(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    file = save(tmp_path / "bad.npz", **arrays)
    with refused(ValueError, str(file), message):
        open_graphs(file)


def test_features_must_match_those_of_a_model(tmp_path: Path) -> None:
    file = save(tmp_path / "a.npz", **ONE)
    assert open_graphs(file, features=("u", "v")).feature_names == ("u", "v")
    with refused(ValueError, "has 2 features ; the model knows 1: u"):
        open_graphs(file, features=("u",))
    named = save(tmp_path / "b.npz", **ONE, feature_names=np.array(["p", "q"]))
    with refused(ValueError, "has 2 features p, q; the model knows 2: q, p"):
        open_graphs(named, features=("q", "p"))


def test_objects_are_refused(tmp_path: Path) -> None:
    file = save(tmp_path / "a.npz", **ONE | {"labels": np.array([1, None, 2], dtype=object)})
    with refused(ValueError, "pass one without objects"):
        open_graphs(file)


def test_a_file_says_whether_edges_have_directions(tmp_path: Path) -> None:
    found = save(tmp_path / "a.npz", **ONE, directed=np.array(True))
    assert open_graphs(found).is_directed
    assert open_graphs(save(tmp_path / "b.npz", **ONE), is_directed=True).is_directed
    for value, got in ((np.array("False"), "<U5 ()"), (np.array([False]), "bool (1,)")):
        with refused(ValueError, f"a.npz: directed is {got}; expected bool ()"):
            open_graphs(save(tmp_path / "a.npz", **ONE, directed=value))
    with refused(ValueError, "directed is False, but edges are to be read as directed"):
        open_graphs(save(tmp_path / "a.npz", **ONE, directed=np.array(False)), is_directed=True)


def test_targets_belong_to_graphs_with_the_graph_array_and_to_nodes_without_it(tmp_path: Path) -> None:
    numbers = {name: array for name, array in ONE.items() if name not in ("labels", "classes")}
    targets = np.array([[1.5, 2], [np.nan, np.nan], [0, -1]])
    graph = open_graphs(save(tmp_path / "a.npz", **numbers, targets=targets, target_names=["rent", "age"]))
    assert (graph.targets, graph.target_names, graph.known_nodes.tolist()) == (None, ("rent", "age"), [0, 2])
    assert graph.node_targets is not None
    np.testing.assert_equal(graph.node_targets.numpy(), targets)
    assert graph.marks.given is not None
    assert graph.marks.given.tolist() == [0, 1, -1]
    graph.save(tmp_path / "b.npz")
    again = open_graphs(tmp_path / "b.npz")
    assert again.node_targets is not None
    np.testing.assert_equal(again.node_targets.numpy(), targets)
    assert (again.target_names, again.targets) == (graph.target_names, None)
    whole = {"graph": np.zeros(3, np.int64), "edges": ONE["edges"], "features": ONE["features"]}
    one = open_graphs(save(tmp_path / "c.npz", **whole, targets=np.array([[7.0, 8.0]])))
    assert (one.node_targets, one.has_node_answers) == (None, False)
    assert one.targets is not None
    assert one.targets.tolist() == [[7, 8]]
    one.save(tmp_path / "d.npz")
    assert_same(open_graphs(tmp_path / "d.npz"), one)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (np.array([1.0, np.inf, 2.0]), "targets[1, 0] is inf; expected a finite number"),
        (np.array([[1.0, np.nan], [1, 1], [2, 2]]), "node 0: target_1 is missing, and others are there"),
        (np.array([1.0]), "expected (3, T), as those of a file without the array graph are of nodes: give graph"),
        (np.array(["a", "b", "c"]), "targets is <U1 (3,); expected numbers (3, columns)"),
        (np.zeros((3, 0)), "targets is float64 (3, 0); expected at least one number"),
    ],
)
def test_bad_targets_of_nodes_are_refused(targets: np.ndarray, message: str, tmp_path: Path) -> None:
    numbers = {name: array for name, array in ONE.items() if name not in ("labels", "classes")}
    with refused(ValueError, "a.npz", message):
        open_graphs(save(tmp_path / "a.npz", **numbers, targets=targets))
    with refused(ValueError, "has labels and targets; a run predicts one of them"):
        open_graphs(save(tmp_path / "a.npz", **ONE, targets=targets))
