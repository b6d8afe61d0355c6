"""Colours against nodes coloured one by one, with nested tuples, and inputs that do not change the counts."""

from collections import Counter, defaultdict
from typing import Any

import pytest
import torch
from torch import Tensor

from fredholm.domains import Graph
from fredholm.encoders import Graph as GraphEncoder
from fredholm.encoders import GraphBatch
from fredholm.models.fitted.graphs.weisfeiler_lehman import ColourCounts, Coloured, colours, kinds_of
from tests.refusals import refused

MASK = 2**64 - 1


def batch(size: int = 8, nodes: int = 7, edges: int = 12, *, weighed: bool = True) -> GraphBatch:
    """Graphs of 1 to `nodes` nodes, with loops, repeated edges and, if weighted, nodes and edges of weight 0."""
    counts = torch.arange(size) % nodes + 1
    ends = torch.full((size, 2, edges), -1)
    for i, count in enumerate(counts.tolist()):
        own = 0 if i == nodes - 1 else edges - i % 3
        ends[i, :, :own] = torch.randint(count, (2, own))
    mask = torch.arange(nodes) < counts[:, None]
    weights = mask * torch.where(torch.rand(size, nodes) < 0.2, 0.0, torch.rand(size, nodes) + 0.1)
    weights[:, 0] += 0.1
    return GraphBatch(
        torch.randn(size, nodes, 1),
        ends,
        torch.zeros(size, nodes, 1),
        mask,
        torch.where(torch.rand(size, edges) < 0.2, 0.0, torch.rand(size, edges)) if weighed else None,
        None,
        weights if weighed else None,
        torch.randint(2, (size, nodes)),
        torch.randint(2, (size, edges)),
    )


def domain_of(graphs: GraphBatch) -> Graph:
    domain = GraphEncoder(1, None, 1)(graphs)[1]
    assert isinstance(domain, Graph)
    return domain


def counted(counts: ColourCounts, graphs: GraphBatch) -> Tensor:
    return counts(graphs, domain_of(graphs), torch.float32)


def chosen(graphs: GraphBatch, num_colours: int = 500, depth: int = 2, of: Coloured = "nodes") -> ColourCounts:
    counts = ColourCounts(num_colours, depth, of=of)
    counts.choose([(graphs, domain_of(graphs))])
    return counts


def by_tuples(graphs: GraphBatch, depth: int, of: Coloured = "nodes") -> list[defaultdict[Any, float]]:
    """The counts of each graph, one by one: a colour is its depth and everything it was made of."""
    found = []
    for i, features in enumerate(graphs.features):
        mask = [True] * len(features) if graphs.mask is None else graphs.mask[i].tolist()
        masses = [float(own) for own in mask] if graphs.weights is None else graphs.weights[i].tolist()
        nodes = [v for v, own in enumerate(mask) if own and masses[v] > 0]
        edges = []
        for j, (w, v) in enumerate(graphs.edge_index[i].T.tolist()):
            weight = 1.0 if graphs.edge_weights is None else float(graphs.edge_weights[i, j])
            if w in nodes and v in nodes and weight > 0:
                edges.append((w, v, 0 if graphs.edge_kinds is None else int(graphs.edge_kinds[i, j])))
        mean = sum(masses[v] for v in nodes) / len(nodes)
        colour: dict[int, Any] = {v: (0, 0 if graphs.kinds is None else int(graphs.kinds[i, v])) for v in nodes}
        counts: defaultdict[Any, float] = defaultdict(float)
        for t in range(depth + 1):
            if of == "edges":
                for w, v, kind in edges:
                    counts[colour[w], kind, colour[v]] += 1
            else:
                for v in nodes:
                    counts[colour[v]] += masses[v] / mean
            colour = {
                v: (t + 1, colour[v], tuple(sorted((kind, colour[w]) for w, end, kind in edges if end == v)))
                for v in nodes
            }
        found.append(counts)
    return found


