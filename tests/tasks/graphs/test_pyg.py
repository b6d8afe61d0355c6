from pathlib import Path

import pytest
import torch

from fredholm.tasks.graphs import from_pyg, open_graphs
from tests.refusals import refused

data = pytest.importorskip("torch_geometric.data", reason="graphs of PyG need torch-geometric")

ENDS = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
MASKS = torch.eye(3, dtype=torch.bool)


def test_one_graph_with_classes_of_nodes() -> None:
    graph = from_pyg(
        data.Data(
            x=torch.arange(6.0).view(3, 2),
            edge_index=ENDS,
            edge_attr=torch.tensor([1.0, 1, 2, 2]),
            edge_weight=torch.tensor([3.0, 3, 4, 4]),
            pos=torch.rand(3, 3),
            y=torch.tensor([1, 0, -1]),
            train_mask=MASKS[0],
            val_mask=MASKS[1],
        )
    )
    assert torch.equal(graph.edge_index, ENDS)
    assert torch.equal(graph.features, torch.arange(6.0).view(3, 2))
    assert graph.edge_weights is not None
    assert graph.edge_weights.tolist() == [3, 3, 4, 4]
    assert graph.edge_features is not None
    assert graph.edge_features.tolist() == [[1], [1], [2], [2]]
    assert graph.pos is not None
    assert graph.pos.shape == (3, 3)
    assert graph.node_labels is not None
    assert graph.node_labels.tolist() == [1, 0, -1]
    assert graph.marks.given is not None
    assert graph.marks.given.tolist() == [0, 1, -1]
    assert graph.classes == ("0", "1")


def test_several_graphs_and_a_file_of_them(tmp_path: Path) -> None:
    given = [
        data.Data(x=torch.ones(3, 1), edge_index=ENDS, y=torch.tensor([1])),
        data.Data(x=torch.zeros(2, 1), edge_index=torch.tensor([[1], [0]]), y=torch.tensor(0)),
    ]
    graphs = from_pyg(given, split=["train", "test"])
    assert graphs.labels is not None
    assert graphs.labels.tolist() == [1, 0]
    assert graphs.node_offsets.tolist() == [0, 3, 5]
    assert graphs.edge_index.T.tolist() == [[0, 1], [1, 0], [1, 2], [2, 1], [0, 1], [1, 0]]
    assert graphs.marks.given is not None
    assert graphs.marks.given.tolist() == [0, 2]
    graphs.save(tmp_path / "file.npz")
    again = open_graphs(tmp_path / "file.npz")
    assert torch.equal(again.features, graphs.features)
    assert torch.equal(again.edge_index, graphs.edge_index)
    numbers = from_pyg([each.update({"y": torch.tensor([[0.5, 2.0]])}) for each in given])
    assert numbers.targets is not None
    assert numbers.targets.tolist() == [[0.5, 2.0]] * 2


def test_targets_of_nodes_and_a_file_of_them(tmp_path: Path) -> None:
    y = torch.tensor([[0.5, 2], [torch.nan, torch.nan], [1, 3]])
    for given, names in ((y, ("target_0", "target_1")), (y[:, 0], ("target",))):
        graph = from_pyg(data.Data(x=torch.ones(3, 1), edge_index=ENDS, y=given, train_mask=MASKS[0]))
        graph.save(tmp_path / "file.npz")
        for one in (graph, open_graphs(tmp_path / "file.npz")):
            assert one.node_targets is not None
            expected = given.view(3, -1).double()
            torch.testing.assert_close(one.node_targets, expected, equal_nan=True, rtol=0, atol=0)
            assert (one.target_names, one.known_nodes.tolist()) == (names, [0, 2])
            assert one.marks.given is not None
            assert one.marks.given.tolist() == [0, -1, -1]


def test_directed_edges_and_no_features() -> None:
    graph = from_pyg(data.Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2), is_directed=True)
    assert graph.features.shape == (2, 0)
    assert graph.edge_index.tolist() == [[0], [1]]


