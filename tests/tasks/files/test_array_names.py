"""Array names of other libraries: errors say the name used here, and two names for one array are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fredholm.tasks import GraphLearning, ImageLearning, NodeLearning, OperatorLearning, Segmentation
from fredholm.tasks.files.array_names import names_here
from fredholm.tasks.graphs import open_graphs
from fredholm.tasks.images import open_images
from fredholm.tasks.points import open_points
from fredholm.tasks.series import read_series
from tests.refusals import refused

PIXELS, LABELS = np.zeros((4, 4, 4), np.uint8), np.arange(4) % 2
VALUES, CLOUDS = np.zeros((4, 5, 1)), np.zeros((4, 5, 3))
EDGES = np.array([[0, 1, 2], [1, 2, 3]])
GRAPH: dict[str, Any] = {"x": np.ones((4, 2)), "edge_index": EDGES, "y": LABELS}
TU: dict[str, Any] = {
    "edges": np.stack([np.arange(26), np.arange(26) ^ 1], axis=1),
    "graph_indicator": np.repeat(np.arange(13), 2),
    "graph_labels": np.arange(13) % 2,
}


def nodes(path: Path) -> object:
    return NodeLearning.Config(data=str(path)).build()


def masks(path: Path) -> object:
    return Segmentation.Config(data=str(path)).build()


def operators(path: Path) -> object:
    return OperatorLearning.Config(data=str(path)).build()


@pytest.mark.parametrize(
    ("read", "arrays", "message"),
    [
        (open_images, {"X": PIXELS, "Y": LABELS}, "here X is x, Y is y; rename them"),
        (open_images, {"data": PIXELS, "target": LABELS}, "here data is x, target is y"),
        (
            open_images,
            {"train_data": PIXELS, "train_labels": LABELS},
            "here train_data is x_train, train_labels is y_train",
        ),
        (open_images, {"x": PIXELS, "y": LABELS, "train_mask": LABELS > 0}, "a split is an array split, one of"),
        (read_series, {"X_train": VALUES, "y_train": LABELS}, "here X_train is train_values, y_train is train_labels"),
        (open_points, {"data": CLOUDS, "label": LABELS}, "here data is x, label is y"),
        (nodes, GRAPH | {"edge_attr": np.ones((3, 1))}, "here edge_attr is edge_features"),
        (
            nodes,
            GRAPH | {"train_mask": LABELS > 0, "val_mask": LABELS > 1},
            "a split is an array split, one of train, valid and test a row, in place of train_mask, val_mask",
        ),
        (
            nodes,
            GRAPH | {"edge_weight": np.ones(3), "batch": LABELS},
            "here edge_weight is edge_weights, batch is graph",
        ),
        (
            masks,
            {"images": PIXELS, "labels": PIXELS},
            "no array 'masks'; the arrays are images, labels; here labels is",
        ),
        (operators, {"a": VALUES, "u": VALUES}, "here a is values, u is target_values"),
    ],
)
def test_errors_say_the_names_that_arrays_have_here(
    read: Any, arrays: dict[str, np.ndarray], message: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "a.npz", **arrays)  # pyright: ignore[reportArgumentType]
    with refused(ValueError, "a.npz: has ", message):
        read(tmp_path / "a.npz")


def test_names_that_are_present_or_unknown_give_no_hint() -> None:
    assert names_here(["X", "whatever"], ("x", "y"), {"x", "X"}) == {}
    assert names_here(["lables"], ("values", "labels"), ()) == {"lables": "labels"}
    assert names_here(["X_val"], ("images",), ()) == {"X_val": "images, with a split"}


@pytest.mark.parametrize(
    ("read", "arrays", "message"),
    [
        (read_series, {"values": VALUES, "audio": VALUES, "labels": LABELS}, "values and audio"),
        (read_series, {"values": VALUES, "labels": LABELS, "label": LABELS}, "labels and label"),
        (open_points, {"x": CLOUDS, "points": CLOUDS, "y": LABELS}, "x and points"),
        (open_points, {"x_train": CLOUDS, "points_train": CLOUDS, "y_train": LABELS}, "x_train and points_train"),
        (nodes, GRAPH | {"features": GRAPH["x"]}, "features and x"),
        (nodes, GRAPH | {"labels": LABELS}, "labels and y"),
        (nodes, GRAPH | {"edges": EDGES.T}, "edge_index and edges"),
    ],
)
def test_two_names_for_one_array_are_refused(read: Any, arrays: dict[str, Any], message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with refused(ValueError, f"a.npz: has {message}, which are two names of one array; keep one"):
        read(tmp_path / "a.npz")


def test_a_tudataset_in_one_file_may_have_a_split_and_groups(tmp_path: Path) -> None:
    split = np.array(["train"] * 7 + ["valid"] * 2 + ["test"] * 4)
    np.savez(tmp_path / "a.npz", **TU, split=split, groups=np.arange(13))
    graphs = open_graphs(tmp_path / "a.npz")
    assert graphs.marks.given is not None
    assert graphs.marks.given.tolist() == [0] * 7 + [1] * 2 + [2] * 4
    assert graphs.marks.groups == tuple(map(str, range(13)))
    task = GraphLearning.Config(data=str(tmp_path / "a.npz")).build()
    assert (task.num_train, task.num_held_out("valid"), task.num_held_out("test")) == (7, 2, 4)
    np.savez(tmp_path / "b.npz", **TU, train_idx=np.arange(9), test_idx=np.arange(9, 13), example_times=np.arange(13))
    task = GraphLearning.Config(data=str(tmp_path / "b.npz")).build()
    assert (task.num_train, task.num_held_out("test")) == (9, 4)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"targets": np.ones(13)}, "has labels and targets; a run predicts one of them"),
        ({"split": np.array(["train"] * 13), "train_idx": np.arange(3)}, "has split and train_idx, which say the same"),
    ],
)
def test_arrays_of_graphs_that_would_be_dropped_are_refused(more: dict[str, Any], message: str, tmp_path: Path) -> None:
    arrays = {"edges": TU["edges"], "graph": TU["graph_indicator"], "labels": TU["graph_labels"]}
    np.savez(tmp_path / "a.npz", **arrays, **more)
    with refused(ValueError, f"a.npz: {message}"):
        open_graphs(tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("read", "arrays", "message"),
    [
        (
            lambda path: ImageLearning.Config(data=str(path)).build(),
            {"x": np.zeros((20, 4, 4), np.uint8), "y": np.arange(20) % 2, "classes": ["a", "a"]},
            "of the classes two are called 'a'; give each a name of its own",
        ),
        (read_series, {"values": np.zeros((4, 5, 2)), "labels": LABELS, "channels": ["a", "a"]}, "of the channels two"),
        (open_points, {"x": np.zeros((4, 5, 5)), "y": LABELS, "channels": ["a", "a"]}, "of the features two"),
        (nodes, GRAPH | {"feature_names": ["a", "a"]}, "of the features two"),
        (read_series, {"values": np.zeros((4, 5, 0)), "labels": LABELS}, "without a channel"),
        (open_graphs, GRAPH | {"graph": np.array([0, 0, 2, 2])}, "graph has no node of graph 1, and of graph 2"),
    ],
)
def test_duplicate_names_and_empty_channels_or_graphs_are_refused(
    read: Any, arrays: dict[str, Any], message: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with refused(ValueError, message):
        read(tmp_path / "a.npz")


def test_the_error_for_a_truncated_file_says_to_save_it_again(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=PIXELS, y=LABELS)
    (tmp_path / "a.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:-200])
    with refused(ValueError, "a.npz: cannot be read as an .npz file", "write it again with numpy.savez"):
        open_images(tmp_path / "a.npz")
