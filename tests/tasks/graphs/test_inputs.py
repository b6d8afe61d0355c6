import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fredholm.tasks.graphs import GraphSet, open_graphs
from fredholm.tasks.graphs.batches import batch_of, graphs_in
from fredholm.tasks.graphs.inputs import GraphInputs, Kinds, surroundings, walks_back
from fredholm.tasks.graphs.listed import Listed
from tests.refusals import refused
from tests.tasks.graphs.build import listed, write_csv, write_several, write_tu

BARE = GraphInputs(num_walks=0, degrees=False, positions="none")


def test_return_probabilities_of_walks() -> None:
    ring = listed([(0, 1), (1, 2), (2, 0)], 4)
    found = walks_back(ring, 3)
    # on a triangle half of all walks have returned after two steps, a quarter after three, 3/8 after four
    torch.testing.assert_close(found[:3], torch.tensor([[0.5, 0.25, 0.375]]).expand(3, 3))
    assert found[3].tolist() == [0, 0, 0]


def test_walks_follow_weights_and_directions() -> None:
    one_way = listed([(0, 1), (1, 2), (2, 0)], 3, is_directed=True)
    assert walks_back(one_way, 3).tolist() == [[0, 1, 0]] * 3
    star = listed([(0, 1), (0, 2)], 3)
    weights = torch.where((star.edge_index == 2).any(0), 3.0, 1.0)
    torch.testing.assert_close(
        walks_back(replace(star, edge_weights=weights), 1)[:, 0], torch.tensor([1.0, 0.25, 0.75])
    )


@pytest.mark.parametrize("is_directed", [False, True])
def test_surroundings_are_statistics_of_the_neighbours(is_directed: bool) -> None:
    ends = [(0, 1), (1, 2), (2, 0), (2, 3), (3, 2), (4, 2), (4, 5)]
    if not is_directed:
        ends = [pair for a, b in ends for pair in ((a, b), (b, a))]
    graph = listed(ends, 7, is_directed=is_directed)
    near = {v: {b for a, b in ends if a == v} | {a for a, b in ends if b == v} for v in range(7)}
    found = surroundings(graph)
    for v, own in near.items():
        sizes = [math.log1p(len(near[w])) for w in own]
        pairs = [(a, b) for a in own for b in own if a < b]
        closed = sum(b in near[a] for a, b in pairs) / max(1, len(pairs))
        expected = [sum(sizes) / max(1, len(sizes)), max(sizes, default=0.0), closed]
        if is_directed:
            expected.append(math.log1p(sum(a == v for a, _ in ends)))
        torch.testing.assert_close(found[v].tolist(), expected, rtol=1e-5, atol=1e-6)
    inputs = replace(BARE, surroundings=True)
    names = inputs.names(inputs.learn(graph))
    assert (
        names[1:]
        == ("mean degree around", "largest degree around", "neighbours joined", "leaving degree")[: 3 + is_directed]
    )


def test_return_probabilities_match_pyg(shared_data: Path) -> None:
    transforms = pytest.importorskip("torch_geometric.transforms", reason="graphs of PyG need torch-geometric")
    data = pytest.importorskip("torch_geometric.data")
    graphs = open_graphs(shared_data / "tudataset" / "MUTAG.npz").select(torch.arange(5))
    found = walks_back(graphs, 6)
    for i in range(5):
        one = graphs.select(torch.tensor([i]))
        walked = transforms.AddRandomWalkPE(7)(data.Data(edge_index=one.edge_index, num_nodes=len(one.features)))
        expected = walked.random_walk_pe[:, 1:]
        torch.testing.assert_close(found[graphs.node_offsets[i] : graphs.node_offsets[i + 1]], expected)


