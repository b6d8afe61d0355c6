"""Sums of an integral over its tiles, forward and backward, as one operator. Legend: `tiles.py`."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm._precision import wide_dtype
from fredholm.domains.checks import has_values
from fredholm.evaluation.custom_op import Operator
from fredholm.evaluation.perceptron.all_pairs import plain_integral
from fredholm.evaluation.perceptron.tiles import (
    Block,
    FirstLayer,
    PerceptronInputs,
    Tiling,
    choose_tiling,
    evaluates_kernel,
    length,
    split_at_block,
)
from fredholm.evaluation.tiling import Workspace, ranges
from fredholm.kernels.kernel import divided


class PerceptronOutputs(NamedTuple):
    """The result of an integral."""

    out: Tensor  # Σ_j ω_j m_ij W h_ij u_j, without the constant part of the kernel: (B, G, Nq, E·d_out)


class Chunk(NamedTuple):
    """Batch entries and queries whose S is held at once; `in_block`: the queries are in the grid."""

    batch: slice
    queries: slice
    in_block: bool


class Tile(NamedTuple):
    """Queries and keys of a tile; `rows`: indices of the queries in their chunk; `in_block`: both sides are in the
    grid; `first`: the first tile of these queries."""

    queries: slice
    rows: slice
    keys: slice
    in_block: bool
    first: bool


@final
class PerceptronSums:
    """One integral: its tensors by name, the order of its tiles, and the layers after the first."""

    def __init__(self, inputs: PerceptronInputs, block: Block, activation: str, tiling: Tiling) -> None:
        self.t, self.block, self.activation, self.tiling = inputs, block, activation, tiling
        self.accumulator = wide_dtype(self.t.query)
        self.workspace = Workspace(self.t.query)
        self.sums_workspace = Workspace(self.t.query.new_empty(0, dtype=self.accumulator))
        self.first = FirstLayer(self.t, self.block, self.workspace, window_elements=2 * self.tiling.elements)
        self.batch, self.kernels, self.num_queries, _ = self.t.query.shape
        self.num_keys, self.width = self.t.key.shape[2], self.t.key_bias.shape[-1]
        self.in_dim, self.out_dim = self.t.output_weight.shape[2:]
        self.entries = self.t.entries
        # one read from the device for all tiles: the most keys that each query sees over the batch
        seen = self.t.seen
        self._limits = None if seen is None or not has_values(seen) else seen.amax(0).tolist()

    def chunks(self) -> Iterator[Chunk]:
        """Chunks in order."""
        for queries, inside in split_at_block(
            self.num_queries, self.tiling.chunk_queries, self.block.query_start, self.block
        ):
            for batch in ranges(self.batch, self.tiling.chunk_batch):
                yield Chunk(batch, queries, inside)

    def tiles(self, chunk: Chunk) -> Iterator[Tile]:
        """Tiles of a chunk, without those whose queries see none of the keys."""
        for rows in ranges(length(chunk.queries), self.tiling.queries):
            queries = slice(chunk.queries.start + rows.start, chunk.queries.start + rows.stop)
            limit = self.num_keys if self._limits is None else max(self._limits[queries])
            for keys, inside in split_at_block(
                self.num_keys, self.tiling.keys, self.block.key_start, self.block, self.block.row
            ):
                if keys.start < limit:
                    yield Tile(queries, rows, keys, chunk.in_block and inside, keys.start == 0)

    def batches(self, chunk: Chunk) -> Iterator[tuple[slice, slice]]:
        """Batch entries of a chunk, tile by tile, and their indices in the chunk."""
        for place in ranges(length(chunk.batch), self.tiling.batch):
            yield slice(chunk.batch.start + place.start, chunk.batch.start + place.stop), place

    def values(self, g: int, b: slice, k: slice) -> Tensor:
        """ω_j u_j, `(b, nk, E·d)`."""
        return self.t.key[b, g, k] * self.t.weights[_of(self.t.weights, b), k, None]

    def hidden(self, g: int) -> list[tuple[Tensor, Tensor]]:
        """The layers between the first and the last: weight `(w, w)` and bias `(w, 1)` each."""
        if self.t.hidden_weight is None or self.t.hidden_bias is None:
            return []
        return list(zip(self.t.hidden_weight[:, g], self.t.hidden_bias[:, g, :, None], strict=True))

    def pairs_at(self, g: int, b: slice, tile: Tile) -> tuple[slice, int, slice, slice]:
        """Slices of a tile in m, with entries `(1 or b, nq, nk)`."""
        assert self.t.pairs is not None
        return _of(self.t.pairs, b), g if self.t.pairs.shape[1] > 1 else 0, tile.queries, tile.keys

    def hide(self, value: Tensor, b: slice, tile: Tile) -> None:
        """Sets entries of keys that a query must not see to 0; `value` is `(b, nq, w, nk)`."""
        if self.t.seen is not None:
            seen = self.t.seen[_of(self.t.seen, b), tile.queries, None]
            unseen = torch.arange(tile.keys.start, tile.keys.stop, device=value.device) >= seen
            value.masked_fill_(unseen[:, :, None], 0)

    def empty_totals(self, name: str, *shape: int) -> Tensor:
        """Memory for sums over keys; zeros where a query may have no tile."""
        totals = self.sums_workspace.take(name, *shape)
        return totals if self._limits is None and self.num_keys > 0 else totals.zero_()

    def last_layer(self) -> "LastLayer":
        """The last layer, before the sum over keys or after it, whichever is cheaper."""
        is_before = evaluates_kernel(self.entries, self.width, self.out_dim)
        return LastLayerBeforeSum(self) if is_before else LastLayerAfterSum(self)

    def forward(self) -> Tensor:
        """The integral."""
        out = self.t.query.new_empty(self.batch, self.kernels, self.num_queries, self.entries * self.out_dim)
        last = self.last_layer()
        for g in range(self.kernels):
            self.first.select(g)
            for chunk in self.chunks():
                last.open(g, chunk)
                for tile in self.tiles(chunk):
                    rest = None
                    for b, place in self.batches(chunk):
                        if rest is None or self.first.positions_per_batch:
                            rest = self.first.relative(b, tile.queries, tile.keys, tile.in_block)
                        h = self.first.pre_activation(rest, b, tile.queries, tile.keys)
                        activate_into(h, h, self.activation)
                        for weight, bias in self.hidden(g):
                            h = activate_into(p := (weight @ h).add_(bias), p, self.activation)
                        self.hide(h, b, tile)
                        if self.t.pairs is not None:
                            h.mul_(self.t.pairs[self.pairs_at(g, b, tile)][:, :, None])
                        last.add(h, self.values(g, b, tile.keys), place, tile)
                out[chunk.batch, g, chunk.queries] = last.closed()
        return out


class LastLayer(ABC):
    """W and the sum over keys, in the order of the subclass, for one chunk of queries at a time.

    Forward `open`, `add` for every tile, `closed`; backward `open_backward`, `hidden_gradient` and `collect` for every
    tile, `close_backward`.
    """

    def __init__(self, integral: PerceptronSums) -> None:
        self.integral = integral

    @abstractmethod
    def open(self, g: int, chunk: Chunk) -> None:
        """Starts a chunk of kernel g."""

    @abstractmethod
    def add(self, h: Tensor, values: Tensor, place: slice, tile: Tile) -> None:
        """Adds the keys of a tile: h `(b, nq, w, nk)`, including the factor m, and ω_j u_j `(b, nk, E·d)`."""

    @abstractmethod
    def closed(self) -> Tensor:
        """The integral at the queries of the chunk, `(b, nq, E·d_out)`."""

    @abstractmethod
    def open_backward(self, g: int, chunk: Chunk, grad: Tensor) -> None:
        """Starts the backward pass of a chunk of kernel g, from the gradient of its integral, `(b, nq, E·d_out)`."""

    @abstractmethod
    def hidden_gradient(self, values: Tensor, place: slice, tile: Tile, out: Tensor) -> None:
        """Writes the gradient of a tile's h into `out`, `(b, nq, w, nk)`."""

    @abstractmethod
    def collect(self, h: Tensor, values: Tensor, place: slice, tile: Tile) -> Tensor:
        """Accumulates a tile's part of the gradient of W; returns the gradient of `values`, `(b, nk, E·d)`.

        Called after `hidden_gradient` of the same tile.
        """

    @abstractmethod
    def close_backward(self, grad_weight: Tensor) -> None:
        """Adds the gradient of W to `grad_weight`, `(w, d, d_out)`."""


