"""The forward pass over tiles. Legend: `inputs.py`."""

from collections.abc import Iterator
from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm.evaluation.perceptron.first_layer import FirstLayer
from fredholm.evaluation.perceptron.inputs import Block, IntegralInputs, length
from fredholm.evaluation.perceptron.tiling import Tiling, Workspace, ranges, split_at_block


class Chunk(NamedTuple):
    """Batch entries and queries whose S is held at once; `in_block`: the queries lie in the grid."""

    batch: slice
    queries: slice
    in_block: bool


class Tile(NamedTuple):
    """Queries and keys of a tile; `rows`: the queries' place in their chunk; `in_block`: both sides lie in the grid;
    `first`: no other tile of these queries came before."""

    queries: slice
    rows: slice
    keys: slice
    in_block: bool
    first: bool


@final
class Integral:
    """One integral: its tensors by name, the order of its tiles, and the layers after the first."""

    def __init__(self, inputs: IntegralInputs, block: list[int], activation: str, tiling: list[int]) -> None:
        self.t = inputs
        self.block = Block(block[0], block[1], tuple(block[2:]))
        self.activation = activation
        self.tiling = Tiling(*tiling)
        self.accumulator = torch.promote_types(self.t.query.dtype, torch.float32)
        self.workspace = Workspace(self.t.query)
        self.sums_workspace = Workspace(self.t.query.new_empty(0, dtype=self.accumulator))
        self.first = FirstLayer(self.t, self.block, self.workspace, window_elements=2 * self.tiling.elements)
        self.batch, self.kernels, self.num_queries, self.dim = self.t.query.shape
        self.num_keys, self.width = self.t.key.shape[2], self.t.key_bias.shape[-1]
        self.out_dim = self.t.output_weight.shape[-1]
        # one device read for all tiles: how many keys each query sees at most, over the batch
        self._limits = self.t.seen.amax(0).tolist() if self.t.seen.numel() else None

    def chunks(self) -> Iterator[Chunk]:
        """Chunks in order."""
        for queries, inside in split_at_block(
            self.num_queries, self.tiling.chunk_queries, self.block.query_start, self.block
        ):
            for batch in ranges(self.batch, self.tiling.chunk_batch):
                yield Chunk(batch, queries, inside)

    def tiles(self, chunk: Chunk) -> Iterator[Tile]:
        """Tiles of a chunk; those whose queries see none of the keys are left out."""
        for rows in ranges(length(chunk.queries), self.tiling.queries):
            queries = slice(chunk.queries.start + rows.start, chunk.queries.start + rows.stop)
            limit = self.num_keys if self._limits is None else max(self._limits[queries])
            for keys, inside in split_at_block(
                self.num_keys, self.tiling.keys, self.block.key_start, self.block, self.block.row
            ):
                if keys.start < limit:
                    yield Tile(queries, rows, keys, chunk.in_block and inside, keys.start == 0)

    def batches(self, chunk: Chunk) -> Iterator[tuple[slice, slice]]:
        """Batch entries of a chunk, tile by tile, and their place in the chunk."""
        for place in ranges(length(chunk.batch), self.tiling.batch):
            yield slice(chunk.batch.start + place.start, chunk.batch.start + place.stop), place

    def last_layer(self, g: int) -> Tensor:
        """W as one matrix, `(w·d, d_out)`."""
        return self.t.output_weight[g].flatten(0, 1)

    def empty_sums(self, chunk: Chunk) -> Tensor:
        """Memory for S of a chunk, `(b, nq, w, d)`; zero where a query may turn out to have no tile."""
        shape = (length(chunk.batch), length(chunk.queries), self.width, self.dim)
        sums = self.sums_workspace.take("sums", *shape)
        return sums if self._limits is None and self.num_keys > 0 else sums.zero_()

    def values(self, g: int, b: slice, k: slice) -> Tensor:
        """ω_j u_j, `(b, nk, d)`."""
        weights = self.t.weights[b if self.t.weights.shape[0] > 1 else slice(0, 1), k, None]
        return self.t.key[b, g, k] * weights

    def hide(self, value: Tensor, b: slice, tile: Tile) -> None:
        """Sets entries of keys that a query must not see to 0; `value` is `(b, nq, w, nk)`."""
        if self.t.seen.numel():
            seen = self.t.seen[b if self.t.seen.shape[0] > 1 else slice(0, 1), tile.queries, None]
            unseen = torch.arange(tile.keys.start, tile.keys.stop, device=value.device) >= seen
            value.masked_fill_(unseen[:, :, None], 0)

    def forward(self) -> Tensor:
        """The integral, `(B, G, Nq, d_out)`."""
        out = self.t.query.new_empty(self.batch, self.kernels, self.num_queries, self.out_dim)
        for g in range(self.kernels):
            self.first.select(g)
            last = self.last_layer(g)
            for chunk in self.chunks():
                sums = self.empty_sums(chunk)
                for tile in self.tiles(chunk):
                    rest = None
                    for b, place in self.batches(chunk):
                        if rest is None or self.first.positions_per_batch:
                            rest = self.first.relative(b, tile.queries, tile.keys, tile.in_block)
                        h = self.first.pre_activation(rest, b, tile.queries, tile.keys)
                        activate_into(h, h, self.activation)
                        for layer in range(self.t.hidden_weight.shape[0]):
                            h = activate_into(below := self.hidden(h, layer, g), below, self.activation)
                        self.hide(h, b, tile)
                        total = sums[place, tile.rows].flatten(1, 2)
                        add_product(total, h.flatten(1, 2), self.values(g, b, tile.keys), fresh=tile.first)
                value = sums.view(-1, last.shape[0]).to(last.dtype) @ last
                out[chunk.batch, g, chunk.queries] = value.view(*sums.shape[:2], -1)
        return out

    def hidden(self, h: Tensor, layer: int, g: int) -> Tensor:
        """Pre-activation of a hidden layer after the first, `(b, nq, w, nk)`."""
        return (self.t.hidden_weight[layer, g] @ h).add_(self.t.hidden_bias[layer, g, :, None])


def add_product(total: Tensor, a: Tensor, b: Tensor, *, fresh: bool = False) -> None:
    """total += a @ b for stacks of matrices, or total = a @ b when fresh; total may be more precise than a and b."""
    # a total with gaps would be fed one matrix at a time
    if total.dtype == a.dtype and total.is_contiguous():
        total.baddbmm_(a, b, beta=0 if fresh else 1)
    elif fresh:
        total.copy_(a @ b)
    else:
        total += a @ b


def activate_into(p: Tensor, out: Tensor, activation: str) -> Tensor:
    """φ(p), written to `out`, which may be p."""
    if activation == "relu":
        return torch.clamp_min(p, 0, out=out)
    return torch.ops.aten.gelu.out(p, approximate="tanh" if activation == "gelu_tanh" else "none", out=out)


def activation_gradient_into(grad: Tensor, p: Tensor, activation: str) -> Tensor:
    """grad ⊙ φ'(p), written to `grad`."""
    if activation == "relu":
        return torch.ops.aten.threshold_backward.grad_input(grad, p, 0, grad_input=grad)
    approximate = "tanh" if activation == "gelu_tanh" else "none"
    return torch.ops.aten.gelu_backward.grad_input(grad, p, approximate=approximate, grad_input=grad)
