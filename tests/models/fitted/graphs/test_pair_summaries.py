import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fredholm.models.fitted.graphs import pair_summaries
from fredholm.models.fitted.graphs.pair_summaries import (
    COMPARED,
    MOST_DIRECTIONS,
    MOST_OWN,
    RANKS,
    PairSummaries,
    num_of_pair,
)

DIRECTED = pytest.mark.parametrize("is_directed", [False, True])


def some_graph(size: int, is_directed: bool, share: float = 0.2) -> Tensor:
    torch.manual_seed(0)
    some = torch.rand(size, size) < share
    some[-1] = some[:, -1] = False  # an isolated node
    some = some & ~torch.eye(size, dtype=torch.bool)
    return (some if is_directed else some.triu() | some.triu().T).nonzero().T


def summaries_of(edges: Tensor, features: Tensor, pairs: Tensor, is_directed: bool) -> Tensor:
    directions = torch.linalg.qr(torch.randn(features.shape[1], MOST_DIRECTIONS))[0] if features.shape[1] > 64 else None
    directions = features.new_zeros(features.shape[1], 0) if directions is None else directions
    return PairSummaries(edges, features, directions, is_directed=is_directed).of(pairs)


@DIRECTED
def test_walks_degrees_and_path_counts_match_the_matrices(is_directed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    edges = some_graph(11, is_directed)
    leads = torch.zeros(11, 11, dtype=torch.float64)
    leads[edges[0], edges[1]] = 1
    joined = torch.maximum(leads, leads.T)
    d, o, i = joined.sum(1), leads.sum(1), leads.sum(0)
    over, over_o, over_i = (torch.diag(1 / each.clamp_min(1)) for each in (d, o, i))
    walk = [joined]
    for _ in range(7):
        walk.append(joined @ over @ walk[-1])
    common, mean, chance = joined @ joined, d.mean(), torch.outer(d, d).clamp_min(1)
    rare = joined @ torch.diag(1 / d.clamp_min(2).log()) @ joined
    got = [common.log1p(), (joined @ common).log1p(), rare.log1p()]
    steps = torch.full_like(common, 9)
    for k in (8, 5, 4, 3, 2):
        steps[walk[k - 1] > 0] = k
    for k in (2, 3, 4, 5, 8):
        got += [(mean * walk[k - 1]).log1p(), (d.sum() * walk[k - 1] / chance).log1p()]
    got += [common / (d[:, None] + d - common).clamp_min(1), steps]
    if is_directed:
        towards = leads @ over_i @ leads.T
        ways = [leads @ over @ leads, towards, leads.T @ over_o @ leads, leads.T @ over @ leads.T]
        got += [(mean * each).log1p() for each in (*ways, towards @ over_o @ leads, leads.T)]
    got += [d.log1p()[:, None] + d.log1p(), torch.minimum(d.log1p()[:, None], d.log1p())]
    if is_directed:
        for each in (o.log1p(), i.log1p()):
            got += [each[:, None].expand(11, 11), each.expand(11, 11)]
    pairs = torch.cartesian_prod(torch.arange(11), torch.arange(11))
    expected = torch.stack(got, 2).flatten(0, 1)
    for blocks in (pair_summaries.BLOCKS, (2, 4)):  # the second chunk of 4 nodes, so that the last one has 3
        monkeypatch.setattr(pair_summaries, "BLOCKS", blocks)
        ours = summaries_of(edges, torch.zeros(11, 0), pairs, is_directed)
        torch.testing.assert_close(ours[:, : expected.shape[1]], expected.float())
        assert ours.shape[1] == expected.shape[1] + 4 * len(RANKS) == num_of_pair(0, is_directed=is_directed)


@DIRECTED
def test_low_rank_sums_with_all_vectors_equal_the_edges(is_directed: bool) -> None:
    """With 13 nodes there are at most 16 values; with 4 the sum differs."""
    edges, pairs = some_graph(13, is_directed), torch.cartesian_prod(torch.arange(13), torch.arange(13))
    leads = torch.zeros(13, 13, dtype=torch.float64)
    leads[edges[0], edges[1]] = 1
    low = summaries_of(edges, torch.zeros(13, 0), pairs, is_directed)[:, -4 * len(RANKS) :].unflatten(1, (-1, 4))
    torch.testing.assert_close(low[:, 2, 0], leads.flatten().float(), atol=1e-6, rtol=0.0)
    assert not torch.allclose(low[:, 0, 0], leads.flatten().float(), atol=0.1)
    assert (low[:, :, 2:].abs() <= 1 + 1e-9).all()


@DIRECTED
def test_in_larger_graphs_low_rank_sums_are_close_to_the_exact_decomposition(
    is_directed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    group = torch.arange(600) % 3
    chance = torch.where(group[:, None] == (group + is_directed) % 3, 0.1, 0.005)
    some = torch.rand(600, 600) < chance
    edges = (some if is_directed else some.triu(1) | some.triu(1).T).nonzero().T
    pairs = torch.randint(600, (50, 2))
    monkeypatch.setattr(pair_summaries, "DENSE", 1000)
    exact = summaries_of(edges, torch.zeros(600, 0), pairs, is_directed)[:, -4 * len(RANKS)]
    monkeypatch.setattr(pair_summaries, "DENSE", 500)
    near = summaries_of(edges, torch.zeros(600, 0), pairs, is_directed)[:, -4 * len(RANKS)]
    assert float((exact - near).norm() / exact.norm()) < 0.1


@DIRECTED
@pytest.mark.parametrize("count", [3, 40, 70])
def test_summaries_of_features(is_directed: bool, count: int) -> None:
    edges, features = some_graph(9, is_directed), torch.randn(9, count)
    pairs = torch.tensor([[0, 3], [2, 1], [8, 0], [4, 4]])
    ours = summaries_of(edges, features, pairs, is_directed)
    assert ours.shape[1] == num_of_pair(count, is_directed=is_directed)
    assert bool(ours.isfinite().all())
    num_compared = {3: 3, 40: 40, 70: COMPARED}[count]
    of_features = ours[:, -((6 if is_directed else 4) + 2 * num_compared) :]
    own = (features - features.mean(0)).double()
    a, b = pairs.T
    torch.testing.assert_close(of_features[:, 1], F.cosine_similarity(own[a], own[b]).float())
    if count <= MOST_OWN:
        torch.testing.assert_close(of_features[:, -2 * count], (own[a, 0] * own[b, 0]).float())
        apart = own[a, -1] - own[b, -1]
        torch.testing.assert_close(of_features[:, -1], (apart if is_directed else apart.abs()).float())


def test_features_joined_by_edges_are_found_even_if_they_differ() -> None:
    """Nodes of kind 0 lead only to those of kind 1, and these to those of kind 2."""
    kind = torch.arange(30) % 3
    edges = torch.tensor([[a, b] for a in range(30) for b in range(30) if kind[b] == kind[a] + 1 and (a + b) % 2]).T
    pairs = torch.cartesian_prod(torch.arange(30), torch.arange(30))
    first = -(6 + 2 * 3)
    bilinear = summaries_of(edges, F.one_hot(kind).float(), pairs, True)[:, first]
    leads = kind[pairs[:, 1]] == kind[pairs[:, 0]] + 1
    assert float(bilinear[leads].min()) > 0.4
    assert float(bilinear[~leads].max()) < 0.1


def test_without_directions_the_order_of_a_pair_does_not_matter() -> None:
    edges, features, pairs = some_graph(12, False), torch.randn(12, 3), torch.randint(12, (20, 2))
    one, other = (summaries_of(edges, features, each, False) for each in (pairs, pairs.flip(1)))
    torch.testing.assert_close(one, other)
    edges = some_graph(12, True)
    one, other = (summaries_of(edges, features, each, True) for each in (pairs, pairs.flip(1)))
    assert not torch.allclose(one, other)


@DIRECTED
def test_a_graph_without_edges(is_directed: bool) -> None:
    ours = summaries_of(torch.zeros(2, 0, dtype=torch.int64), torch.ones(4, 2), torch.tensor([[0, 1]]), is_directed)
    assert bool(ours.isfinite().all())
    assert not math.isnan(float(ours.sum()))