@final
class LastLayerAfterSum(LastLayer):
    """out_i = W S_i: per pair w·d multiplications for each of E entries."""

    def open(self, g: int, chunk: Chunk) -> None:
        """See `LastLayer.open`."""
        op = self.integral
        self.weight = op.t.output_weight[g].flatten(0, 1)  # (w·d, d_out)
        shape = (length(chunk.batch), length(chunk.queries), op.width, op.entries * op.in_dim)
        self.sums = op.empty_totals("sums", *shape)  # S

    def add(self, h: Tensor, values: Tensor, place: slice, tile: Tile) -> None:
        """See `LastLayer.add`."""
        add_product(self.sums[place, tile.rows].flatten(1, 2), h.flatten(1, 2), values, fresh=tile.first)

    def closed(self) -> Tensor:
        """See `LastLayer.closed`."""
        return (self._by_entry(self.sums).to(self.weight.dtype) @ self.weight).view(*self.sums.shape[:2], -1)

    def open_backward(self, g: int, chunk: Chunk, grad: Tensor) -> None:
        """See `LastLayer.open_backward`."""
        op = self.integral
        self.open(g, chunk)
        self.grad = grad.reshape(-1, op.out_dim)
        by_entry = (self.grad @ self.weight.mT).view(*grad.shape[:2], op.entries, op.width, op.in_dim)
        self.grad_sums = by_entry.transpose(2, 3).reshape(self.sums.shape)

    def hidden_gradient(self, values: Tensor, place: slice, tile: Tile, out: Tensor) -> None:
        """See `LastLayer.hidden_gradient`."""
        torch.bmm(self.grad_sums[place, tile.rows].flatten(1, 2), values.mT, out=out.flatten(1, 2))

    def collect(self, h: Tensor, values: Tensor, place: slice, tile: Tile) -> Tensor:
        """See `LastLayer.collect`."""
        self.add(h, values, place, tile)
        return h.flatten(1, 2).mT @ self.grad_sums[place, tile.rows].flatten(1, 2)

    def close_backward(self, grad_weight: Tensor) -> None:
        """See `LastLayer.close_backward`."""
        sums = self._by_entry(self.sums).to(self.grad.dtype)
        add_product(grad_weight.flatten(0, 1)[None], sums.mT[None], self.grad[None])

    def _by_entry(self, sums: Tensor) -> Tensor:
        """`(b, nq, w, E·d)` to `(b·nq·E, w·d)`."""
        op = self.integral
        return sums.unflatten(-1, (op.entries, op.in_dim)).transpose(2, 3).reshape(-1, op.width * op.in_dim)


