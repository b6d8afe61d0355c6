"""The backward pass: every tile is built again, used, and dropped; and the operator. Legend: `inputs.py`."""

from typing import final

import torch
from torch import Tensor

from fredholm.evaluation.custom_op import Operator
from fredholm.evaluation.perceptron.inputs import IntegralInputs, IntegralOutputs, length
from fredholm.evaluation.perceptron.integral import (
    Integral,
    Tile,
    activate_into,
    activation_gradient_into,
    add_product,
)
from fredholm.evaluation.perceptron.tiling import ranges
from fredholm.kernels.arithmetic import divided


@final
class Gradients:
    """Sums the gradients of all tensors over the tiles of an integral, in at least float32.

    Those of weights, phases and positions are left 0 where they are not `wanted`.
    """

    def __init__(self, integral: Integral, wanted: frozenset[str]) -> None:
        self.integral, self.wanted = integral, wanted
        device, dtype = integral.t.query.device, integral.accumulator
        zeros = (torch.zeros(t.shape, dtype=dtype, device=device) for t in integral.t[:-1])
        self.sums = IntegralInputs._make([*zeros, integral.t.seen])
        # held in the layout of the products that feed them
        self.key_bias = torch.zeros_like(self.sums.key_bias.mT, memory_format=torch.contiguous_format)

    def run(self, grad: Tensor) -> dict[str, Tensor]:
        """Gradients of all tensors, from that of the integral, `(B, G, Nq, d_out)`."""
        op = self.integral
        for g in range(op.kernels):
            op.first.select(g)
            last, grad_last = op.last_layer(g), self.sums.output_weight[g].flatten(0, 1)
            self._select_table(g)
            for chunk in op.chunks():
                sums = op.empty_sums(chunk)
                grad_out = grad[chunk.batch, g, chunk.queries].reshape(-1, op.out_dim)
                grad_sums = (grad_out @ last.mT).view(sums.shape)
                for tile in op.tiles(chunk):
                    rest = grad_rest = None
                    for b, place in op.batches(chunk):
                        if rest is None or op.first.positions_per_batch:
                            rest = op.first.relative(b, tile.queries, tile.keys, tile.in_block)
                        here = (place, tile.rows)
                        grad_p = self._tile(rest, sums[here].flatten(1, 2), grad_sums[here].flatten(1, 2), g, b, tile)
                        if op.first.positions_per_batch:
                            self._geometric(grad_p, g, b, tile)
                        else:
                            grad_rest = self._over_batch(grad_p, grad_rest)
                    if grad_rest is not None:
                        self._geometric(grad_rest, g, slice(0, 1), tile)
                add_product(grad_last[None], sums.view(1, -1, last.shape[0]).to(grad.dtype).mT, grad_out[None])
            self._fold_table(g)
        self.sums.key_bias.copy_(self.key_bias.mT)
        return self.sums._asdict()

    def _select_table(self, g: int) -> None:
        """Where the gradient of kernel g's displacement table is summed: by window where windows are held whole."""
        if self.integral.block.size:
            first = self.integral.first
            self.windows = first.unfold(self.sums.table[g])
            self.windows_apart = self.windows.numel() <= first.window_elements
            if self.windows_apart:
                self.windows = torch.zeros_like(self.windows, memory_format=torch.contiguous_format)

    def _fold_table(self, g: int) -> None:
        if self.integral.block.size and self.windows_apart:
            # windows overlap: one after the other
            for place, window in zip(self.integral.first.unfold(self.sums.table[g]), self.windows, strict=True):
                place += window

    def _over_batch(self, grad_p: Tensor, total: Tensor | None) -> Tensor:
        if total is None and grad_p.shape[0] == 1:
            if self.integral.batch == 1:
                return grad_p
            return self.integral.workspace.take("grad_relative", *grad_p.shape).copy_(grad_p)
        if total is None:
            return torch.sum(grad_p, 0, True, out=self.integral.workspace.take("grad_relative", 1, *grad_p.shape[1:]))
        return total.add_(grad_p.sum(0, keepdim=True))

    def _tile(self, rest: Tensor, sums: Tensor, grad_sums: Tensor, g: int, b: slice, tile: Tile) -> Tensor:
        """Everything that depends on the batch entry; returns the gradient of p, `(b, nq, w, nk)`.

        `sums` and `grad_sums` are S, to be added to, and its gradient, both `(b, nq·w, d)`.
        """
        op, t, k = self.integral, self.integral.t, tile.keys
        before = [op.first.pre_activation(rest, b, tile.queries, k)]
        shape = before[0].shape
        h = activate_into(before[0], op.workspace.take("h", *shape), op.activation)
        for layer in range(t.hidden_weight.shape[0]):
            before.append(op.hidden(h, layer, g))
            h = activate_into(before[-1], op.workspace.take("h", *shape), op.activation)
        op.hide(h, b, tile)
        h = h.flatten(1, 2)  # (b, nq·w, nk)
        values = op.values(g, b, k)
        add_product(sums, h, values, fresh=tile.first)
        self._values(h.mT @ grad_sums, g, b, k)
        grad_p = op.workspace.take("grad_p", *shape)
        torch.bmm(grad_sums, values.mT, out=grad_p.flatten(1, 2))
        op.hide(grad_p, b, tile)
        for layer in range(len(before) - 1, 0, -1):
            activation_gradient_into(grad_p, before[layer], op.activation)
            below = activate_into(before[layer - 1], op.workspace.take("h", *shape), op.activation)
            self.sums.hidden_weight[layer - 1, g] += torch.einsum("bqwn,bqvn->wv", grad_p, below)
            self.sums.hidden_bias[layer - 1, g] += grad_p.sum((0, 1, 3))
            grad_p = t.hidden_weight[layer - 1, g].mT @ grad_p
        activation_gradient_into(grad_p, before[0], op.activation)
        self._query_side(grad_p.sum(-1), g, b, tile.queries)
        if op.first.reads_keys:
            self._content(grad_p.flatten(1, 2), g, b, tile.queries, k)
        return grad_p

    def _values(self, grad_values: Tensor, g: int, b: slice, k: slice) -> None:
        t, sums = self.integral.t, self.sums
        of_batch = b if t.weights.shape[0] > 1 else slice(0, 1)
        sums.key[b, g, k] += grad_values * t.weights[of_batch, k, None]
        if "weights" in self.wanted:
            grad_weights = (grad_values * t.key[b, g, k]).sum(-1)
            sums.weights[of_batch, k] += grad_weights.sum_to_size(length(of_batch), length(k))

    def _query_side(self, grad_alpha: Tensor, g: int, b: slice, q: slice) -> None:
        t, sums, geo = self.integral.t, self.sums, self.integral.first.geometry(b)
        sums.query_bias[geo, g, q] += grad_alpha.sum_to_size(length(geo), *grad_alpha.shape[1:])
        if t.query_weight.numel():
            sums.query_weight[g] += grad_alpha.flatten(0, 1).mT @ t.query[b, g, q].flatten(0, 1)
            sums.query[b, g, q] += grad_alpha @ t.query_weight[g]

    def _content(self, grad_p: Tensor, g: int, b: slice, q: slice, k: slice) -> None:
        op, t, sums = self.integral, self.integral.t, self.sums
        add_product(sums.key[b, g, k], grad_p.mT, op.first.virtual_queries(b, q))
        flat = op.workspace.take("grad_virtual", length(b), length(q) * op.width, op.dim)
        grad_virtual = torch.bmm(grad_p, t.key[b, g, k], out=flat).view(length(b), -1, op.width, op.dim)
        if t.key_weight.numel():
            sums.key_weight[g] += grad_virtual.sum((0, 1))
        if t.product_weight.numel():
            product = op.workspace.take("product", *grad_virtual.shape)
            sums.query[b, g, q] += torch.mul(grad_virtual, t.product_weight[g], out=product).sum(2)
            sums.product_weight[g] += torch.mul(grad_virtual, t.query[b, g, q, None], out=product).sum((0, 1))

    def _geometric(self, grad_rest: Tensor, g: int, b: slice, tile: Tile) -> None:
        """Everything that only positions determine, from the gradient of R, `(B', nq, w, nk)`."""
        op, t, sums, q, k = self.integral, self.integral.t, self.sums, tile.queries, tile.keys
        geo = op.first.geometry(b)
        self.key_bias[geo, g, :, k] += grad_rest.sum(1)
        if tile.in_block:
            grad_rows = grad_rest.sum(0) if len(grad_rest) > 1 else grad_rest[0]
            # windows held whole overlap only between grid lines, views of the table between all queries
            for run in [slice(0, length(q))] if self.windows_apart else ranges(length(q), 1):
                shifted = slice(q.start + run.start, q.start + run.stop)
                for rows, window in op.first.lines(self.windows, shifted, k):
                    window += grad_rows[run][rows].view_as(window)
            return
        if t.distance_weight.numel():
            distances = op.first.distances(geo, q, k)
            sums.distance_weight[g] += (grad_rest @ distances[..., None])[..., 0].sum((0, 1))
            if self.wanted & {"query_pos", "key_pos"}:
                self._distances(t.distance_weight[g] @ grad_rest, distances, geo, q, k)
        if t.sin_weight.numel():
            grad_flat = grad_rest.flatten(1, 2)
            self._rotation((grad_flat @ t.key_phase[geo, k]).view(*grad_rest.shape[:3], -1), g, geo, q)
            if "key_phase" in self.wanted:
                sums.key_phase[geo, k] += grad_flat.mT @ op.first.rotated(geo, q)

    def _distances(self, grad_distances: Tensor, distances: Tensor, geo: slice, q: slice, k: slice) -> None:
        """Gradient of ‖x - y‖, taken as 0 where the points coincide."""
        t, sums = self.integral.t, self.sums
        step = divided(grad_distances, distances)[..., None] * (t.query_pos[geo, q, None] - t.key_pos[geo, None, k])
        sums.query_pos[geo, q] += step.sum(2)
        sums.key_pos[geo, k] -= step.sum(1)

    def _rotation(self, grad_rotated: Tensor, g: int, geo: slice, q: slice) -> None:
        t, sums = self.integral.t, self.sums
        on_sin, on_cos = grad_rotated.chunk(2, dim=-1)  # (B', nq, w, L)
        sin_q, cos_q = t.query_phase[geo, q, None].chunk(2, dim=-1)
        sums.cos_weight[g] += (on_sin * sin_q + on_cos * cos_q).sum((0, 1))
        sums.sin_weight[g] += (on_cos * sin_q - on_sin * cos_q).sum((0, 1))
        if "query_phase" in self.wanted:
            sin_w, cos_w = t.sin_weight[g], t.cos_weight[g]
            grad_sin = (on_sin * cos_w + on_cos * sin_w).sum(2)
            grad_cos = (on_cos * cos_w - on_sin * sin_w).sum(2)
            sums.query_phase[geo, q] += torch.cat([grad_sin, grad_cos], dim=-1)


def _forward(inputs: IntegralInputs, block: list[int], activation: str, tiling: list[int]) -> IntegralOutputs:
    return IntegralOutputs(Integral(inputs, block, activation, tiling).forward())


def _like(inputs: IntegralInputs, block: list[int], activation: str, tiling: list[int]) -> IntegralOutputs:
    return IntegralOutputs(inputs.query.new_empty(*inputs.query.shape[:3], inputs.output_weight.shape[-1]))


mlp_integral = Operator(
    "mlp_integral",
    IntegralInputs,
    IntegralOutputs,
    _forward,
    _like,
    lambda inputs, _, grads, wanted, *options: Gradients(Integral(inputs, *options), wanted).run(grads.out),
)
"""The integral, of tensors in one dtype but for `seen`.

Its options: the fields of `Block`, its shape last, where no shape means no grid; "gelu", "gelu_tanh" or "relu"; and the
fields of `Tiling`.
"""
