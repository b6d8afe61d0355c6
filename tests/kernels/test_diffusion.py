"""Diffusion along edges: its series, its limit, and errors on bad graphs."""

import dataclasses

import pytest
import torch

from fredholm import IntegralOperator, evaluation, kernels
from fredholm.domains import Graph, Points, undirected
from fredholm.encoders import Graph as GraphEncoder
from fredholm.encoders import GraphBatch
from fredholm.models import ConstantConfig, ITNet, OnEdgesConfig

N = 7
EDGES = undirected(torch.tensor([[0, 0, 1, 2, 3, 4], [1, 2, 2, 3, 4, 0]]))  # nodes 5 and 6 have no edges
GRAPH = Graph(EDGES, N, pos=torch.rand(N, 1, dtype=torch.float64))


def operator(**options: float) -> IntegralOperator:
    kernel = kernels.Diffusion(3, **options)  # pyright: ignore[reportArgumentType]
    return IntegralOperator(kernel, residual=False, bias=False, output_projection=False).double()


def random_walk() -> torch.Tensor:
    """P entry by entry: from a node to itself or to a neighbour, with equal probabilities."""
    adjacency = torch.eye(N, dtype=torch.float64)
    adjacency[EDGES[1], EDGES[0]] = 1
    return adjacency / adjacency.sum(1, keepdim=True)


def signal() -> torch.Tensor:
    return torch.randn(2, N, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize(("gamma", "steps"), [(0.9, 1), (0.5, 4), (0.9, 10)])
def test_equals_its_series(gamma: float, steps: int) -> None:
    walk = random_walk()
    powers = [torch.linalg.matrix_power(walk, k) for k in range(steps + 1)]
    series = (1 - gamma) * sum(gamma**k * powers[k] for k in range(steps)) + gamma**steps * powers[steps]
    torch.testing.assert_close(operator(gamma=gamma, num_steps=steps)(signal(), GRAPH), series @ signal())


def test_many_steps_are_personalised_pagerank_up_to_the_truncation() -> None:
    exact = 0.2 * torch.linalg.inv(torch.eye(N, dtype=torch.float64) - 0.8 * random_walk()) @ signal()
    for steps in (5, 20, 60):
        error = (operator(gamma=0.8, num_steps=steps)(signal(), GRAPH) - exact).abs().max()
        assert error <= 2 * 0.8**steps * signal().abs().max()
    assert error < 1e-5


def test_a_constant_and_an_isolated_node_do_not_change() -> None:
    op, u = operator(), signal()
    torch.testing.assert_close(op(torch.ones_like(u), GRAPH), torch.ones_like(u))
    torch.testing.assert_close(op(u, GRAPH)[:, 5:], u[:, 5:])


@pytest.mark.parametrize("route", [evaluation.Walk(), evaluation.Dense()])
def test_a_node_without_mass_takes_the_mean_of_its_neighbours(route: evaluation.Evaluation) -> None:
    weights = torch.tensor([1.0, 0.0, 2.0, 1.0, 3.0, 1.0, 0.0], dtype=torch.float64)
    graph, op = Graph(EDGES, N, pos=GRAPH.pos, weights=weights), operator(gamma=0.9, num_steps=6)
    op.evaluation, u = route, signal()
    expected = torch.ones_like(u)
    expected[:, 6] = 0  # no neighbour, so that its row has no terms
    torch.testing.assert_close(op(torch.ones_like(u), graph), expected)
    other = u.clone()
    other[:, 1] = 7.0
    assert torch.equal(op(other, graph), op(u, graph))


def test_a_domain_without_edges_and_numbers_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match=r"kernels\.Diffusion: needs edges"):
        operator()(signal(), Points(GRAPH.pos))
    with pytest.raises(ValueError, match="gamma must be above 0 and below 1; got 1"):
        kernels.Diffusion(3, gamma=1.0)
    with pytest.raises(ValueError, match="num_steps must be at least 1"):
        kernels.Diffusion(3, num_steps=0)
    with pytest.raises(ValueError, match=r"diffusion=0\.5 has no effect with pool='mean'"):
        ITNet.Config(pool="mean", diffusion=0.5)
    with pytest.raises(ValueError, match="diffusion must be at least 0 and below 1"):
        ITNet.Config(pool="none", diffusion=1.0)


def test_a_model_spreads_its_outputs() -> None:
    config = ITNet.Config(
        embed_dim=8, depth=1, kernel=OnEdgesConfig(kernel=ConstantConfig(), long_range=None), pool="none"
    )
    torch.manual_seed(0)
    plain = ITNet(GraphEncoder(3, 8, 1), 3, config).double().eval()
    torch.manual_seed(0)
    spread = ITNet(GraphEncoder(3, 8, 1), 3, dataclasses.replace(config, diffusion=0.9)).double().eval()
    batch = GraphBatch(signal(), EDGES.expand(2, -1, -1), GRAPH.pos.expand(2, -1, -1))
    torch.testing.assert_close(spread(batch), operator(gamma=0.9)(plain(batch), GRAPH))