@final
class LastLayerBeforeSum(LastLayer):
    """out_i = Σ_j κ_ij ω_j u_j with κ_ij = W h_ij, once for all E entries: per pair d·d_out (w + E) multiplications.

    For integrals of batch size 1, with all entries folded into the channels.
    """

    def open(self, g: int, chunk: Chunk) -> None:
        """See `LastLayer.open`."""
        op = self.integral
        self.weight = op.t.output_weight[g].permute(2, 1, 0).flatten(0, 1)  # (d_out·d, w)
        self.total = op.empty_totals("integral", length(chunk.queries), op.out_dim, op.entries)

    def add(self, h: Tensor, values: Tensor, place: slice, tile: Tile) -> None:
        """See `LastLayer.add`."""
        total = self.total[tile.rows].flatten(0, 1)
        add_product(total[None], self._kernel(h)[None], self._columns(values)[None], fresh=tile.first)

    def closed(self) -> Tensor:
        """See `LastLayer.closed`."""
        return self.total.mT.flatten(1)[None]

    def open_backward(self, g: int, chunk: Chunk, grad: Tensor) -> None:
        """See `LastLayer.open_backward`."""
        op = self.integral
        self.open(g, chunk)
        self.grad = grad[0].unflatten(-1, (op.entries, op.out_dim)).mT.contiguous()  # (nq, d_out, E)
        self.grad_weight = torch.zeros_like(self.weight, dtype=op.accumulator)

    def hidden_gradient(self, values: Tensor, place: slice, tile: Tile, out: Tensor) -> None:
        """See `LastLayer.hidden_gradient`."""
        grad, columns = self.grad[tile.rows], self._columns(values)
        flat = self.integral.workspace.take("grad_kernel", grad.shape[0] * grad.shape[1], columns.shape[0])
        torch.mm(grad.flatten(0, 1), columns.mT, out=flat)
        self.grad_kernel = flat.view(grad.shape[0], self.weight.shape[0], -1)  # (nq, d_out·d, nk)
        torch.bmm(self.weight.mT.expand(grad.shape[0], -1, -1), self.grad_kernel, out=out[0])

    def collect(self, h: Tensor, values: Tensor, place: slice, tile: Tile) -> Tensor:
        """See `LastLayer.collect`."""
        self.grad_weight += (self.grad_kernel @ h[0].mT).sum(0)
        grad_columns = self._kernel(h).mT @ self.grad[tile.rows].flatten(0, 1)  # (d·nk, E)
        return grad_columns.view(self.integral.in_dim, -1, self.integral.entries).permute(1, 2, 0).flatten(1)[None]

    def close_backward(self, grad_weight: Tensor) -> None:
        """See `LastLayer.close_backward`."""
        op = self.integral
        grad_weight += self.grad_weight.view(op.out_dim, op.in_dim, op.width).permute(2, 1, 0)

    def _kernel(self, h: Tensor) -> Tensor:
        """κ on a tile, `(nq·d_out, d·nk)`."""
        num_queries, num_keys = h.shape[1], h.shape[3]
        kappa = self.integral.workspace.take("kernel", num_queries, self.weight.shape[0], num_keys)
        torch.bmm(self.weight.expand(num_queries, -1, -1), h[0], out=kappa)
        return kappa.view(num_queries * self.integral.out_dim, -1)

    def _columns(self, values: Tensor) -> Tensor:
        """ω_j u_j `(1, nk, E·d)` as `(d·nk, E)`."""
        return values[0].unflatten(-1, (self.integral.entries, -1)).permute(2, 0, 1).flatten(0, 1)