def test_features_are_standardised_by_the_training_nodes(tmp_path: Path) -> None:
    graphs = open_graphs(write_several(tmp_path))
    inputs = GraphInputs(num_walks=2, positions="none")
    preparation = inputs.learn(graphs)
    assert preparation.num_inputs == 4
    found = inputs.prepare(graphs, preparation).features
    torch.testing.assert_close(found.mean(0), torch.zeros(4), atol=1e-6, rtol=0)
    torch.testing.assert_close(found.std(0, correction=0), torch.ones(4))
    charge = torch.tensor([5.0, 6, 7, 0, 1, 2])
    torch.testing.assert_close(found[:, 0], (charge - 3.5) / charge.std(correction=0))
    degree = torch.tensor([1.0, 2, 1, 2, 2, 2]).log1p()
    torch.testing.assert_close(found[:, 3], (degree - degree.mean()) / degree.std(correction=0))
    part = graphs.select(torch.tensor([0]))
    torch.testing.assert_close(inputs.prepare(part, preparation).features, found[:3])


def test_a_constant_feature_becomes_0(tmp_path: Path) -> None:
    tables = {"nodes": "id,x,y\na,0.1,1\nb,0.1,2\nc,0.1,4\n", "edges": "source,target\na,b\nb,c\n"}
    graph = open_graphs(write_csv(tmp_path, **tables))
    found = BARE.prepare(graph, BARE.learn(graph)).features
    torch.testing.assert_close(found[:, 0], torch.zeros(3))
    assert bool(found[:, 1].abs().gt(0.1).all())


def test_rows_sum_to_1_and_empty_rows_stay_0() -> None:
    graph = listed([(0, 1)], 3)
    graph = replace(graph, features=torch.tensor([[1.0, 3], [0, 0], [-1, 1]]), feature_names=("a", "b"))
    rows = GraphInputs(scale="rows", num_walks=0, degrees=False, positions="none")
    assert rows.prepare(graph, rows.learn(graph)).features.tolist() == [[0.25, 0.75], [0, 0], [-0.5, 0.5]]
    plain = GraphInputs(scale="none", num_walks=0, positions="none")
    found = plain.prepare(graph, plain.learn(graph)).features
    assert torch.equal(found[:, :2], graph.features)
    torch.testing.assert_close(found[:, 2].mean(), torch.tensor(0.0))


def test_features_of_edges_are_standardised(tmp_path: Path) -> None:
    graph = open_graphs(write_csv(tmp_path))
    found = BARE.prepare(graph, BARE.learn(graph)).edge_features
    assert found is not None
    torch.testing.assert_close(found.mean(0), torch.zeros(1), atol=1e-6, rtol=0)
    torch.testing.assert_close(found.std(0, correction=0), torch.ones(1))


def test_weights_sum_to_1_in_each_graph(tmp_path: Path) -> None:
    nodes = "graph,id,weight\na,1,1\na,2,3\nb,1,5\nb,2,0\n"
    graphs = open_graphs(
        write_several(
            tmp_path, nodes=nodes, edges="graph,source,target\na,1,2\nb,1,2\n", graphs="graph,label\na,x\nb,y\n"
        )
    )
    inputs = GraphInputs(positions="none")
    weights = inputs.prepare(graphs, inputs.learn(graphs)).weights
    assert weights is not None
    assert weights.tolist() == [0.25, 0.75, 1.0, 0.0]


def test_positions_depend_on_their_own_graph_alone() -> None:
    """Other graphs of a set change nothing; a node without edges lies at 0."""
    both = open_two()
    inputs = GraphInputs(num_positions=2)
    preparation = inputs.learn(both)
    found = inputs.prepare(both, preparation).pos
    alone = [inputs.prepare(both.select(torch.tensor([i])), preparation).pos for i in range(2)]
    assert found is not None
    for i, pos in enumerate(alone):
        assert pos is not None
        torch.testing.assert_close(found[both.node_offsets[i] : both.node_offsets[i + 1]], pos)
    assert found[3].tolist() == [0, 0]
    assert preparation.pos_dim == 2


def test_positions_given_by_the_data() -> None:
    graph = listed([(0, 1)], 2)
    given = GraphInputs(positions="given")
    with refused(ValueError, "the graphs have no positions; expected an array 'pos'"):
        given.learn(graph)
    placed = replace(graph, pos=torch.rand(2, 3))
    preparation = given.learn(placed)
    assert preparation.pos_dim == 3
    with refused(ValueError, "positions have 2 coordinates; the model knows 3"):
        given.prepare(replace(graph, pos=torch.rand(2, 2)), preparation)


