"""Layers of PyTorch Geometric, called as its users call them, with the weights of an operator on the same edges."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fredholm.operators import IntegralOperator

GCN, GCN_SPARSE, GAT, NN = "GCNConv", "GCNConv, sparse matrix", "GATConv", "NNConv"


def graph_layer(
    name: str, operator: IntegralOperator, edges: Tensor, num_nodes: int, features: Tensor | None
) -> Callable[[Tensor], Tensor]:
    """A layer as a function of the signal `(1, N, C)`, differentiable by it and by the operator's parameters.

    Args:
        name: one of this module's constants; the sparse matrix is built from the edges here, once.
        operator: on edges, with the kernel that belongs to the layer; no output projection.
        edges: sources and targets, `(2, E)`, self-loops included, as the layer adds none.
        num_nodes: N.
        features: features of the edges, `(E, c)`, for the edge network.

    Raises:
        ImportError: where PyTorch Geometric is missing.
    """
    try:
        from torch_geometric.nn import GATConv, GCNConv, NNConv
    except ImportError as error:
        raise ImportError("the graph layers need torch-geometric: pip install 'fredholm[peers]'") from error
    kernel: Any = operator.kernel
    inner, channels = kernel.kernel, operator.kernel.in_dim
    inputs: tuple[Tensor, ...] = (edges,)
    if name in (GCN, GCN_SPARSE):
        native: nn.Module = GCNConv(channels, channels, add_self_loops=False)
        inputs = (edges if name == GCN else _sparse(edges, num_nodes),)
    elif name == GAT:
        native = GATConv(channels, channels // inner.num_heads, heads=inner.num_heads, add_self_loops=False)
    else:
        assert features is not None
        hidden = nn.Linear(features.shape[-1], inner.width)
        network = nn.Sequential(hidden, nn.ReLU(), nn.Linear(inner.width, channels**2))
        native, inputs = NNConv(channels, channels, network, aggr="add"), (edges, features)
    return lambda u: functional_call(native, _weights(name, operator, inner), (u[0], *inputs))[None]


def _weights(name: str, operator: IntegralOperator, inner: Any) -> dict[str, Tensor]:
    """The operator's parameters by their names in PyTorch Geometric."""
    assert operator.bias is not None
    if name in (GCN, GCN_SPARSE):
        return {"lin.weight": inner.weight, "bias": operator.bias}
    if name == GAT:
        return {
            "lin.weight": inner.value_weight,
            "att_src": inner.key_vector[None],
            "att_dst": inner.query_vector[None],
            "bias": operator.bias,
        }
    assert operator.residual_weight is not None
    return {
        "nn.0.weight": inner.edge_weight[0],
        "nn.0.bias": inner.input_bias[0],
        # NNConv's matrix of an edge has a row per input channel
        "nn.2.weight": inner.output_weight[0].flatten(1).mT,
        "nn.2.bias": inner.output_bias[0].mT.flatten(),
        "lin.weight": operator.residual_weight,
        "bias": operator.bias,
    }


def _sparse(edges: Tensor, num_nodes: int) -> Tensor:
    """The adjacency matrix with a row per target; the layer multiplies by it instead of gathering messages."""
    ones = torch.ones(edges.shape[1], device=edges.device)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse")
        return torch.sparse_coo_tensor(edges.flip(0), ones, (num_nodes, num_nodes)).to_sparse_csr()