@final
class Gradients:
    """Sums the gradients of all tensors over the tiles of an integral, in at least float32; tiles are recomputed.

    The gradients of weights, pairs, phases and positions stay 0 unless `wanted`.
    """

    def __init__(self, integral: PerceptronSums, wanted: frozenset[str]) -> None:
        self.integral, self.wanted = integral, wanted
        device, dtype = integral.t.query.device, integral.accumulator
        self.sums = {
            name: torch.zeros(t.shape, dtype=dtype, device=device)
            for name, t in integral.t._asdict().items()
            if t is not None and name not in ("seen", "frequencies")
        }
        # in the memory layout of the products that are added to them
        self.key_bias = torch.zeros_like(self.sums["key_bias"].mT, memory_format=torch.contiguous_format)

    def run(self, grad: Tensor) -> dict[str, Tensor]:
        """Gradients of all tensors, from that of the integral, `(B, G, Nq, E·d_out)`."""
        op = self.integral
        last = op.last_layer()
        for g in range(op.kernels):
            op.first.select(g)
            self._select_table(g)
            for chunk in op.chunks():
                last.open_backward(g, chunk, grad[chunk.batch, g, chunk.queries])
                for tile in op.tiles(chunk):
                    rest = grad_rest = None
                    for b, place in op.batches(chunk):
                        if rest is None or op.first.positions_per_batch:
                            rest = op.first.relative(b, tile.queries, tile.keys, tile.in_block)
                        grad_p = self._tile(rest, last, g, b, place, tile)
                        if op.first.positions_per_batch:
                            self._geometric(grad_p, g, b, tile)
                        else:
                            grad_rest = self._over_batch(grad_p, grad_rest)
                    if grad_rest is not None:
                        self._geometric(grad_rest, g, slice(0, 1), tile)
                last.close_backward(self.sums["output_weight"][g])
            self._fold_table(g)
        self.sums["key_bias"].copy_(self.key_bias.mT)
        return self.sums

    def _select_table(self, g: int) -> None:
        """Selects the memory for the gradient of kernel g's displacement table: by window if windows are unfolded."""
        if self.integral.block.size:
            first = self.integral.first
            self.windows = first.unfold(self.sums["table"][g])
            self.windows_apart = self.windows.numel() <= first.window_elements
            if self.windows_apart:
                self.windows = torch.zeros_like(self.windows, memory_format=torch.contiguous_format)

    def _fold_table(self, g: int) -> None:
        if self.integral.block.size and self.windows_apart:
            # windows overlap: one after the other
            for place, window in zip(self.integral.first.unfold(self.sums["table"][g]), self.windows, strict=True):
                place += window

    def _over_batch(self, grad_p: Tensor, total: Tensor | None) -> Tensor:
        if total is None and grad_p.shape[0] == 1:
            if self.integral.batch == 1:
                return grad_p
            return self.integral.workspace.take("grad_relative", *grad_p.shape).copy_(grad_p)
        if total is None:
            return torch.sum(grad_p, 0, True, out=self.integral.workspace.take("grad_relative", 1, *grad_p.shape[1:]))
        return total.add_(grad_p.sum(0, keepdim=True))

    def _tile(self, rest: Tensor, last: LastLayer, g: int, b: slice, place: slice, tile: Tile) -> Tensor:
        """Gradients of the tensors that depend on the batch entry; returns that of p, `(b, nq, w, nk)`."""
        op, pairs, k = self.integral, self.integral.t.pairs, tile.keys
        before = [op.first.pre_activation(rest, b, tile.queries, k)]
        shape, hidden = before[0].shape, op.hidden(g)
        h = activate_into(before[0], op.workspace.take("h", *shape), op.activation)
        for weight, bias in hidden:
            before.append((weight @ h).add_(bias))
            h = activate_into(before[-1], op.workspace.take("h", *shape), op.activation)
        op.hide(h, b, tile)
        values = op.values(g, b, k)
        grad_p = op.workspace.take("grad_p", *shape)
        last.hidden_gradient(values, place, tile, grad_p)
        op.hide(grad_p, b, tile)
        if pairs is not None:
            at = op.pairs_at(g, b, tile)
            if "pairs" in self.wanted:
                self.sums["pairs"][at] += (h * grad_p).sum(2).sum_to_size(pairs[at].shape)
            for factor in (h, grad_p):
                factor.mul_(pairs[at][:, :, None])
        self._values(last.collect(h, values, place, tile), g, b, k)
        for layer in range(len(hidden) - 1, -1, -1):
            activation_gradient_into(grad_p, before[layer + 1], op.activation)
            below = activate_into(before[layer], op.workspace.take("h", *shape), op.activation)
            self.sums["hidden_weight"][layer, g] += torch.einsum("bqwn,bqvn->wv", grad_p, below)
            self.sums["hidden_bias"][layer, g] += grad_p.sum((0, 1, 3))
            grad_p = hidden[layer][0].mT @ grad_p
        activation_gradient_into(grad_p, before[0], op.activation)
        self._query_side(grad_p.sum(-1), g, b, tile.queries)
        if op.first.reads_keys:
            self._content(grad_p.flatten(1, 2), g, b, tile.queries, k)
        return grad_p

    def _values(self, grad_values: Tensor, g: int, b: slice, k: slice) -> None:
        t, sums = self.integral.t, self.sums
        of_batch = _of(t.weights, b)
        sums["key"][b, g, k] += grad_values * t.weights[of_batch, k, None]
        if "weights" in self.wanted:
            grad_weights = (grad_values * t.key[b, g, k]).sum(-1)
            sums["weights"][of_batch, k] += grad_weights.sum_to_size(length(of_batch), length(k))

    def _query_side(self, grad_alpha: Tensor, g: int, b: slice, q: slice) -> None:
        t, sums, geo = self.integral.t, self.sums, self.integral.first.geometry(b)
        sums["query_bias"][geo, g, q] += grad_alpha.sum_to_size(length(geo), *grad_alpha.shape[1:])
        if t.query_weight is not None:
            sums["query_weight"][g] += grad_alpha.flatten(0, 1).mT @ t.query[b, g, q].flatten(0, 1)
            sums["query"][b, g, q] += grad_alpha @ t.query_weight[g]

    def _content(self, grad_p: Tensor, g: int, b: slice, q: slice, k: slice) -> None:
        op, t, sums = self.integral, self.integral.t, self.sums
        add_product(sums["key"][b, g, k], grad_p.mT, op.first.virtual_queries(b, q))
        flat = op.workspace.take("grad_virtual", length(b), length(q) * op.width, op.in_dim)
        grad_virtual = torch.bmm(grad_p, t.key[b, g, k], out=flat).view(length(b), -1, op.width, op.in_dim)
        if t.key_weight is not None:
            sums["key_weight"][g] += grad_virtual.sum((0, 1))
        if t.product_weight is not None:
            product = op.workspace.take("product", *grad_virtual.shape)
            sums["query"][b, g, q] += torch.mul(grad_virtual, t.product_weight[g], out=product).sum(2)
            sums["product_weight"][g] += torch.mul(grad_virtual, t.query[b, g, q, None], out=product).sum((0, 1))

    def _geometric(self, grad_rest: Tensor, g: int, b: slice, tile: Tile) -> None:
        """Gradients of the tensors that depend only on positions, from that of R, `(B', nq, w, nk)`."""
        op, t, sums, q, k = self.integral, self.integral.t, self.sums, tile.queries, tile.keys
        geo = op.first.geometry(b)
        self.key_bias[geo, g, :, k] += grad_rest.sum(1)
        if tile.in_block:
            grad_rows = grad_rest.sum(0) if grad_rest.shape[0] > 1 else grad_rest[0]
            # windows held whole overlap only between grid lines, views of the table between all queries
            for run in [slice(0, length(q))] if self.windows_apart else ranges(length(q), 1):
                shifted = slice(q.start + run.start, q.start + run.stop)
                for rows, window in op.first.lines(self.windows, shifted, k):
                    window += grad_rows[run][rows].view_as(window)
            return
        if op.first.reads_steps:
            self._steps(grad_rest, g, geo, q, k)
        if t.key_phase is not None:
            grad_flat = grad_rest.flatten(1, 2)
            self._rotation((grad_flat @ t.key_phase[geo, k]).view(*grad_rest.shape[:3], -1), g, geo, q)
            if "key_phase" in self.wanted:
                sums["key_phase"][geo, k] += grad_flat.mT @ op.first.rotated(geo, q)

    def _steps(self, grad_rest: Tensor, g: int, geo: slice, q: slice, k: slice) -> None:
        """Gradients of distances and wrapped displacements, and through both of positions."""
        first, t, sums = self.integral.first, self.integral.t, self.sums
        steps = first.steps(geo, q, k)
        grad_steps = [torch.zeros_like(step) for step in steps]
        moves = bool(self.wanted & {"query_pos", "key_pos"})
        if t.distance_weight is not None:
            distances = first.distances(steps)
            sums["distance_weight"][g] += (grad_rest @ distances[..., None])[..., 0].sum((0, 1))
            if moves:
                # the gradient of a distance is taken as 0 where the points coincide
                scale = divided(t.distance_weight[g] @ grad_rest, distances)
                grad_steps = [grad + scale * step for grad, step in zip(grad_steps, steps, strict=True)]
        if t.wrapped_weight is not None:
            lifted = first.lifted(steps)
            sums["wrapped_weight"][g] += (grad_rest @ lifted.mT).sum((0, 1))
            if moves:
                more = self._lifted(t.wrapped_weight[g].mT @ grad_rest, lifted)
                grad_steps = [grad + step for grad, step in zip(grad_steps, more, strict=True)]
        if moves:
            sums["query_pos"][geo, q] += torch.stack([grad.sum(2) for grad in grad_steps], -1)
            sums["key_pos"][geo, k] -= torch.stack([grad.sum(1) for grad in grad_steps], -1)

    def _lifted(self, grad_lifted: Tensor, lifted: Tensor) -> list[Tensor]:
        """The gradient of x_i - x_j along each axis from that of γ(x_i - x_j), `(B', nq, 2L or s, nk)`."""
        frequencies = self.integral.t.frequencies
        if frequencies is None or not frequencies.shape[0]:
            return list(grad_lifted.unbind(2))
        (sin, cos), (on_sin, on_cos) = lifted.chunk(2, 2), grad_lifted.chunk(2, 2)
        grad_phases = (on_sin * cos - on_cos * sin).to(frequencies.dtype)
        return [2 * math.pi * (grad_phases * f[:, None]).sum(2) for f in frequencies.unbind(-1)]

    def _rotation(self, grad_rotated: Tensor, g: int, geo: slice, q: slice) -> None:
        sums, (sin_w, cos_w, sin_q, cos_q) = self.sums, self.integral.first.rotation(geo, q)
        on_sin, on_cos = grad_rotated.chunk(2, dim=-1)  # (B', nq, w, L)
        sums["cos_weight"][g] += (on_sin * sin_q + on_cos * cos_q).sum((0, 1))
        sums["sin_weight"][g] += (on_cos * sin_q - on_sin * cos_q).sum((0, 1))
        if "query_phase" in self.wanted:
            grad_sin = (on_sin * cos_w + on_cos * sin_w).sum(2)
            grad_cos = (on_cos * cos_w - on_sin * sin_w).sum(2)
            sums["query_phase"][geo, q] += torch.cat([grad_sin, grad_cos], dim=-1)