def test_misfits_are_refused() -> None:
    graph = listed([(0, 1)], 2)
    with refused(ValueError, "nodes have no features; pass --task.inputs.num-walks or --task.inputs.degrees"):
        BARE.learn(replace(graph, features=torch.zeros(2, 0), feature_names=()))
    with refused(ValueError, "the features are other; the model knows number"):
        BARE.prepare(replace(graph, feature_names=("other",)), BARE.learn(graph))
    refusals: tuple[tuple[dict[str, Any], str], ...] = (
        ({"scale": "all"}, "scale is 'all'; expected one of standard, rows, none"),
        ({"positions": "random"}, "positions is 'random'; expected one of laplacian, given, none"),
        ({"num_walks": -1}, "num_walks must be at least 0; got -1"),
        ({"num_positions": 0}, "num_positions must be at least 1; got 0"),
        ({"positions": "none", "num_positions": 4}, "num_positions=4 has no effect with positions='none'"),
        ({"positions": "given", "flip_signs": False}, "flip_signs=False has no effect with positions='given'"),
        ({"positions": "none", "adds_positions": True}, "adds_positions=True has no effect with positions='none'"),
    )
    for given, message in refusals:
        with refused(ValueError, message):
            GraphInputs(**given)


def test_a_batch_is_padded(tmp_path: Path) -> None:
    graphs = open_graphs(write_tu(tmp_path))
    inputs = GraphInputs(positions="none")
    prepared = inputs.prepare(graphs, inputs.learn(graphs))
    batch = batch_of(prepared)
    assert batch["edge_index"].tolist() == [[[0, 1, 1, 2], [1, 0, 2, 1]], [[0, 1, -1, -1], [1, 0, -1, -1]]]
    assert batch["mask"].tolist() == [[True] * 3, [True, True, False]]
    assert torch.equal(batch["features"][0], prepared.features[:3])
    assert torch.equal(batch["features"][1, :2], prepared.features[3:])
    assert prepared.edge_features is not None
    assert torch.equal(batch["edge_features"][1, :2], prepared.edge_features[4:])
    assert batch["features"][1, 2].tolist() == [0] * prepared.features.shape[1]
    assert "mask" not in batch_of(prepared.select(torch.tensor([1])))
    assert graphs_in(batch).weights is None


def of_features(features: torch.Tensor, edge_features: torch.Tensor | None = None) -> GraphSet:
    """A line of nodes with `features`, and edges with `edge_features`."""
    n = len(features)
    graph = listed([(i, i + 1) for i in range(n - 1)], n)
    if edge_features is not None:
        graph = replace(graph, edge_features=edge_features, edge_feature_names=("bond",))
    return replace(graph, features=features, feature_names=tuple(f"f{c}" for c in range(features.shape[1])))


def test_kinds_come_from_all_features_from_indicators_or_from_none() -> None:
    atom, charge = torch.arange(100) % 4, (torch.arange(100) % 2).float()
    marks = torch.nn.functional.one_hot(atom, 4).float()
    place = torch.randn(100, 1)
    for features, expected in (
        (atom[:, None].float(), ("f0",)),
        (torch.cat([marks, charge[:, None] - 0.5], 1), ("f0", "f1", "f2", "f3", "f4")),
        (torch.cat([place, marks], 1), ("f1", "f2", "f3", "f4")),  # positions differ between all nodes
        (place, ()),
        ((torch.rand(100, 20) < 0.5).float(), ()),  # many words do so too
        ((torch.arange(100.0) % 10)[:, None], ("f0",)),
        ((torch.arange(100.0) % 11)[:, None], ()),  # more than the square root of 100
        (torch.zeros(100, 0), ()),
    ):
        kinds = Kinds.of(of_features(features))
        assert kinds == Kinds(features=expected, edge_features=())
        found = kinds.added_to(of_features(features)).kinds
        assert found is not None
        rows = features[:, [int(name[1:]) for name in expected]]
        assert torch.equal(found[:, None] == found, (rows[:, None] == rows).all(2))
    bonds = (torch.arange(198) % 3).float()[:, None]
    for values, expected in ((bonds, ("bond",)), (torch.randn(198, 1), ())):
        graph = of_features(place, values)
        kinds = Kinds.of(graph)
        assert kinds == Kinds(features=(), edge_features=expected)
        found = kinds.added_to(graph).edge_kinds
        assert found is not None
        assert len(found.unique()) == (3 if expected else 1)
    assert kinds.added_to(of_features(place)).edge_kinds is None


