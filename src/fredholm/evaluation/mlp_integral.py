"""The integral of a pairwise perceptron kernel, tile by tile: forward, and backward by recomputation.

Legend (one kernel g of G; batch entry b; query i; key j; hidden unit k; see `kernels.PairwiseForm` for the kernel itself)
    p_ijk   pre-activation of the first layer            h_ijk   last hidden layer
    R_ijk   the part of p that does not see the batch    α_ik    the part that only the query sees
    M_i     (w, d) "virtual queries" K + P ⊙ u_i, so that p_ij = R_ij + α_i + M_i u_j: one matrix product for all units
    S_i     Σ_j h_ij ⊗ ω_j u_j, (w, d)                   out_i   W S_i: the last layer is applied once a query

Per pair this costs 2w(2d) flops beyond R instead of the 2w·d² of evaluating κ; nothing of size N x N outlives a tile, and the
backward pass rebuilds each tile from the inputs alone.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor


class IntegralInputs(NamedTuple):
    """All tensors of one integral; an absent one is empty. B' is 1 or B."""

    query: Tensor  # u at the queries, (B, G, Nq, d)
    key: Tensor  # u at the keys, (B, G, N, d)
    weights: Tensor  # ω, (B', N)
    query_bias: Tensor  # (B', G, Nq, w)
    key_bias: Tensor  # (B', G, N, w)
    query_weight: Tensor  # (G, w, d)
    key_weight: Tensor  # K: (G, w, d)
    product_weight: Tensor  # P: (G, w, d)
    sin_weight: Tensor  # (G, w, L)
    cos_weight: Tensor  # (G, w, L)
    query_phase: Tensor  # [sin, cos]: (B', Nq, 2L)
    key_phase: Tensor  # (B', N, 2L)
    distance_weight: Tensor  # (G, w)
    query_pos: Tensor  # (B', Nq, s)
    key_pos: Tensor  # (B', N, s)
    hidden_weight: Tensor  # (m, G, w, w)
    hidden_bias: Tensor  # (m, G, w)
    output_weight: Tensor  # W: (G, d_out, d, w)
    table: Tensor  # R of the grid block by displacement, (G, w, 2 n_1 - 1, ...)
    seen: Tensor  # number of leading keys each query may see, int64 (B', Nq)


class Tiling(NamedTuple):
    """Sizes of a tile along batch, queries and keys."""

    batch: int
    queries: int
    keys: int


class _Block(NamedTuple):
    """Where the grid block lies: its queries in reversed order from `query_start`, its keys from `key_start`."""

    query_start: int
    key_start: int
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return int(torch.Size(self.shape).numel()) if self.shape else 0

    @property
    def row(self) -> int:
        """Points that share their first grid coordinate."""
        return self.size // self.shape[0]


