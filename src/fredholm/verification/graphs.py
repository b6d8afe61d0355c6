"""Layers of graphs against PyTorch Geometric's, with the operator's own weights."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fredholm.domains import Graph
from fredholm.kernels import MLP, AdditiveAttention, Constant, Kernel, KernelInputs, OnEdges
from fredholm.operators import IntegralOperator
from fredholm.verification.check import Equality

NODES, CHANNELS, EDGE_CHANNELS = 7, 4, 3
EPSILON = 0.25


def graphs() -> Iterator[Equality]:
    """Graph convolution, neighbour means, sums, attention and edge networks; none where PyTorch Geometric is absent."""
    try:
        from torch_geometric.nn import GATConv, GCNConv, GINConv, NNConv, SAGEConv
    except ImportError:
        return
    yield _equality(
        GCNConv(CHANNELS, CHANNELS),
        OnEdges(Constant(CHANNELS, CHANNELS), long_range=None, edge_mass="symmetric"),
        lambda op: {"lin.weight": _inner(op).weight, "bias": _given(op.bias)},
        adds_loops=True,
    )
    yield _equality(
        SAGEConv(CHANNELS, CHANNELS),
        OnEdges(Constant(CHANNELS, CHANNELS), long_range=None, edge_mass="mean"),
        lambda op: {
            "lin_l.weight": _inner(op).weight,
            "lin_l.bias": _given(op.bias),
            "lin_r.weight": _given(op.residual_weight),
        },
        residual=True,
    )
    yield _sum_of_neighbours(GINConv(nn.Identity(), eps=EPSILON))
    yield _equality(
        GATConv(CHANNELS, CHANNELS // 2, heads=2),
        OnEdges(AdditiveAttention(CHANNELS, 2), long_range=None),
        lambda op: {
            "lin.weight": _inner(op).value_weight,
            "att_src": _inner(op).key_vector[None],
            "att_dst": _inner(op).query_vector[None],
            "bias": _given(op.bias),
        },
        adds_loops=True,
    )
    nothing = KernelInputs(**dict.fromkeys(KernelInputs.__dataclass_fields__, False))
    network = MLP(CHANNELS, 1, width=5, activation="relu", inputs=nothing, edge_dim=EDGE_CHANNELS)
    hidden = nn.Sequential(nn.Linear(EDGE_CHANNELS, 5), nn.ReLU(), nn.Linear(5, CHANNELS * CHANNELS))
    yield _equality(
        NNConv(CHANNELS, CHANNELS, hidden, aggr="add"),
        OnEdges(network, long_range=None, edge_mass="sum"),
        _of_edge_network,
        residual=True,
        edge_channels=EDGE_CHANNELS,
    )


def _equality(
    native: nn.Module,
    kernel: Kernel,
    weights: Callable[[IntegralOperator], dict[str, Tensor]],
    *,
    adds_loops: bool = False,
    residual: bool = False,
    edge_channels: int = 0,
) -> Equality:
    """The equality of a kernel on a graph with a layer of the same weights, which may add self-loops by itself."""
    operator = IntegralOperator(kernel, residual=residual, output_projection=False).double()
    for parameter in operator.parameters():
        nn.init.normal_(parameter, std=0.5)
    edges, native = _edges(), native.double()
    loops = torch.arange(NODES).expand(2, -1)
    own_edges = torch.cat([edges, loops], dim=1) if adds_loops else edges
    features = torch.randn(edges.shape[1], edge_channels, dtype=torch.float64) if edge_channels else None
    u = _signal()

    def expected() -> Tensor:
        edge_features = () if features is None else (features,)
        return functional_call(native, weights(operator), (u[0], edges, *edge_features))[None]

    graph = Graph(own_edges, NODES, pos=torch.rand(NODES, 1, dtype=torch.float64), edge_features=features)
    return Equality(type(native).__name__, "PyTorch Geometric", operator, u, expected, graph)


def _sum_of_neighbours(native: nn.Module) -> Equality:
    """(1 + ε) u(x) + Σ u(y), before its perceptron: a layer without weights, so only the gradient of u is checked."""
    operator = IntegralOperator(
        OnEdges(Constant(CHANNELS, CHANNELS), long_range=None, edge_mass="sum"), bias=False, output_projection=False
    ).double()
    with torch.no_grad():
        _inner(operator).weight.copy_(torch.eye(CHANNELS))
        _given(operator.residual_weight).copy_((1 + EPSILON) * torch.eye(CHANNELS))
    operator.requires_grad_(False)
    edges, u = _edges(), _signal()
    graph = Graph(edges, NODES, pos=torch.rand(NODES, 1, dtype=torch.float64))
    name = type(native).__name__
    return Equality(name, "PyTorch Geometric", operator, u, lambda: native(u[0], edges)[None], graph)


def _of_edge_network(operator: IntegralOperator) -> dict[str, Tensor]:
    """Weights of an edge network by their PyTorch Geometric names; there a row of the matrix belongs to an input."""
    kernel = _inner(operator)
    return {
        "nn.0.weight": kernel.edge_weight[0],
        "nn.0.bias": kernel.input_bias[0],
        "nn.2.weight": kernel.output_weight[0].flatten(1).mT,
        "nn.2.bias": kernel.output_bias[0].mT.flatten(),
        "lin.weight": _given(operator.residual_weight),
        "bias": _given(operator.bias),
    }


def _edges() -> Tensor:
    """Both directions of some edges; two nodes have none."""
    ends = torch.tensor([[0, 0, 1, 2, 3, 1], [1, 2, 2, 3, 4, 4]])
    return torch.cat([ends, ends.flip(0)], dim=1)


def _signal() -> Tensor:
    return torch.randn(1, NODES, CHANNELS, dtype=torch.float64, requires_grad=True)


def _inner(operator: IntegralOperator) -> Any:
    assert isinstance(operator.kernel, OnEdges)
    return operator.kernel.kernel


def _given(parameter: Tensor | None) -> Tensor:
    assert parameter is not None
    return parameter