def test_kinds_come_from_raw_features() -> None:
    graph = of_features(torch.tensor([[1.0], [2], [4], [2]] * 5))
    inputs = GraphInputs(sizes=True, positions="none")
    silent, telling = inputs.learn(graph), inputs.learn(graph, with_kinds=True)
    assert inputs.prepare(graph, silent).kinds is None
    assert "kinds" not in batch_of(inputs.prepare(graph, silent))
    assert replace(telling, kinds=None) == silent
    found = inputs.prepare(graph, telling)
    assert found.kinds is not None
    assert len(found.kinds.unique()) == 3  # degrees, walks and sizes separate more nodes
    assert len(found.features.unique(dim=0)) > 3
    other = of_features(torch.tensor([[4.0], [3]]))
    kinds = inputs.prepare(other, telling).kinds  # features are standardised by the training graphs, and kinds are not
    assert kinds is not None
    assert kinds[0] == found.kinds[2]
    assert kinds[1] not in found.kinds


def test_a_batch_has_kinds() -> None:
    graph = open_two()
    graph = replace(graph, edge_features=torch.arange(12.0)[:, None] // 4, edge_feature_names=("bond",))
    inputs = GraphInputs(positions="none")
    prepared = inputs.prepare(graph, inputs.learn(graph, with_kinds=True))
    batch = graphs_in(batch_of(prepared))
    assert prepared.kinds is not None
    assert prepared.edge_kinds is not None
    assert batch.kinds is not None
    assert batch.edge_kinds is not None
    assert torch.equal(batch.kinds, prepared.kinds.view(2, 4))
    assert torch.equal(batch.edge_kinds[0, :4], prepared.edge_kinds[:4])
    assert torch.equal(batch.edge_kinds[1], prepared.edge_kinds[4:])
    assert len(prepared.edge_kinds.unique()) == 3


def open_two() -> GraphSet:
    """A line of three nodes beside one without edges, and a triangle with a tail."""
    return Listed(
        graph=np.array([0] * 4 + [1] * 4),
        names=["a", "b"],
        features=np.ones((8, 1)),
        feature_names=["one"],
        edges=np.array([[0, 1, 4, 5, 6, 6], [1, 2, 5, 6, 4, 7]]),
        node_place=str,
        edge_place=str,
    ).graphs()


@pytest.mark.parametrize(("name", "parts", "count"), [("weights", "nodes", 3), ("edge_weights", "edges", 4)])
def test_weights_must_be_present_exactly_if_they_were_in_training(name: str, parts: str, count: int) -> None:
    plain, inputs = listed([(0, 1), (1, 2)], 3), GraphInputs(positions="none")
    weighted = replace(plain, **{name: torch.ones(count)})
    message = f"{parts} have no weights; in training they had weights: give them weights"
    with refused(ValueError, message):
        inputs.prepare(plain, inputs.learn(weighted))
    with refused(ValueError, f"{parts} have weights; in training they had no weights: leave the weights out"):
        inputs.prepare(weighted, inputs.learn(plain))
    alone = listed([], 3)
    if name == "edge_weights":
        assert (
            inputs.prepare(alone, inputs.learn(weighted)).edge_weights is None
        )  # there are no edges, so none lacks a weight


def test_features_with_the_names_of_structural_ones_get_unique_names(tmp_path: Path) -> None:
    """Inputs of equal names would be ambiguous when a run starts from another or reports its inputs."""
    tables = {"nodes": "id,degree,size,size of the graph\na,1,5,2\nb,2,6,3\nc,4,7,5\n", "edges": "source,target\na,b\n"}
    graph = open_graphs(write_csv(tmp_path, **tables))
    inputs = GraphInputs(num_walks=0, sizes=True)
    names = inputs.names(inputs.learn(graph))
    found = ("degree of the graph", "size of the graph of the graph")
    assert names == ("degree", "size", "size of the graph", *found)
