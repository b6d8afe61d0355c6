"""PyTorch Geometric's NNConv on the complete graph: the same operator as message passing, one layer per head."""

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.peers.kernel_input import kernel_input
from benchmarks.peers.peer import Peer
from benchmarks.peers.weights import KernelWeights, activate, join_heads, split_heads


@final
class _EdgeNetwork(nn.Module):
    """One head's kernel MLP on edge features ``(E, F)``; K is transposed because NNConv multiplies from the left."""

    def __init__(self, weights: KernelWeights, head: int):
        super().__init__()
        size = (weights.head_dim, weights.head_dim)
        self.hidden, self.hidden_bias = weights.hidden[head], weights.hidden_bias[head]
        self.output = weights.output[head].unflatten(0, size).transpose(0, 1).flatten(0, 1)
        self.output_bias = weights.output_bias[head].unflatten(0, size).T.flatten()
        self.activation = weights.activation

    def forward(self, edge_attr: Tensor) -> Tensor:
        hidden = activate(F.linear(edge_attr, self.hidden, self.hidden_bias), self.activation)
        return F.linear(hidden, self.output, self.output_bias)


@final
class EdgeConditionedConvolution(Peer):
    """The unchanged NNConv with ``aggr="add"``; the measure's masses scale the features of the source nodes."""

    name = "PyG NNConv"

    def __init__(self) -> None:
        try:  # here, because the import is slow and processes that measure only the library do not need it
            from torch_geometric.nn import NNConv
        except ImportError as error:
            raise ImportError("the NNConv peer needs torch-geometric: pip install 'fredholm[peers]'") from error
        self._layer = NNConv

    def integrate(self, weights: KernelWeights, u: Tensor, pos: Tensor, measure: Tensor) -> Tensor:
        batch, num_points, _ = u.shape
        key, query = _complete_graph(batch, num_points, u.device)
        x, y = pos[query % num_points], pos[key % num_points]
        outputs = []
        for head, signal in enumerate(split_heads(u, weights.num_heads)):
            nodes = signal.flatten(0, 1)
            edge_attr = kernel_input(x, y, nodes[query], nodes[key], weights.frequencies)
            network = _EdgeNetwork(weights, head)
            layer = self._layer(weights.head_dim, weights.head_dim, network, aggr="add", root_weight=False, bias=False)
            sources = measure.repeat(batch)[:, None] * nodes
            outputs.append(layer((sources, nodes), torch.stack([key, query]), edge_attr).view_as(signal))
        return join_heads(torch.stack(outputs))

    def kernel_bytes(self, weights: KernelWeights, batch: int, num_points: int) -> int:
        return batch * num_points**2 * weights.output_bias.numel() * weights.output_bias.element_size()


def _complete_graph(batch: int, num_points: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Source (key) and target (query) nodes of all ``B * N^2`` edges, sample by sample."""
    nodes = torch.arange(batch * num_points, device=device).view(batch, num_points)
    key = nodes[:, None, :].expand(-1, num_points, -1).flatten()
    query = nodes[:, :, None].expand(-1, -1, num_points).flatten()
    return key, query
