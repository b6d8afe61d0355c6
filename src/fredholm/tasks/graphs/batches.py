"""Graphs of different sizes as one padded batch."""

import torch
from torch import Tensor

from fredholm.encoders.graph import GraphBatch
from fredholm.tasks.task import Batch

from .graph_set import GraphSet

_FIELDS = GraphBatch._fields


def batch_of(graphs: GraphSet) -> Batch:
    """The entries of `GraphBatch` that these graphs have, by name; with `mask` where their sizes differ."""
    assert graphs.pos is not None
    nodes, edges = _places(graphs.node_offsets), _places(graphs.edge_offsets)
    size, num_edges = int(graphs.num_nodes.max()), int(graphs.edge_offsets.diff().max())
    ends = torch.full((len(graphs), num_edges, 2), -1)
    ends[edges] = graphs.edge_index.T
    batch = {"features": _laid(graphs.features, nodes, len(graphs), size), "edge_index": ends.mT.contiguous()}
    batch["pos"] = _laid(graphs.pos, nodes, len(graphs), size)
    if bool((graphs.num_nodes < size).any()):
        batch["mask"] = torch.arange(size) < graphs.num_nodes[:, None]
    for name, values, at, length in (
        ("edge_weights", graphs.edge_weights, edges, num_edges),
        ("edge_features", graphs.edge_features, edges, num_edges),
        ("weights", graphs.weights, nodes, size),
        ("kinds", graphs.kinds, nodes, size),
        ("edge_kinds", graphs.edge_kinds, edges, num_edges),
    ):
        if values is not None:
            batch[name] = _laid(values, at, len(graphs), length)
    return batch


def graphs_in(batch: Batch) -> GraphBatch:
    """The graphs of a batch, as an encoder takes them."""
    return GraphBatch(**{name: batch[name] for name in _FIELDS if name in batch})


def _places(offsets: Tensor) -> tuple[Tensor, Tensor]:
    """The graph of each member, and its index in that graph."""
    counts = offsets.diff()
    owner = torch.arange(len(counts)).repeat_interleave(counts)
    return owner, torch.arange(int(offsets[-1])) - offsets[owner]


def _laid(values: Tensor, at: tuple[Tensor, Tensor], batch: int, length: int) -> Tensor:
    """Values of members at their graph and index, `(batch, length, ...)`; 0 elsewhere."""
    out = values.new_zeros(batch, length, *values.shape[1:])
    out[at] = values
    return out