def choose_tiling(batch: int, num_queries: int, num_keys: int, width: int, dim: int, elements: int) -> Tiling:
    """A tile of about `elements` entries of p: all keys when they fit, then queries, then batch entries."""
    keys = min(num_keys, max(256, elements // (4 * width)))
    per_query = width * max(keys, dim)
    queries = max(1, min(num_queries, elements // per_query))
    return Tiling(max(1, min(batch, elements // (per_query * queries))), queries, keys)


class _Integral:
    """One call: its tensors by name, and how p is built on a tile."""

    def __init__(self, tensors: list[Tensor], block: list[int], activation: str, tiling: list[int]) -> None:
        self.t = IntegralInputs(*tensors)
        self.block = _Block(block[0], block[1], tuple(block[2:]))
        self.activation = activation
        self.tiling = Tiling(*tiling)
        self.batch, self.kernels, self.num_queries, self.dim = self.t.query.shape
        self.num_keys, self.width = self.t.key.shape[2], self.t.key_bias.shape[-1]
        self.accumulator = torch.promote_types(self.t.query.dtype, torch.float32)
        self.positions_per_batch = self.t.key_bias.shape[0] > 1 or self.t.query_bias.shape[0] > 1
        self.has_seen = self.t.seen.numel() > 0
        self.reads_keys = bool(self.t.key_weight.numel() or self.t.product_weight.numel())

    def tiles(self) -> Iterator[tuple[slice, slice, bool]]:
        """Query and key ranges, and whether both lie in the grid block; a causal kernel skips what no query sees."""
        limits = self.t.seen.amax(0).tolist() if self.has_seen else []
        for q, q_in in self._ranges(self.num_queries, self.tiling.queries, self.block.query_start, 1):
            limit = max(limits[q], default=0) if self.has_seen else self.num_keys
            for k, k_in in self._ranges(self.num_keys, self.tiling.keys, self.block.key_start, self._row()):
                if k.start < limit:
                    yield q, k, q_in and k_in

    def _row(self) -> int:
        return self.block.row if self.block.size else 1

    def _ranges(self, total: int, step: int, start: int, multiple: int) -> Iterator[tuple[slice, bool]]:
        stop = start + self.block.size
        for low, high, inside in ((0, start, False), (start, stop, True), (stop, total, False)):
            stride = max(multiple, step // multiple * multiple) if inside else step
            for first in range(low, high, stride):
                yield slice(first, min(first + stride, high)), inside

    def batches(self) -> Iterator[slice]:
        for first in range(0, self.batch, self.tiling.batch):
            yield slice(first, min(first + self.tiling.batch, self.batch))

    def geometry(self, b: slice) -> slice:
        """The batch range of what positions determine."""
        return b if self.positions_per_batch else slice(0, 1)

    def windows(self, table: Tensor, q: slice, k: slice) -> Iterator[tuple[slice, Tensor]]:
        """Runs of queries on one grid line, and their displacement table windows `(w, *rows, n, *cells)`.

        Queries run backwards through the grid, so that the window of the r-th query starts at entry r of the table.
        """
        shape, row = self.block.shape, self._row()
        rows = slice((k.start - self.block.key_start) // row, (k.stop - self.block.key_start) // row)
        first, stop, line = q.start - self.block.query_start, q.stop - self.block.query_start, shape[-1]
        while first < stop:
            count = min(stop - first, line - first % line)
            *leading, start = _unravel(first, shape)
            window = table
            for axis, (offset, extent) in enumerate(zip(leading, shape, strict=False)):
                low, size = (offset + rows.start, rows.stop - rows.start) if axis == 0 else (offset, extent)
                window = window.narrow(axis + 1, low, size)
            if len(shape) == 1:
                window = window.narrow(1, rows.start, table.shape[1] - rows.start)
                window = window.unfold(1, rows.stop - rows.start, 1).narrow(1, start, count)
            else:
                window = window.unfold(len(shape), line, 1).narrow(len(shape), start, count)
            here = first - (q.start - self.block.query_start)
            yield slice(here, here + count), window.movedim(len(shape), 0)  # (count, w, *key cells)
            first += count

    def shared(self, g: int, b: slice, q: slice, k: slice, in_block: bool) -> Tensor:
        """R on a tile, `(B', nq, w, nk)`."""
        t, geo = self.t, self.geometry(b)
        key_bias = t.key_bias[geo, g, k].mT.contiguous()[:, None]  # (B', 1, w, nk)
        n_q, n_k = q.stop - q.start, k.stop - k.start
        if in_block:
            rest = key_bias.new_empty(key_bias.shape[0], n_q, self.width, n_k)
            for rows, window in self.windows(t.table[g], q, k):
                cells = window.shape[2:]
                torch.add(key_bias.unflatten(-1, cells), window, out=rest[:, rows].unflatten(-1, cells))
            return rest
        if t.distance_weight.numel():
            rest = torch.addcmul(key_bias, t.distance_weight[g][:, None], self.distances(b, q, k)[:, :, None])
        else:
            rest = key_bias.expand(-1, n_q, -1, -1).contiguous()
        if t.sin_weight.numel():
            rest.view(rest.shape[0], -1, n_k).baddbmm_(self.rotated(g, b, q).flatten(1, 2), t.key_phase[self.geometry(b), k].mT)
        return rest

    def distances(self, b: slice, q: slice, k: slice) -> Tensor:
        """‖x_i - x_j‖, `(B', nq, nk)`, by differences: the expansion of the square loses near points."""
        geo = self.geometry(b)
        squared = sum(
            (self.t.query_pos[geo, q, None, c] - self.t.key_pos[geo, None, k, c]).square()
            for c in range(self.t.key_pos.shape[-1])
        )
        assert isinstance(squared, Tensor)
        return squared.sqrt_()

    def rotated(self, g: int, b: slice, q: slice) -> Tensor:
        """Coefficients of [sin θ_j, cos θ_j] in s·sin(θ_i - θ_j) + c·cos(θ_i - θ_j), `(B', nq, w, 2L)`."""
        sin_w, cos_w = self.t.sin_weight[g], self.t.cos_weight[g]
        sin_q, cos_q = self.t.query_phase[self.geometry(b), q, None].chunk(2, dim=-1)
        out = sin_q.new_empty(*sin_q.shape[:2], self.width, 2 * sin_w.shape[-1])
        on_sin, on_cos = out.chunk(2, dim=-1)
        torch.mul(cos_w, sin_q, out=on_sin).addcmul_(sin_w, cos_q, value=-1)
        torch.mul(sin_w, sin_q, out=on_cos).addcmul_(cos_w, cos_q)
        return out

    def virtual_queries(self, g: int, b: slice, q: slice) -> Tensor:
        """M, `(b, nq·w, d)`."""
        u = self.t.query[b, g, q, None]
        if not self.t.product_weight.numel():
            out = self.t.key_weight[g].expand(*u.shape[:2], -1, -1)
        elif not self.t.key_weight.numel():
            out = self.t.product_weight[g] * u
        else:
            out = torch.addcmul(self.t.key_weight[g], self.t.product_weight[g], u)
        return out.reshape(u.shape[0], -1, self.dim)

    def pre_activation(self, rest: Tensor, g: int, b: slice, q: slice, k: slice) -> tuple[Tensor, Tensor | None]:
        """p on a tile, `(b, nq, w, nk)`, and M where the kernel reads the keys' content."""
        alpha = self.t.query_bias[self.geometry(b), g, q]
        if self.t.query_weight.numel():
            alpha = alpha + self.t.query[b, g, q] @ self.t.query_weight[g].mT
        size = b.stop - b.start
        p = rest.add_(alpha[..., None]) if self.batch == 1 else rest + alpha[..., None]
        p = p if p.shape[0] == size else p.expand(size, -1, -1, -1).contiguous()
        if not self.reads_keys:
            return p, None
        virtual = self.virtual_queries(g, b, q)
        p.view(size, -1, p.shape[-1]).baddbmm_(virtual, self.t.key[b, g, k].mT)
        return p, virtual

    def layers(self, p: Tensor, g: int) -> tuple[list[Tensor], Tensor]:
        """Pre-activations of every hidden layer, and the last hidden layer h; both `(b, nq, w, nk)`."""
        before = [p]
        for weight, bias in zip(self.t.hidden_weight[:, g], self.t.hidden_bias[:, g], strict=True):
            before.append((weight @ _activate(before[-1], self.activation)).add_(bias[:, None]))
        return before, _activate(before[-1], self.activation)

    def hide(self, value: Tensor, b: slice, q: slice, k: slice) -> Tensor:
        """Sets entries of keys that a query must not see to 0, in place."""
        if self.has_seen:
            seen = self.t.seen[b if self.t.seen.shape[0] > 1 else slice(0, 1), q]
            hidden = torch.arange(k.start, k.stop, device=value.device) >= seen[..., None]
            value.masked_fill_(hidden[:, :, None], 0)
        return value

    def values(self, g: int, b: slice, k: slice) -> Tensor:
        """ω_j u_j, `(b, nk, d)`."""
        weights = self.t.weights[b if self.t.weights.shape[0] > 1 else slice(0, 1), k, None]
        return self.t.key[b, g, k] * weights

    def forward(self) -> Tensor:
        t = self.t
        out = torch.zeros(*t.query.shape[:3], t.output_weight.shape[1], dtype=self.accumulator, device=t.query.device)
        for g in range(self.kernels):
            last = t.output_weight[g].permute(2, 1, 0).flatten(0, 1)  # (w·d, d_out)
            for q, k, in_block in self.tiles():
                rest = None
                for b in self.batches():
                    if rest is None or self.positions_per_batch:
                        rest = self.shared(g, b, q, k, in_block)
                    h = self.hide(self.layers(self.pre_activation(rest, g, b, q, k)[0], g)[1], b, q, k)
                    sums = h.flatten(1, 2) @ self.values(g, b, k)
                    out[b, g, q] += (sums.view(-1, last.shape[0]) @ last).view(*out[b, g, q].shape)
        return out.to(t.query.dtype)


def _unravel(index: int, shape: tuple[int, ...]) -> list[int]:
    out = []
    for extent in reversed(shape):
        index, remainder = divmod(index, extent)
        out.append(remainder)
    return out[::-1]


def _activate(p: Tensor, activation: str) -> Tensor:
    if activation == "relu":
        return p.clamp_min(0)
    return torch.nn.functional.gelu(p, approximate="tanh" if activation == "gelu_tanh" else "none")


def _activate_backward(grad: Tensor, p: Tensor, activation: str) -> Tensor:
    if activation == "relu":
        return torch.ops.aten.threshold_backward(grad, p, 0)
    return torch.ops.aten.gelu_backward(grad, p, approximate="tanh" if activation == "gelu_tanh" else "none")


class _Gradients:
    """Sums the gradients of all tensors over the tiles, in at least float32."""

    def __init__(self, integral: _Integral, wanted: list[bool]) -> None:
        self.integral = integral
        self.wanted = IntegralInputs(*wanted)  # pyright: ignore[reportArgumentType]
        device, dtype = integral.t.query.device, integral.accumulator
        zeros = (torch.zeros(t.shape, dtype=dtype, device=device) for t in integral.t[:-1])
        self.sums = IntegralInputs(*zeros, integral.t.seen)
        # by kernel as (w·d, d_out), the shape of the product that applies it
        kernels, d_out, d, width = integral.t.output_weight.shape
        self.last = torch.zeros(kernels, width * d, d_out, dtype=dtype, device=device)

    def run(self, grad: Tensor) -> list[Tensor]:
        op = self.integral
        for g in range(op.kernels):
            for q, k, in_block in op.tiles():
                rest = grad_rest = None
                for b in op.batches():
                    if rest is None or op.positions_per_batch:
                        rest = op.shared(g, b, q, k, in_block)
                    grad_p = self.tile(grad, rest, g, b, q, k)
                    if op.positions_per_batch:
                        self.geometric(grad_p, g, b, q, k, in_block)
                    else:
                        total = grad_p.sum(0, keepdim=True) if grad_p.shape[0] > 1 else grad_p
                        grad_rest = total if grad_rest is None else grad_rest.add_(total)
                if grad_rest is not None:
                    self.geometric(grad_rest, g, slice(0, 1), q, k, in_block)
        d_out, d = op.t.output_weight.shape[1:3]
        self.sums.output_weight.copy_(self.last.view(op.kernels, op.width, d, d_out).permute(0, 3, 2, 1))
        return [total.to(t.dtype) for total, t in zip(self.sums[:-1], op.t[:-1], strict=True)]

    def tile(self, grad: Tensor, rest: Tensor, g: int, b: slice, q: slice, k: slice) -> Tensor:
        """Everything that depends on the batch entry; returns the gradient of p, `(b, nq, w, nk)`."""
        op, t, sums = self.integral, self.integral.t, self.sums
        p, virtual = op.pre_activation(rest, g, b, q, k)
        before, h = op.layers(p, g)
        h = op.hide(h, b, q, k).flatten(1, 2)  # (b, nq·w, nk)
        values, key = op.values(g, b, k), t.key[b, g, k]
        grad_out = grad[b, g, q].reshape(-1, grad.shape[-1])  # (b·nq, d_out)
        last = t.output_weight[g].permute(0, 2, 1).flatten(1)  # (d_out, w·d)
        grad_sums = (grad_out @ last).view(p.shape[0], -1, op.dim)  # (b, nq·w, d)
        self.last[g] += (h @ values).view(grad_out.shape[0], -1).mT @ grad_out
        grad_values = h.mT @ grad_sums
        weights = t.weights[b if t.weights.shape[0] > 1 else slice(0, 1), k, None]
        sums.key[b, g, k] += grad_values * weights
        if self.wanted.weights:
            self._add_weights((grad_values * key).sum(-1), b, k)
        grad_p = (grad_sums @ values.mT).view_as(p)
        for layer in range(len(before) - 1, -1, -1):
            grad_p = _activate_backward(grad_p, before[layer], op.activation)
            if layer == len(before) - 1:
                op.hide(grad_p, b, q, k)
            if layer > 0:
                below = _activate(before[layer - 1], op.activation)
                sums.hidden_weight[layer - 1, g] += torch.einsum("bqwn,bqvn->wv", grad_p, below)
                sums.hidden_bias[layer - 1, g] += grad_p.sum((0, 1, 3))
                grad_p = t.hidden_weight[layer - 1, g].mT @ grad_p
        self._query_side(grad_p.sum(-1), g, b, q)
        if virtual is not None:
            self._content(grad_p.flatten(1, 2), virtual, g, b, q, k)
        return grad_p

    def _add_weights(self, value: Tensor, b: slice, k: slice) -> None:
        if self.sums.weights.shape[0] > 1:
            self.sums.weights[b, k] += value
        else:
            self.sums.weights[0, k] += value.sum(0)

    def _query_side(self, grad_alpha: Tensor, g: int, b: slice, q: slice) -> None:
        op, t, sums = self.integral, self.integral.t, self.sums
        if op.positions_per_batch and t.query_bias.shape[0] > 1:
            sums.query_bias[b, g, q] += grad_alpha
        else:
            sums.query_bias[0, g, q] += grad_alpha.sum(0)
        if t.query_weight.numel():
            sums.query_weight[g] += grad_alpha.flatten(0, 1).mT @ t.query[b, g, q].flatten(0, 1)
            sums.query[b, g, q] += grad_alpha @ t.query_weight[g]

    def _content(self, grad_p: Tensor, virtual: Tensor, g: int, b: slice, q: slice, k: slice) -> None:
        op, t, sums = self.integral, self.integral.t, self.sums
        sums.key[b, g, k] += grad_p.mT @ virtual
        grad_virtual = (grad_p @ t.key[b, g, k]).view(b.stop - b.start, -1, op.width, op.dim)
        if t.key_weight.numel():
            sums.key_weight[g] += grad_virtual.sum((0, 1))
        if t.product_weight.numel():
            sums.query[b, g, q] += (grad_virtual * t.product_weight[g]).sum(2)
            sums.product_weight[g] += grad_virtual.mul_(t.query[b, g, q, None]).sum((0, 1))

    def geometric(self, grad_rest: Tensor, g: int, b: slice, q: slice, k: slice, in_block: bool) -> None:
        """Everything that only positions determine, from the gradient of R, `(B', nq, w, nk)`."""
        op, t, sums = self.integral, self.integral.t, self.sums
        geo = op.geometry(b)
        sums.key_bias[geo, g, k] += grad_rest.sum(1).mT
        if in_block:
            # the windows of neighbouring queries overlap: one after the other
            for i, grad_row in zip(range(q.start, q.stop), grad_rest.sum(0), strict=True):
                for _, window in op.windows(sums.table[g], slice(i, i + 1), k):
                    window += grad_row.view_as(window)
            return
        if t.distance_weight.numel():
            distances = op.distances(b, q, k)
            sums.distance_weight[g] += (grad_rest @ distances[..., None])[..., 0].sum((0, 1))
            if self.wanted.query_pos or self.wanted.key_pos:
                self._distance(t.distance_weight[g] @ grad_rest, distances, geo, q, k)
        if t.sin_weight.numel():
            grad_flat, phase = grad_rest.flatten(1, 2), t.key_phase[geo, k]
            self._rotation((grad_flat @ phase).view(*grad_rest.shape[:3], -1), g, geo, q)
            if self.wanted.key_phase:
                sums.key_phase[geo, k] += grad_flat.mT @ op.rotated(g, b, q).view(grad_flat.shape[0], -1, 2 * t.sin_weight.shape[-1])

    def _distance(self, grad_distance: Tensor, distances: Tensor, geo: slice, q: slice, k: slice) -> None:
        """Gradient of ‖x - y‖, taken as 0 where the points coincide."""
        t, sums = self.integral.t, self.sums
        scale = torch.where(distances > 0, grad_distance / distances.clamp_min(torch.finfo(distances.dtype).tiny), 0.0)
        step = scale[..., None] * (t.query_pos[geo, q, None] - t.key_pos[geo, None, k])
        sums.query_pos[geo, q] += step.sum(2)
        sums.key_pos[geo, k] -= step.sum(1)

    def _rotation(self, grad_rotated: Tensor, g: int, geo: slice, q: slice) -> None:
        t, sums = self.integral.t, self.sums
        on_sin, on_cos = grad_rotated.chunk(2, dim=-1)  # (B', nq, w, L)
        sin_q, cos_q = t.query_phase[geo, q, None].chunk(2, dim=-1)
        sums.cos_weight[g] += (on_sin * sin_q + on_cos * cos_q).sum((0, 1))
        sums.sin_weight[g] += (on_cos * sin_q - on_sin * cos_q).sum((0, 1))
        if self.wanted.query_phase:
            sin_w, cos_w = t.sin_weight[g], t.cos_weight[g]
            grad_sin = (on_sin * cos_w + on_cos * sin_w).sum(2)
            grad_cos = (on_cos * cos_w - on_sin * sin_w).sum(2)
            sums.query_phase[geo, q] += torch.cat([grad_sin, grad_cos], dim=-1)


@torch.library.custom_op("fredholm::mlp_integral", mutates_args=())
def mlp_integral(tensors: list[Tensor], block: list[int], activation: str, tiling: list[int]) -> Tensor:
    """Σ_j ω_j W h_ij u_j without the kernel's constant part b, `(B, G, Nq, d_out)`.

    Args:
        tensors: the fields of `IntegralInputs`, in one dtype but for `seen`.
        block: starts of the grid block among queries and keys, then its shape (none: no block); its queries come in reversed order.
        activation: "gelu", "gelu_tanh" or "relu".
        tiling: the fields of `Tiling`.
    """
    with torch.autocast(tensors[0].device.type, enabled=False):
        return _Integral(tensors, block, activation, tiling).forward()


@torch.library.custom_op("fredholm::mlp_integral_backward", mutates_args=())
def mlp_integral_backward(
    grad: Tensor, tensors: list[Tensor], block: list[int], activation: str, tiling: list[int], wanted: list[bool]
) -> list[Tensor]:
    """Gradients of all tensors but `seen`; zeros where `wanted` is False."""
    with torch.autocast(grad.device.type, enabled=False):
        return _Gradients(_Integral(tensors, block, activation, tiling), wanted).run(grad)


@mlp_integral.register_fake
def _(tensors: list[Tensor], block: list[int], activation: str, tiling: list[int]) -> Tensor:
    t = IntegralInputs(*tensors)
    return t.query.new_empty(*t.query.shape[:3], t.output_weight.shape[1])


@mlp_integral_backward.register_fake
def _(
    grad: Tensor, tensors: list[Tensor], block: list[int], activation: str, tiling: list[int], wanted: list[bool]
) -> list[Tensor]:
    return [torch.empty_like(t, memory_format=torch.contiguous_format) for t in tensors[:-1]]


def _setup_context(ctx, inputs, output) -> None:
    tensors, ctx.block, ctx.activation, ctx.tiling = inputs
    ctx.save_for_backward(*tensors)
    ctx.wanted = [bool(t.requires_grad) for t in tensors]


def _backward(ctx, grad):
    tensors = list(ctx.saved_tensors)
    grads = mlp_integral_backward(grad.contiguous(), tensors, ctx.block, ctx.activation, ctx.tiling, ctx.wanted)
    return [*grads, None], None, None, None


mlp_integral.register_autograd(_backward, setup_context=_setup_context)
