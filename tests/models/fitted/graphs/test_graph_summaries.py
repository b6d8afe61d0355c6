"""Summaries of graphs, against loops over nodes, edges, triples and paths."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from fredholm.domains import Graph
from fredholm.models.fitted.graphs import graph_summaries
from fredholm.models.fitted.graphs.graph_summaries import (
    DEGREES,
    MOST_NODES,
    MOST_PAIRS,
    OF_PAIR,
    may_miss,
    num_summaries,
    summarise_graphs,
)

SHAPE = 13 + DEGREES


def both_ways(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return [*pairs, *((b, a) for a, b in pairs)]


def drawn(count: int, pairs: int, seed: int) -> list[tuple[int, int]]:
    ends = torch.randint(count, (pairs, 2), generator=torch.Generator().manual_seed(seed)).tolist()
    return both_ways(sorted({(min(a, b), max(a, b)) for a, b in ends if a != b}))


RING = both_ways([(i, (i + 1) % 6) for i in range(6)])
STAR = both_ways([(0, i) for i in range(1, 8)])
APART = both_ways([(0, 1), (2, 3), (3, 4), (2, 4)])
ONE_WAY = [(0, 1), (1, 2), (2, 0), (0, 3), (3, 0)]
SHAPES = {
    "ring": (6, RING),
    "star": (8, STAR),
    "apart": (6, APART),
    "one way": (4, ONE_WAY),
    "alone": (1, []),
    "no edges": (3, []),
    "dense": (9, drawn(9, 60, 0)),
    "thin": (12, drawn(12, 14, 1)),
}


def laid(shapes: list[tuple[int, list[tuple[int, int]]]], **more: Any) -> Graph:
    size, most = max(n for n, _ in shapes), max(len(edges) for _, edges in shapes)
    ends = torch.full((len(shapes), 2, most), -1)
    for row, (_, edges) in zip(ends, shapes, strict=True):
        if edges:
            row[:, : len(edges)] = torch.tensor(edges).T
    mask = torch.arange(size) < torch.tensor([n for n, _ in shapes])[:, None]
    return Graph(ends, size, pos=torch.zeros(len(shapes), size, 1), mask=mask, **more)


def shape_by_loop(n: int, edges: list[tuple[int, int]]) -> list[float]:
    degree = [sum(b == v for _, b in edges) for v in range(n)]
    near = {v: {b for a, b in edges if a == v} | {a for a, b in edges if b == v} for v in range(n)}
    mean = sum(degree) / n
    lengths = list[int]()
    groups = set[frozenset[int]]()
    for v in range(n):
        level, seen, length = {v}, {v}, 0
        while level := {w for u in level for w in near[u]} - seen:
            length += 1
            lengths += [length] * len(level)
            seen |= level
        groups.add(frozenset(seen))
    pairs = sum(len(each) for each in near.values()) / 2
    triangles = sum(b in near[a] and c in near[a] and c in near[b] for a, b, c in itertools.combinations(range(n), 3))
    paths = sum(len(each) * (len(each) - 1) / 2 for each in near.values())
    ends = torch.tensor([[degree[a], degree[b]] for a, b in edges], dtype=torch.float64).reshape(-1, 2).T
    alike = torch.corrcoef(ends)[0, 1].nan_to_num(0.0) if len(edges) > 1 else 0.0
    return [
        math.log(n),
        math.log1p(len(edges)),
        mean,
        math.sqrt(sum((d - mean) ** 2 for d in degree) / n),
        max(degree),
        *(float(sum(min(d, DEGREES - 1) == k for d in degree)) for k in range(DEGREES)),
        len(groups),
        pairs - n + len(groups),
        triangles,
        3 * triangles / paths if paths else 0,
        len(edges) / pairs if pairs else 0,
        float(alike),
        sum(lengths) / len(lengths) if lengths else 0,
        max(lengths, default=0),
    ]


def test_summaries_of_the_shape_equal_those_of_loops() -> None:
    shapes = list(SHAPES.values())
    domain = laid(shapes)
    found = summarise_graphs(torch.zeros(len(shapes), domain.num_points, 1), domain, None, 1)[:, :SHAPE]
    expected = torch.tensor([shape_by_loop(*each) for each in shapes], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_chunks_of_many_graphs_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = list(SHAPES.values())
    domain = laid(shapes)
    whole = summarise_graphs(torch.zeros(len(shapes), domain.num_points, 1), domain, None, 1)
    for at_once in (1, 7, 100):
        monkeypatch.setattr(graph_summaries, "_AT_ONCE", at_once)
        found = summarise_graphs(torch.zeros(len(shapes), domain.num_points, 1), domain, None, 1)
        torch.testing.assert_close(found, whole)


def test_features_are_summarised_with_weights() -> None:
    draw = torch.Generator().manual_seed(2)
    shapes = [SHAPES["thin"], SHAPES["ring"], SHAPES["alone"]]
    size, most = 12, max(len(edges) for _, edges in shapes)
    weights = torch.rand(3, size, generator=draw) + 0.1
    edge_weights, of_edges = torch.rand(3, most, generator=draw), torch.randn(3, most, 2, generator=draw)
    domain = laid(shapes, weights=weights, edge_weights=edge_weights, edge_features=of_edges)
    values = torch.randn(3, size, 2, generator=draw)
    found = summarise_graphs(values, domain, domain.edge_features, 6)
    assert found.shape[1] == num_summaries(2, 2, 6)
    for i, (n, edges) in enumerate(shapes):
        mass = (weights[i, :n] / weights[i, :n].sum()).double()
        h = values[i, :n].double()
        mean = mass @ h
        spread = (mass @ (h - mean) ** 2).sqrt()
        e, w = of_edges[i, : len(edges)].double(), edge_weights[i, : len(edges)].double()
        along = torch.zeros(2, dtype=torch.float64)
        if edges:
            both = torch.stack([(h[a] - mean) * (h[b] - mean) for a, b in edges])
            along = both.mean(0) / spread**2
        nothing = torch.full((2,), torch.nan, dtype=torch.float64)
        of_e: list[Tensor] = (
            [e.mean(0), e.sum(0), e.std(0, correction=0), e.amax(0), e.amin(0)]
            if edges
            else [torch.zeros(2, dtype=torch.float64)] * 3 + [nothing] * 2
        )
        of_w = torch.stack([w.mean(), w.sum(), w.std(correction=0)]) if edges else torch.zeros(3, dtype=torch.float64)
        of_both = torch.zeros(24, dtype=torch.float64)
        if edges:
            ends = [(abs(h[a] - h[b]), h[a] + h[b], (h[a] - mean) * (h[b] - mean)) for a, b in edges]
            kinds = [torch.stack(kind) for kind in zip(*ends, strict=True)]
            correlation = torch.corrcoef(torch.cat([e, *kinds], 1).T)[:2, 2:]
            of_both = torch.cat(
                [part for k, kind in enumerate(kinds) for part in (e.T @ kind, correlation[:, 2 * k : 2 * k + 2])]
            ).flatten()
        expected = torch.cat([of_w, mean, n * mean, spread, h.amax(0), h.amin(0), along, of_both, *of_e])
        torch.testing.assert_close(found[i, SHAPE:], expected, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert set(found[2].isnan().nonzero()[:, 0].tolist()) <= set(may_miss(2, 2, 6))


@pytest.mark.parametrize("each", [0, 1, 3, 4, 6])
def test_a_smaller_number_of_summaries_per_feature(each: int) -> None:
    domain = laid([SHAPES["ring"], SHAPES["no edges"]], edge_features=torch.randn(2, 12, 2))
    values = torch.randn(2, 6, 3)
    whole = summarise_graphs(values, domain, domain.edge_features, 6)
    found = summarise_graphs(values, domain, domain.edge_features, each)
    first, both = SHAPE + 3, 3 * 2 * OF_PAIR
    assert found.shape[1] == num_summaries(3, 2, each) == first + 3 * each + both + 2 * min(each, 5)
    torch.testing.assert_close(found[:, : first + 3 * each], whole[:, : first + 3 * each])
    of_edges = found[:, first + 3 * each :]
    torch.testing.assert_close(of_edges, whole[:, first + 18 : first + 18 + of_edges.shape[1]], equal_nan=True)
    assert found[1].isnan().nonzero()[:, 0].tolist() == list(may_miss(3, 2, each)[2:])


def test_many_pairs_of_features_are_not_summarised_together() -> None:
    domain = laid([SHAPES["ring"]], edge_features=torch.randn(1, 12, 3))
    for count, both in ((MOST_PAIRS // 3, MOST_PAIRS // 3 * 3 * OF_PAIR), (MOST_PAIRS // 3 + 1, 0)):
        found = summarise_graphs(torch.randn(1, 6, count), domain, domain.edge_features, 1)
        assert found.shape[1] == num_summaries(count, 3, 1) == SHAPE + 3 + count + both + 3


def test_the_order_of_nodes_and_edges_changes_nothing() -> None:
    n, edges = SHAPES["thin"]
    values = torch.randn(1, n, 2)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(3)).tolist()
    moved = [(order[a], order[b]) for a, b in reversed(edges)]
    other = torch.empty_like(values)
    other[0, order] = values[0]
    found = summarise_graphs(values, laid([(n, edges)]), None, 6)
    torch.testing.assert_close(summarise_graphs(other, laid([(n, moved)]), None, 6), found, rtol=1e-12, atol=1e-12)


def test_nodes_and_edges_of_weight_0_are_ignored() -> None:
    n, edges = SHAPES["thin"]
    more = [*edges, (0, n), (n, 0), (n, 3), (2, 7), (7, 2)]
    weights, of_edges = torch.ones(1, n + 1), torch.ones(1, len(more))
    weights[0, n], of_edges[0, -2:] = 0, 0
    edge_weights = torch.ones(1, len(edges))
    values = torch.randn(1, n + 1, 2)
    found = summarise_graphs(values, laid([(n + 1, more)], weights=weights, edge_weights=of_edges), None, 6)
    expected = summarise_graphs(values[:, :n], laid([(n, edges)], edge_weights=edge_weights), None, 6)
    torch.testing.assert_close(found, expected)


def test_paths_are_not_counted_in_large_graphs() -> None:
    shapes = [(n, both_ways([(i, i + 1) for i in range(n - 1)])) for n in (MOST_NODES, MOST_NODES + 1)]
    domain = laid(shapes)
    found = summarise_graphs(torch.zeros(2, MOST_NODES + 1, 1), domain, None, 1)
    torch.testing.assert_close(found[0, SHAPE - 1], torch.tensor(MOST_NODES - 1.0, dtype=torch.float64))
    torch.testing.assert_close(found[0, SHAPE - 2], torch.tensor((MOST_NODES + 1) / 3, dtype=torch.float64))
    assert bool(found[1, SHAPE - 2 : SHAPE].isnan().all())
    assert bool(found[:, : SHAPE - 2].isfinite().all())


def test_variation_by_rounding_alone_has_no_deviation() -> None:
    n, edges = SHAPES["thin"]
    weights = torch.rand(20, n, generator=torch.Generator().manual_seed(4)) + 0.1
    values = torch.full((20, n, 1), 0.7) + torch.arange(20)[:, None, None]
    found = summarise_graphs(values, laid([(n, edges)] * 20, weights=weights), None, 6)[:, SHAPE + 3 :]
    assert found[:, 2].tolist() == [0.0] * 20
    assert found[:, 5].tolist() == [0.0] * 20
