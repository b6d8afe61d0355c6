import re
from typing import Any

import pytest
import torch

from fredholm.domains import Graph, PairGroup, PairList, Points, Union, undirected
from tests.refusals import refused

EDGES = torch.tensor([[1, 2, 0, 2, 2, 3, 3, 3], [0, 0, 2, 3, 3, 3, 1, 2]])
POS = torch.rand(5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def adjacency(graph: Graph, density: torch.Tensor | None = None) -> torch.Tensor:
    """Matrix (target, source) of the summed densities of all edges."""
    density = torch.ones(graph.num_edges, dtype=torch.float64) if density is None else density
    return graph.edge_pairs(density).dense(torch.float64)[:, 0]


def test_edges_are_pairs_of_a_target_and_its_sources() -> None:
    expected = torch.zeros(5, 5, dtype=torch.float64)
    for source, target in EDGES.T.tolist():
        expected[target, source] += 1  # the edge from 2 to 3 occurs twice
    assert torch.equal(adjacency(Graph(EDGES, 5, pos=POS))[0], expected)


def test_groups_list_every_edge_once_and_pad_by_less_than_a_third() -> None:
    generator = torch.Generator().manual_seed(1)
    target = (200 * torch.rand(3000, generator=generator).square()).long()  # nodes of very different degrees
    source = torch.randint(200, (3000,), generator=generator)
    graph = Graph(torch.stack([source, target]), 200, pos=torch.rand(200, 1))
    pairs = graph.edge_pairs(torch.arange(3000.0) + 1)
    listed = torch.cat([group.weights.flatten() for group in pairs.groups])
    assert torch.equal(listed[listed > 0].sort().values, torch.arange(3000.0) + 1)
    assert pairs.num_pairs < 4 / 3 * 3000
    queries = torch.cat([group.queries for group in pairs.groups])
    assert torch.equal(queries.sort().values, target.unique())


def test_graphs_of_a_batch_are_padded_apart() -> None:
    batched = torch.full((2, 2, 8), -1)
    batched[0] = EDGES
    batched[1, :, :3] = EDGES[:, :3]
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    weights = torch.rand(2, 8, dtype=torch.float64) + 0.1
    features = torch.rand(2, 8, 3, dtype=torch.float64)
    graph = Graph(batched, 5, pos=POS.expand(2, -1, -1), mask=mask, edge_weights=weights, edge_features=features)
    assert graph.batch_size == 2
    assert graph.num_edges == 11
    assert graph.edge_weights is not None
    found = adjacency(graph, graph.edge_weights)
    one = Graph(EDGES, 5, pos=POS, edge_weights=weights[0])
    assert one.edge_weights is not None
    assert torch.equal(found[0], adjacency(one, one.edge_weights)[0])
    expected = torch.zeros(5, 5, dtype=torch.float64)
    expected[EDGES[1, :3], EDGES[0, :3]] = weights[1, :3]
    assert torch.equal(found[1], expected)
    assert graph.edge_features is not None
    assert torch.equal(graph.edge_features, torch.cat([features[0], features[1, :3]]))


def test_positions_default_to_those_of_the_laplacian() -> None:
    path = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    graph = Graph(path, 4)
    assert graph.pos.shape == (4, 8)
    assert torch.equal(graph.pos[3], torch.zeros(8, dtype=graph.pos.dtype))
    assert graph.pos[0, 0].abs() > 0.1


@pytest.mark.parametrize(
    ("edges", "num_nodes"), [(torch.zeros(2, 0, dtype=torch.int64), 4), (torch.zeros(2, 0, dtype=torch.int64), 1)]
)
def test_a_graph_without_edges_has_no_pairs(edges: torch.Tensor, num_nodes: int) -> None:
    graph = Graph(edges, num_nodes)
    pairs = graph.edge_pairs(torch.ones(0))
    assert pairs.groups == ()
    assert not pairs.dense(torch.float64).any()


def test_a_shared_graph_lists_densities_of_each_entry() -> None:
    graph = Graph(EDGES, 5, pos=POS, edge_features=torch.arange(8.0, dtype=torch.float64)[:, None])
    density = torch.rand(3, 8, dtype=torch.float64)
    found = graph.edge_pairs(density)
    for entry, entry_density in enumerate(density):
        assert torch.equal(found.dense(torch.float64)[entry], graph.edge_pairs(entry_density).dense(torch.float64)[0])
    assert all(group.features is not None and len(group.features) == len(group.queries) for group in found.groups)


def test_to_and_restrict_keep_the_edges() -> None:
    graph = Graph(EDGES, 5, pos=POS, edge_weights=torch.ones(8))
    moved = graph.to("meta")
    assert moved.source.device.type == "meta"
    assert moved.edge_pairs(torch.ones(8, device="meta")).groups[0].points.device.type == "meta"
    fewer = graph.restrict(torch.tensor([True, True, False, True, True]))
    assert fewer.num_edges == 8
    assert torch.equal(adjacency(fewer), adjacency(graph))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"pos": torch.zeros(5, 2, device="meta")}, "edge_index is on cpu, pos on meta; move one"),
        (
            {"edge_index": torch.tensor([[0, 5], [1, 1]])},
            "Graph: edge 1 joins the nodes [5, 1]; there are nodes 0 to 4",
        ),
        ({"edge_index": torch.tensor([[0, -1], [1, 1]])}, "Graph: edge 1 joins the nodes [-1, 1]"),
        (
            {"edge_index": torch.tensor([[[0, 3], [1, -1]]]), "pos": POS[None]},
            "Graph: edge 1 joins the nodes [3, -1]",
        ),
        ({"edge_index": torch.tensor([[0.0], [1.0]])}, "edge_index must be int64 (2, E) or (B, 2, E)"),
        ({"edge_index": EDGES.T}, "edge_index must be int64 (2, E) or (B, 2, E)"),
        ({"edge_weights": torch.ones(7)}, "Graph: edge_weights must be float (8,), as the edges are; got (7,)"),
        ({"edge_weights": -torch.ones(8)}, "edge_weights must be >= 0"),
        ({"edge_features": torch.ones(8)}, "Graph: edge_features must be float (8,) and features"),
        ({"edge_features": torch.full((8, 1), torch.nan)}, "edge_features holds NaN"),
        ({"pos": POS[:4]}, "pos must have a row for each of the 5 nodes; got (4, 2)"),
        ({"edge_index": EDGES[None], "pos": None}, "a batch of graphs needs pos"),
        ({"pos": None}, "directed"),
        ({"edge_index": EDGES.expand(3, 2, 8), "pos": POS.expand(2, 5, 2)}, "edges are of 3 graphs, nodes of 2"),
    ],
)
def test_bad_graphs_are_refused(changed: dict[str, Any], message: str) -> None:
    arguments = {"edge_index": EDGES, "num_nodes": 5, "pos": POS} | changed
    with pytest.raises(ValueError, match=re.escape(message)):
        Graph(**arguments)


