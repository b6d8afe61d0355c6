"""Kernels of a graph: the sum of polynomials equals the inverse of a matrix for any edge weights."""

import pytest
import torch

from fredholm.models.fitted.graphs.graph_kernel import LEAST, GraphSteps, Reach


def ends(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Edges between all nodes but the last three, some of them repeated, and their weights."""
    draw = torch.Generator().manual_seed(0)
    found = torch.randint(count - 3, (2, 90), generator=draw)
    return found[:, found[0] != found[1]], torch.rand(90, generator=draw)


def dense(edges: torch.Tensor, weights: torch.Tensor, count: int, reach: Reach) -> torch.Tensor:
    joined = torch.zeros(count, count, dtype=torch.float64)
    joined.index_put_((edges[0], edges[1]), weights.double(), accumulate=True)
    joined = joined + joined.T
    degrees = joined.sum(1)
    unit = degrees[degrees > 0].mean()
    root = torch.where(degrees > 0, (degrees / unit).clamp_min(LEAST), 1.0).rsqrt()
    step = root[:, None] * joined / unit * root
    strides = torch.linalg.matrix_power(step, reach.stride)
    inverse = torch.linalg.inv(torch.eye(count, dtype=torch.float64) - reach.reach * strides)
    return root[:, None] * torch.linalg.matrix_power(inverse, reach.smoothness) * root


@pytest.mark.parametrize("reach", [Reach(0.9, 1), Reach(-0.9, 2), Reach(0.99, 4), Reach(0.97, 2, stride=2)])
def test_it_is_the_inverse_of_a_matrix(reach: Reach) -> None:
    edges, weights = ends(40)
    weights = weights[: edges.shape[1]]
    expected, steps = dense(edges, weights, 40, reach), GraphSteps(edges[0], edges[1], weights, 40)
    nodes = torch.tensor([39, 3, 17, 0])
    atol = 1e-7 * float(expected.abs().max())
    torch.testing.assert_close(
        steps.between(nodes, [Reach(0.5, 1), reach])[1], expected[nodes][:, nodes], rtol=1e-7, atol=atol
    )
    values = torch.randn(4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(
        steps.sums(nodes, values, reach.coefficients()), expected[:, nodes] @ values, rtol=1e-7, atol=atol
    )


def test_units_of_weights_and_isolated_nodes() -> None:
    edges, weights = ends(40)
    weights, nodes = weights[: edges.shape[1]], torch.arange(40)
    one, other = (GraphSteps(edges[0], edges[1], unit * weights.double(), 40) for unit in (1.0, 1e-20))
    reach = Reach(0.9, 2)
    found, again = (steps.between(nodes, [reach])[0] for steps in (one, other))
    torch.testing.assert_close(found, again)
    torch.testing.assert_close(found[37:], torch.eye(40, dtype=torch.float64)[37:])  # related to themselves alone
    none = torch.zeros(0, dtype=torch.int64)
    without = GraphSteps(none, none, torch.zeros(0), 5)
    torch.testing.assert_close(without.between(torch.arange(5), [reach])[0], torch.eye(5, dtype=torch.float64))