def _of(per_entry: Tensor, b: slice) -> slice:
    """The slice of batch entries in a tensor that may have one entry for all."""
    return b if per_entry.shape[0] > 1 else slice(0, 1)


def add_product(total: Tensor, a: Tensor, b: Tensor, *, fresh: bool = False) -> None:
    """total += a @ b for stacks of matrices, or total = a @ b when fresh; total may be more precise than a and b."""
    # with gaps in the total, matrices would be multiplied one at a time
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


def _like(inputs: PerceptronInputs, block: list[int], activation: str, elements: int | None) -> PerceptronOutputs:
    channels = inputs.entries * inputs.output_weight.shape[-1]
    return PerceptronOutputs(inputs.query.new_empty(*inputs.query.shape[:3], channels))


def _sums_of(inputs: PerceptronInputs, block: list[int], activation: str, elements: int | None) -> PerceptronSums:
    (batch, _, num_queries, _), num_keys = inputs.query.shape, inputs.key.shape[2]
    width, dim, out_dim = inputs.output_weight.shape[1], inputs.key.shape[-1], inputs.output_weight.shape[-1]
    if evaluates_kernel(inputs.entries, width, out_dim):
        width, dim = max(width, inputs.output_weight[0, 0].numel()), 1
    elements = elements or (1 << 20 if inputs.query.device.type == "cpu" else 1 << 26)
    tiling = choose_tiling(batch, num_queries, num_keys, width, dim, elements)
    return PerceptronSums(inputs, Block.of(block), activation, tiling)


def _forward(inputs: PerceptronInputs, block: list[int], activation: str, elements: int | None) -> PerceptronOutputs:
    return PerceptronOutputs(_sums_of(inputs, block, activation, elements).forward())


mlp_integral = Operator(
    "mlp_integral",
    PerceptronInputs,
    PerceptronOutputs,
    _forward,
    _like,
    lambda inputs, _, grads, wanted, *options: Gradients(_sums_of(inputs, *options), wanted).run(grads.out),
    plain=plain_integral,
)
"""The integral, of tensors in one dtype but for positions, frequencies and `seen`.

Options: `Block.numbers`; "gelu", "gelu_tanh" or "relu"; and entries of p in a tile, as in `Tiled`.
"""