@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("bare", [(), ("kinds",), ("edge_kinds",), ("mask", "weights", "edge_weights")])
@pytest.mark.parametrize("of", ["nodes", "edges"])
def test_counts_equal_those_of_nodes_or_edges_one_by_one(depth: int, bare: tuple[str, ...], of: Coloured) -> None:
    graphs = batch()
    if "mask" in bare:
        graphs = graphs._replace(edge_index=torch.randint(7, (8, 2, 12)))
    graphs = graphs._replace(**dict.fromkeys(bare))
    expected = by_tuples(graphs, depth, of)
    found = counted(chosen(graphs, depth=depth, of=of), graphs)
    # up to the names of colours: the same columns in some order
    names = sorted({name for counts in expected for name in counts}, key=repr)
    table = torch.tensor([[counts[name] for name in names] for counts in expected])
    assert int((found > 0).any(0).sum()) == len(names) > depth
    columns = [
        sorted(part.T.tolist())
        for part in (found[:, (found > 0).any(0)].square().round(decimals=3), table.round(decimals=3))
    ]
    torch.testing.assert_close(*map(torch.tensor, columns), rtol=1e-3, atol=2e-3)


def test_order_and_padding_change_nothing() -> None:
    graphs = batch()
    counts = chosen(graphs)
    expected = counted(counts, graphs)
    order = torch.randperm(7)
    rank = torch.cat([order.argsort(), torch.tensor([-1])])
    turned = torch.randperm(12)
    assert graphs.mask is not None
    assert graphs.weights is not None
    assert graphs.edge_weights is not None
    assert graphs.kinds is not None
    assert graphs.edge_kinds is not None
    other = GraphBatch(
        graphs.features[:, order],
        rank[graphs.edge_index][..., turned],
        graphs.pos,
        graphs.mask[:, order],
        graphs.edge_weights[:, turned],
        None,
        graphs.weights[:, order],
        graphs.kinds[:, order],
        graphs.edge_kinds[:, turned],
    )
    torch.testing.assert_close(counted(counts, other), expected)
    padded = graphs._replace(kinds=torch.where(graphs.mask, graphs.kinds, 5))
    torch.testing.assert_close(counted(counts, padded), expected)
    alone = GraphBatch(*(None if part is None else part[2:3, ...] for part in graphs))  # pyright: ignore[reportArgumentType]
    torch.testing.assert_close(counted(counts, alone), expected[2:3])


def test_weights_multiply_counts_and_weight_0_is_ignored() -> None:
    ends = torch.tensor([[[0, 1, 1, 2], [1, 0, 2, 1]]])
    graphs = GraphBatch(torch.zeros(1, 3, 1), ends, torch.zeros(1, 3, 1), weights=torch.tensor([[1.0, 3.0, 0.0]]))
    pair = GraphBatch(torch.zeros(1, 2, 1), ends[..., :2], torch.zeros(1, 2, 1))
    counts = chosen(pair)
    assert counted(counts, pair).square().unique().tolist() == pytest.approx([0.0, 2.0])  # both nodes are alike
    assert counted(counts, graphs).square().sum() == pytest.approx(3 * 2.0)  # three depths, 1/2 + 3/2 nodes
    strange = graphs._replace(kinds=torch.tensor([[0, 0, 9]]))
    assert torch.equal(chosen(strange).known, counts.known)
    heavy = graphs._replace(weights=100 * graphs.weights) if graphs.weights is not None else graphs
    torch.testing.assert_close(counted(counts, heavy), counted(counts, graphs))
    for weight, same in ((0.3, True), (0.0, False)):  # an edge counts or not, whatever its weight
        weighed = pair._replace(edge_weights=torch.tensor([[1.0, weight]]))
        assert torch.allclose(counted(counts, weighed), counted(counts, pair)) == same