def test_bad_graphs_are_refused() -> None:
    one, other = data.Data(x=torch.ones(3, 1), edge_index=ENDS), data.Data(x=torch.ones(3, 2), edge_index=ENDS)
    with refused(ValueError, "from_pyg: features have 1, 2 columns in different graphs; expected as many in all"):
        from_pyg([one, other])
    with refused(TypeError, "from_pyg: graph 1 is a int; expected torch_geometric.data.Data"):
        from_pyg([one, 3])  # pyright: ignore[reportArgumentType]
    with refused(ValueError, "from_pyg: there are no graphs"):
        from_pyg([])
    with refused(ValueError, "from_pyg: graph 1 has an edge to node 5; expected 0 to 2"):
        from_pyg([one, data.Data(x=torch.ones(3, 1), edge_index=ENDS + 5)])
    with refused(ValueError, "from_pyg: graph 1, node 2: feature_0 is nan; expected a finite number"):
        from_pyg([one, data.Data(x=torch.tensor([[1.0], [1.0], [torch.nan]]), edge_index=ENDS)])
    for y in (torch.ones(1), torch.ones(1, 2), torch.ones(3, 2, 2), torch.ones(3, 2, dtype=torch.int64)):
        with refused(ValueError, "from_pyg: y is torch.", "expected an integer a node, (3,), a class, or floats (3,)"):
            from_pyg(data.Data(x=torch.ones(3, 1), edge_index=ENDS, y=y))
    with refused(ValueError, "node 1: target is inf; expected a finite number"):
        from_pyg(data.Data(x=torch.ones(3, 1), edge_index=ENDS, y=torch.tensor([1.0, torch.inf, 2.0])))
    with refused(ValueError, "from_pyg: split[0] is 'exam'"):
        from_pyg([data.Data(x=torch.ones(3, 1), edge_index=ENDS, y=torch.tensor(1))], split=["exam"])
    with refused(ValueError, "from_pyg: split has 2 entries"):
        from_pyg([one], split=["train", "test"])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"train_mask": torch.tensor([1, 0, 0])}, "train_mask is torch.int64 (3,); expected bool (3,), one split"),
        ({"test_mask": torch.ones(3)}, "test_mask is torch.float32 (3,); expected bool (3,)"),
        ({"train_mask": torch.ones(3, 10).bool()}, "train_mask is torch.bool (3, 10); expected bool (3,)"),
        (
            {"train_mask": MASKS[0] | MASKS[1], "test_mask": MASKS[1]},
            "node 1 is in train_mask and test_mask; expected one split",
        ),
        ({"y": torch.tensor([0, 1, -5])}, "y has -5; expected classes from 0 on, and -1 where there is none"),
    ],
)
def test_masks_and_classes_of_nodes_are_checked(changed: dict[str, torch.Tensor], message: str) -> None:
    given = {"x": torch.ones(3, 1), "edge_index": ENDS, "y": torch.tensor([0, 1, 1]), **changed}
    with refused(ValueError, f"from_pyg: {message}"):
        from_pyg(data.Data(**given))


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([torch.tensor([1]), None], "graph 1 has no y, and others have; give it to all, or to none"),
        ([torch.tensor([0, 1, 1]), torch.tensor([0, 1])], "y of graph 1 has 2 entries; expected 3, as many in all"),
        ([torch.tensor([]), torch.tensor([])], "y of graph 0 has 0 entries; expected 1"),
        ([torch.tensor([1]), torch.tensor([-1])], "y of graph 1 is -1; expected a class from 0 on"),
    ],
)
def test_answers_of_several_graphs_are_checked(answers: list[torch.Tensor | None], message: str) -> None:
    with refused(ValueError, f"from_pyg: {message}"):
        from_pyg([data.Data(x=torch.ones(3, 1), edge_index=ENDS, y=y) for y in answers])


def test_bfloat16_features_are_read() -> None:
    features = torch.tensor([[1.5], [2.0], [-3.0]])
    assert torch.equal(from_pyg(data.Data(x=features.bfloat16(), edge_index=ENDS)).features, features)