def test_listed_pairs_that_do_not_fit_are_refused() -> None:
    points = Points(POS)
    index = torch.zeros(1, 2, 3, dtype=torch.int64)
    listed = PairList.of_index(index, torch.ones(1, 2, 3), 5)
    with pytest.raises(ValueError, match="the list is for 4 points; the domain has 5"):
        points.list_pairs(listed._replace(num_points=4))
    with pytest.raises(ValueError, match="weighs pairs already"):
        points.weigh_pairs(torch.zeros(2, 5)).list_pairs(listed)
    with pytest.raises(ValueError, match="lists its pairs already"):
        points.list_pairs(listed).weigh_pairs(torch.zeros(2, 5))
    with pytest.raises(ValueError, match="weigh or list the pairs of the union itself"):
        Union(points.list_pairs(listed), points)
    three = PairList((PairGroup(torch.arange(6), index.expand(3, -1, -1).flatten(0, 1), torch.ones(6, 3)),), 3, 2, 5)
    with pytest.raises(ValueError, match="the list is for 3 entries; the domain has 2"):
        Points(POS.expand(2, -1, -1)).list_pairs(three)


def test_a_graph_built_while_tracing_is_refused() -> None:
    class Inside(torch.nn.Module):
        def forward(self, edges: torch.Tensor) -> torch.Tensor:
            return Graph(edges, 3).pos

    with pytest.raises(ValueError, match=r"which torch\.compile, torch\.export, vmap and tensors without values"):
        torch.export.export(Inside(), (torch.tensor([[0, 1, 2], [1, 2, 0]]),))


def test_a_list_of_edges_is_refused() -> None:
    edges = [(0, 1), (1, 2), (2, 0)]
    with refused(TypeError, "edge_index must be a tensor; got list; torch.as_tensor makes one"):
        Graph(edges, 3)  # pyright: ignore[reportArgumentType]
    with refused(ValueError, "got (3, 2), torch.int64; edge_index.T is that of a list of edges"):
        Graph(torch.as_tensor(edges), 3)
    assert Graph(undirected(torch.as_tensor(edges).T), 3).num_edges == 6
