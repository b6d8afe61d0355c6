from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fredholm.tasks.graphs import GraphSet
from fredholm.tasks.graphs.listed import Listed
from fredholm.tasks.splits.split_marks import SplitMarks
from tests.refusals import refused


def three() -> GraphSet:
    """A line of two nodes, a triangle and a single node, whose nodes are interleaved."""
    return Listed(
        graph=np.array([1, 0, 2, 1, 0, 1]),
        names=["line", "triangle", "point"],
        features=np.arange(6.0)[:, None],
        feature_names=["number"],
        edges=np.array([[1, 0, 3, 5], [4, 3, 5, 0]]),
        node_place=str,
        edge_place=str,
        edge_weights=np.array([1.0, 2.0, 3.0, 4.0]),
        node_labels=np.array([0, 1, -1, 0, 1, 1]),
        marks=SplitMarks(given=torch.tensor([0, 1, 2, -1, 0, 1]), groups=tuple("pqrstu")),
        classes=["a", "b"],
    ).graphs()


def test_interleaved_nodes_and_edges_are_sorted_by_graph() -> None:
    graphs = three()
    assert graphs.node_offsets.tolist() == [0, 2, 5, 6]
    assert graphs.features[:, 0].tolist() == [1, 4, 0, 3, 5, 2]
    assert graphs.node_labels is not None
    assert graphs.node_labels.tolist() == [1, 1, 0, 0, 1, -1]
    assert graphs.marks.given is not None
    assert graphs.marks.given.tolist() == [1, 0, 0, -1, 1, 2]
    assert graphs.marks.groups == tuple("qtpsur")
    assert graphs.edge_offsets.tolist() == [0, 2, 8, 8]
    assert graphs.edge_weights is not None
    assert graphs.edge_weights.tolist() == [1, 1, 2, 4, 2, 3, 4, 3]


def test_selecting_graphs_in_another_order() -> None:
    graphs = three().select(torch.tensor([2, 1, 0, 1]))
    assert graphs.names == ("point", "triangle", "line", "triangle")
    assert graphs.features[:, 0].tolist() == [2, 0, 3, 5, 1, 4, 0, 3, 5]
    assert graphs.node_offsets.tolist() == [0, 1, 4, 6, 9]
    assert graphs.edge_offsets.tolist() == [0, 0, 6, 8, 14]
    assert graphs.edge_weights is not None
    assert graphs.edge_weights.tolist() == [2, 4, 2, 3, 4, 3, 1, 1, 2, 4, 2, 3, 4, 3]
    assert graphs.edge_index[:, 6:8].T.tolist() == [[0, 1], [1, 0]]
    assert graphs.marks.given is not None
    assert graphs.marks.given.tolist() == [2, 0, -1, 1, 1, 0, 0, -1, 1]
    assert graphs.num_nodes.tolist() == [1, 3, 2, 3]


def test_selecting_edges() -> None:
    graphs = three()
    assert graphs.edge_weights is not None
    light = graphs.with_edges(graphs.edge_weights < 3)
    assert light.edge_offsets.tolist() == [0, 2, 4, 4]
    assert light.edge_index.T.tolist() == [[0, 1], [1, 0], [0, 1], [1, 0]]
    assert light.edge_weights is not None
    assert light.edge_weights.tolist() == [1, 1, 2, 2]


def test_kinds_are_selected_with_their_nodes_and_edges() -> None:
    graphs = replace(three(), kinds=torch.arange(6), edge_kinds=torch.arange(8))
    part = graphs.select(torch.tensor([1, 0]))
    assert part.kinds is not None
    assert part.edge_kinds is not None
    assert part.kinds.tolist() == [2, 3, 4, 0, 1]
    assert part.edge_kinds.tolist() == [2, 3, 4, 5, 6, 7, 0, 1]
    light = graphs.with_edges(torch.arange(8) % 2 == 0)
    assert light.edge_kinds is not None
    assert light.edge_kinds.tolist() == [0, 2, 4, 6]


def test_training_graphs_must_have_labels_or_targets() -> None:
    with refused(ValueError, "the graphs of the training set have no labels and no targets"):
        three().check_split("training")
    with refused(ValueError, "the test set is empty"):
        three().select(torch.arange(0)).check_split("test")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"edge_weights": torch.ones(3)}, "edge_weights has shape (3,); expected (8,)"),
        ({"kinds": torch.zeros(3)}, "kinds has shape (3,); expected (6,)"),
        ({"edge_kinds": torch.zeros(3)}, "edge_kinds has shape (3,); expected (8,)"),
        ({"node_offsets": torch.zeros(3)}, "node_offsets has shape (3,); expected (4,)"),
        ({"feature_names": ("a", "b")}, "features has shape (6, 1); expected (6, 2)"),
        ({"marks": SplitMarks(given=torch.zeros(3))}, "there are 3 splits of 6 examples; expected one each"),
        ({"labels": torch.zeros(3)}, "graphs have labels and node_labels; give one of them"),
    ],
)
def test_misfits_are_refused(changed: dict[str, Any], message: str) -> None:
    with refused(ValueError, message):
        replace(three(), **changed)
