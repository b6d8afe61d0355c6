"""Positions of nodes: eigenvectors up to sign, which are recovered in a graph that has grown or been renumbered."""

import pytest
import torch

from fredholm.models.fitted.graphs import graph_positions
from fredholm.models.fitted.graphs.graph_kernel import GraphSteps
from fredholm.models.fitted.graphs.graph_positions import aligned, positions_of

SIZE = 60


def steps(order: torch.Tensor | None = None) -> GraphSteps:
    """A graph of three groups and two isolated nodes."""
    draw = torch.Generator().manual_seed(0)
    own = torch.arange(SIZE - 2) % 3
    joined = torch.rand(SIZE - 2, SIZE - 2, generator=draw) < torch.where(own[:, None] == own, 0.3, 0.05)
    ends = joined.triu(1).nonzero().T
    weights = 1 + torch.rand(ends.shape[1], generator=draw)
    ends = ends if order is None else order[ends]
    return GraphSteps(ends[0], ends[1], weights, SIZE)


def test_positions_are_eigenvectors() -> None:
    own = steps()
    eye = torch.eye(SIZE, dtype=torch.float64)
    joined = own.step(eye) / own.root[:, None] / own.root
    mass = joined.sum(1)
    root = (mass + mass[mass > 0].mean()).rsqrt()
    values, vectors = torch.linalg.eigh(root[:, None] * joined * root)
    order = values.abs().argsort(descending=True)[:4]
    expected = SIZE**0.5 * root[:, None] * vectors[:, order]
    found = positions_of(own, 4)
    assert float(values[order].min()) < 0
    torch.testing.assert_close(found.abs(), expected.abs())
    assert not found[-2:].any()
    above = values.argsort(descending=True)[:4]
    torch.testing.assert_close(
        positions_of(own, 4, signed=False).abs(), SIZE**0.5 * root[:, None] * vectors[:, above].abs()
    )


def test_the_approximation_for_large_graphs_is_close(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = positions_of(steps(), 3)
    monkeypatch.setattr(graph_positions, "DENSE", 10)
    monkeypatch.setattr(graph_positions, "STEPS", 4)
    torch.testing.assert_close(positions_of(steps(), 3), exact, atol=1e-2, rtol=0.0)


def test_equal_eigenvalues_are_used_together_or_not_at_all() -> None:
    places = torch.arange(12)
    ring = GraphSteps(places, (places + 1) % 12, torch.ones(12), 12)
    used = [int(positions_of(ring, count, signed=False).any(0).sum()) for count in (1, 2, 3, 4, 5)]
    assert used == [1, 1, 3, 3, 5]


def test_positions_are_aligned_with_earlier_ones() -> None:
    found, nodes, every = positions_of(steps(), 4), torch.arange(10, 40), torch.ones(4, dtype=torch.bool)
    places = found[nodes]
    assert torch.equal(aligned(-found, nodes, places, every), found)
    turn = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))[0]
    torch.testing.assert_close(aligned(3 * found @ turn, nodes, places, every), found)
    order = torch.randperm(SIZE, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(aligned(positions_of(steps(order), 4), order[nodes], places, every)[order], found)
    read = torch.tensor([True, False, True, True])  # the other columns also determine the rotation
    assert torch.equal(aligned(-found, nodes, places, read), found * read)
    torch.testing.assert_close(aligned(3 * found @ turn, nodes, places, read), found * read)
    elsewhere = found + (~read).double()  # columns that are not read may differ
    assert torch.equal(aligned(elsewhere, nodes, places, read), found * read)
