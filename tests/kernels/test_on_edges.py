"""Kernels on the edges of a graph: formula, edge masses, and errors on bad graphs."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fredholm import IntegralOperator, kernels
from fredholm.domains import Domain, Graph, Points
from fredholm.evaluation import Dense
from fredholm.kernels import Kernel
from fredholm.kernels.on_edges import EdgeMass
from tests.contracts.routes import randomise

N = 6
EDGES = torch.tensor([[1, 2, 0, 2, 2, 3, 3, 3, 5], [0, 0, 2, 3, 3, 3, 1, 2, 0]])
POS = torch.rand(N, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
WEIGHTS = torch.tensor([1.0, 2.0, 0.5, 1.0, 0.0, 3.0, 1.0, 1.0, 0.3], dtype=torch.float64)


def signal(batch: int = 2, channels: int = 4) -> Tensor:
    return torch.randn(batch, N, channels, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def mlp(**options: Any) -> Kernel:
    torch.manual_seed(2)
    return randomise(kernels.MLP(4, 2, 3, width=5, num_frequencies=3, sigma=1.0, **options).double())


def operator(kernel: Kernel, **options: Any) -> IntegralOperator:
    op = IntegralOperator(kernel, residual=False, bias=False, output_projection=False, **options)
    return op.double()


def edge_masses(kind: str, node_mass: Tensor, counts: Tensor) -> Tensor:
    """The mass a of every edge, by its formula."""
    degree = torch.zeros(N, dtype=torch.float64)
    for (y, x), w in zip(EDGES.T.tolist(), WEIGHTS.tolist(), strict=True):
        degree[x] += w * counts[y]
    found = []
    for (y, x), w in zip(EDGES.T.tolist(), WEIGHTS.tolist(), strict=True):
        mass = {
            "measure": w * node_mass[y],
            "sum": w * counts[y],
            "mean": w * counts[y] / degree[x] if degree[x] > 0 else 0.0,
            "symmetric": w * counts[y] / (degree[x] * degree[y]) ** 0.5 if degree[x] * degree[y] > 0 else 0.0,
        }[kind]
        found.append(float(mass))
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.parametrize("kind", ["mean", "sum", "symmetric", "measure"])
@pytest.mark.parametrize("measure", ["even", "masked", "weighted"])
def test_equals_a_sum_over_edges_plus_lambda_times_the_sum_over_all_pairs(kind: EdgeMass, measure: str) -> None:
    mask = torch.tensor([True, True, True, True, False, False]) if measure == "masked" else None
    mass = torch.rand(N, dtype=torch.float64) + 0.2 if measure == "weighted" else None
    graph = Graph(EDGES, N, pos=POS, edge_weights=WEIGHTS, weights=mass, mask=mask)
    inner, u = mlp(), signal()
    u = u if mask is None else torch.where(mask[:, None], u, 0.0)
    out = operator(kernels.OnEdges(inner, long_range=0.3, edge_mass=kind))(u, graph)
    kappa = inner.matrix(u, graph)
    expected = 0.3 * torch.einsum("bqkoi,k,bki->bqo", kappa, graph.weights, u)
    for (y, x), a in zip(EDGES.T.tolist(), edge_masses(kind, graph.weights, graph.counts), strict=True):
        expected[:, x] += a * torch.einsum("boi,bi->bo", kappa[:, x, y], u[:, y])
    if mask is not None:
        expected = torch.where(mask[:, None], expected, 0.0)
    # λ was rounded to float32 before the operator became double
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-6)


def test_eq_263_has_edges_with_the_mass_of_the_measure() -> None:
    """(1[(x, y) ∈ E] + λ) κ on a graph without weights."""
    edges = EDGES[:, [0, 1, 2, 3, 6, 8]]
    graph, inner, u = Graph(edges, N, pos=POS), mlp(), signal()
    gate = torch.full((N, N), 0.25, dtype=torch.float64)
    gate[edges[1], edges[0]] += 1
    expected = torch.einsum("qk,bqkoi,bki->bqo", gate / N, inner.matrix(u, graph), u)
    out = operator(kernels.OnEdges(inner, long_range=0.25, edge_mass="measure"))(u, graph)
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-7)


def test_attention_on_edges_is_masked_attention() -> None:
    inner, graph, u = randomise(kernels.Attention(4, 2).double()), Graph(EDGES, N, pos=POS), signal()
    kept = torch.zeros(N, N)
    for y, x in EDGES.T.tolist():
        kept[x, y] += 1
    expected = operator(inner)(u, Points(POS).weigh_pairs(kept.log()))
    out = operator(kernels.OnEdges(inner, long_range=None))(u, graph)
    torch.testing.assert_close(out, expected)
    assert not out[:, 4].any()  # no edge ends there


def test_features_of_edges_are_read_edge_by_edge() -> None:
    features = torch.randn(EDGES.shape[1], 2, dtype=torch.float64)
    inner, graph, u = mlp(edge_dim=2, depth=3), Graph(EDGES, N, pos=POS, edge_features=features), signal()
    out = operator(kernels.OnEdges(inner, long_range=None, edge_mass="sum"))(u, graph)
    expected = torch.zeros_like(out)
    for (y, x), feature in zip(EDGES.T.tolist(), features, strict=True):
        source = Points(POS[y : y + 1])
        source.features = feature.expand(2, 1, -1)
        kappa = inner.matrix(u[:, y : y + 1], source, u[:, x : x + 1], Points(POS[x : x + 1]))
        expected[:, x] += torch.einsum("boi,bi->bo", kappa[:, 0, 0], u[:, y])
    torch.testing.assert_close(out, expected)
    dense = operator(kernels.OnEdges(inner, long_range=0.2, edge_mass="sum"), evaluation=Dense())
    torch.testing.assert_close(dense(u, graph), operator(dense.kernel)(u, graph))


@pytest.mark.parametrize("inner", [mlp, lambda: randomise(kernels.AdditiveAttention(4, 2).double())])
def test_the_order_of_nodes_and_edges_and_padding_change_nothing(inner: Any) -> None:
    op, u = operator(kernels.OnEdges(inner(), long_range=0.3)), signal().requires_grad_()
    grads = torch.autograd.grad
    out = op(u, Graph(EDGES, N, pos=POS, edge_weights=WEIGHTS))
    (grad,) = grads(out.square().sum(), u)
    nodes, edges = torch.randperm(N), torch.randperm(EDGES.shape[1])
    moved = nodes.argsort()[EDGES[:, edges]]
    permuted = u.detach()[:, nodes].requires_grad_()
    found = op(permuted, Graph(moved, N, pos=POS[nodes], edge_weights=WEIGHTS[edges]))
    torch.testing.assert_close(found, out[:, nodes], rtol=0, atol=1e-10)
    torch.testing.assert_close(grads(found.square().sum(), permuted)[0], grad[:, nodes], rtol=0, atol=1e-9)

    padded = torch.nn.functional.pad(u.detach(), (0, 0, 0, 2), value=7.0).requires_grad_()
    mask, pos = torch.arange(N + 2) < N, torch.nn.functional.pad(POS, (0, 0, 0, 2))
    listed = torch.nn.functional.pad(EDGES, (0, 3), value=-1).expand(2, -1, -1)
    weights = torch.nn.functional.pad(WEIGHTS, (0, 3), value=5.0).expand(2, -1)
    found = op(padded, Graph(listed, N + 2, pos=pos, mask=mask, edge_weights=weights))
    torch.testing.assert_close(found[:, :N], out, rtol=0, atol=1e-10)
    by = grads(found.square().sum(), padded)[0]
    torch.testing.assert_close(by[:, :N], grad, rtol=0, atol=1e-9)
    assert not by[:, N:].any()


@pytest.mark.parametrize("start", [1e-6, 0.1, 1e3])
def test_lambda_starts_at_the_given_value(start: float) -> None:
    found = kernels.OnEdges(mlp(), long_range=start).long_range
    assert found is not None
    assert found.item() == pytest.approx(start, rel=1e-5)


def test_lambda_learns_and_stays_positive() -> None:
    kernel = kernels.OnEdges(mlp(), long_range=0.1)
    assert kernel.long_range is not None
    operator(kernel)(signal(), Graph(EDGES, N, pos=POS)).square().sum().backward()
    assert kernel.raw_long_range is not None
    assert kernel.raw_long_range.grad is not None
    assert kernel.raw_long_range.grad.abs() > 0
    with torch.no_grad():
        kernel.raw_long_range.fill_(-30)
    assert 0 < kernel.long_range.item() < 1e-12


def test_explain_shows_both_parts_and_the_cost_of_all_pairs() -> None:
    predicted = operator(kernels.OnEdges(mlp())).explain(signal(), Graph(EDGES, N, pos=POS))
    assert "edges, " in predicted
    assert "ListedPerceptron" in predicted
    assert f"all nodes, {2 * N * N} pairs: Tiled" in predicted
    assert "flops forward" in predicted


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: kernels.OnEdges(kernels.LSTM(4, 3)), "LSTM looks back only"),
        (lambda: kernels.OnEdges(kernels.Convolution(4, 4, 3)), "Convolution needs more than the two points of a pair"),
        (lambda: kernels.OnEdges(kernels.Constant(4, 4), long_range=0.0), "long_range must be finite and above 0"),
        (lambda: kernels.OnEdges(kernels.Constant(4, 4), edge_mass="median"), "edge_mass must be one of"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_bad_settings_are_refused(build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    ("domain", "kernel", "message"),
    [
        (Points(POS), lambda: kernels.Constant(4, 4), "needs edges, domains.Graph"),
        (Graph(EDGES, N, pos=POS), lambda: mlp(edge_dim=2), "reads edge_dim=2 features of an edge; the graph's edges"),
        (
            Graph(EDGES, N, pos=POS, edge_features=torch.ones(9, 3)),
            lambda: mlp(edge_dim=2),
            "reads edge_dim=2 features of an edge; the graph's edges have 3",
        ),
    ],
)
def test_bad_domains_are_refused(domain: Domain, kernel: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        operator(kernels.OnEdges(kernel()))(signal(), domain)


def test_queries_elsewhere_are_refused() -> None:
    with pytest.raises(ValueError, match="gives its result at the nodes; got other queries"):
        operator(kernels.OnEdges(kernels.Constant(4, 4)))(
            signal(), Graph(EDGES, N, pos=POS), query_domain=Points(POS[:2])
        )


def test_a_graph_without_edges_has_gradients_that_are_zero() -> None:
    inner, u = mlp(), signal().requires_grad_()
    out = operator(kernels.OnEdges(inner, long_range=None))(u, Graph(torch.zeros(2, 0, dtype=torch.int64), N, pos=POS))
    assert not out.any()
    assert not any(grad.any() for grad in torch.autograd.grad(out.sum(), [u, *inner.parameters()]))


@pytest.mark.parametrize("kind", ["mean", "symmetric"])
def test_edge_masses_do_not_depend_on_the_unit_of_node_masses(kind: EdgeMass) -> None:
    op = IntegralOperator(kernels.OnEdges(kernels.Constant(4, 4), long_range=None, edge_mass=kind), residual=False)
    masses, u = torch.rand(N) + 0.1, signal().float()
    expected, *scaled = (op(u, Graph(EDGES, N, pos=POS, weights=masses * unit)) for unit in (1.0, 2.0**-80, 2.0**80))
    for out in scaled:
        torch.testing.assert_close(out, expected)