def test_single_nodes_and_graphs_without_edges() -> None:
    none = torch.zeros(2, 2, 0, dtype=torch.int64)
    graphs = GraphBatch(
        torch.zeros(2, 3, 1), none, torch.zeros(2, 3, 1), torch.tensor([[True] * 3, [True, False, False]])
    )
    found = counted(chosen(graphs), graphs).square()
    assert found.sum(1).tolist() == pytest.approx([9.0, 3.0])
    assert int((found > 0).any(0).sum()) == 3  # one colour per depth
    deep = counted(chosen(graphs, depth=0), graphs).square()
    assert deep.sum(1).tolist() == pytest.approx([3.0, 1.0])


def test_the_most_common_colours_are_kept_and_others_count_nothing() -> None:
    graphs = batch(40, weighed=False)
    expected, depth = by_tuples(graphs, 2), 2
    in_graphs = Counter(name for counts in expected for name in counts)
    for number in (3, 10, 30):
        found = counted(chosen(graphs, number, depth), graphs)
        seen = sorted((found > 0).sum(0).tolist(), reverse=True)
        assert seen == sorted(in_graphs.values(), reverse=True)[:number]
    alike = GraphBatch(*(None if part is None else part[:1] for part in batch(1)))  # pyright: ignore[reportArgumentType]
    shallow = chosen(alike, 1)  # its three colours occur in one graph each
    assert counted(shallow, alike).sum() > 0
    assert torch.equal(shallow.known, chosen(alike, 1, depth=0).known)
    strange = graphs._replace(kinds=torch.full((40, 7), 99))
    assert not counted(chosen(graphs), strange).any()
    assert not counted(ColourCounts(5, 2), graphs).any()  # before any are chosen
    few = chosen(graphs, 500)
    few.choose([(alike, domain_of(alike))])
    assert torch.equal(few.known, chosen(alike).known)  # none is left of the earlier ones


def mixed(x: int) -> int:
    """The next number of SplitMix64 after the state x, in Python integers."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def test_colours_are_the_same_on_every_machine() -> None:
    assert mixed(0) == 0xE220A8397B1DCDAF  # the first number of the published generator for seed 0
    kinds, bond, signed = [3, -7, 2**62], 5, lambda x: x - 2**64 if x >= 2**63 else x
    first = [mixed(kind & MASK) for kind in kinds]
    ends = torch.tensor([[0, 2], [1, 1]])
    around = sum(mixed((3 * mixed(bond) + first[w]) & MASK) for w in (0, 2)) & MASK
    second = [mixed((own + 3 * mixed(expected)) & MASK) for own, expected in zip(first, (0, around, 0), strict=True)]
    found = colours(torch.tensor(kinds), ends[0], ends[1], torch.full((2,), bond), 1)
    assert found.tolist() == [[signed(x) for x in first], [signed(x) for x in second]]


def test_kinds_number_the_different_rows() -> None:
    rows = torch.tensor([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0], [0.0, 2.0], [-0.0, 2.0], [1e-30, 2.0]])
    kinds = kinds_of(rows).tolist()
    assert kinds[0] == kinds[2]
    assert kinds[3] == kinds[4]
    assert len(set(kinds)) == 4
    assert kinds_of(rows[:, :0]).tolist() == [0] * 6


def test_weights_of_nodes_have_gradients() -> None:
    graphs = batch()
    assert graphs.weights is not None
    counts, weights = chosen(graphs), graphs.weights.double().requires_grad_()
    found = counts(graphs, domain_of(graphs._replace(weights=weights)), torch.float64)
    assert (found == 0).any()
    found.sum().backward()
    assert weights.grad is not None
    assert weights.grad.isfinite().all()
    assert weights.grad.any()


def test_bad_arguments_are_refused() -> None:
    graphs = batch()
    assert graphs.kinds is not None
    with refused(ValueError, "models.NeighbourhoodBank", "kinds must be int64 (8, 7); got (8, 7), torch.float32"):
        chosen(graphs._replace(kinds=graphs.kinds.float()))
    with refused(ValueError, "edge_kinds must be int64 (8, 12); got (8, 7)"):
        chosen(graphs._replace(edge_kinds=graphs.kinds))
