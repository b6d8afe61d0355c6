"""The first layer by parts: p on a tile, from what queries, keys and displacements contribute. Legend: `inputs.py`."""

from collections.abc import Iterator
from typing import final

import torch
from torch import Tensor

from fredholm.evaluation.perceptron.inputs import Block, IntegralInputs, length
from fredholm.evaluation.perceptron.tiling import Workspace


@final
class FirstLayer:
    """Builds p for one kernel g at a time; call `select` first."""

    def __init__(self, tensors: IntegralInputs, block: Block, workspace: Workspace, window_elements: int) -> None:
        self.t, self.block, self.workspace = tensors, block, workspace
        # on narrow grids whole windows in a row beat short strides, where the memory allows
        self.window_elements = window_elements
        self.width, self.dim = tensors.key_bias.shape[-1], tensors.query.shape[-1]
        self.positions_per_batch = tensors.key_bias.shape[0] > 1
        self.reads_keys = bool(tensors.key_weight.numel() or tensors.product_weight.numel())

    def select(self, g: int) -> None:
        """Turns to kernel g."""
        self.g = g
        self.key_bias = self.t.key_bias[:, g].mT.contiguous()  # (B', w, N)
        if self.block.size:
            self.windows = self.unfold(self.t.table[g])
            if self.windows.numel() <= self.window_elements:
                self.windows = self.windows.contiguous()

    def unfold(self, table: Tensor) -> Tensor:
        """A view of a displacement table, `(w, ...)`, by windows along its last axis: `(n_s, w, ..., n_s)`."""
        return table.unfold(-1, self.block.shape[-1], 1).movedim(-2, 0)

    def geometry(self, b: slice) -> slice:
        """The range, among what positions determine, of a range of batch entries."""
        return b if self.positions_per_batch else slice(0, 1)

    def relative(self, b: slice, q: slice, k: slice, in_block: bool) -> Tensor:
        """R on a tile, `(B', nq, w, nk)`."""
        t, geo, n_q, n_k = self.t, self.geometry(b), length(q), length(k)
        key_bias = self.key_bias[geo, None, :, k]
        rest = self.workspace.take("relative", length(geo), n_q, self.width, n_k)
        if in_block and n_q == n_k == self.block.size:
            shape = self.block.shape
            out = rest.unflatten(1, shape).unflatten(-1, shape)
            torch.add(key_bias.view(-1, *[1] * len(shape), self.width, *shape), self.whole(), out=out)
            return rest
        if in_block:
            for rows, window in self.lines(self.windows, q, k):
                cells = window.shape[2:]
                torch.add(key_bias.unflatten(-1, cells), window, out=rest[:, rows].unflatten(-1, cells))
            return rest
        if t.distance_weight.numel():
            distances = self.distances(geo, q, k)[:, :, None]
            torch.addcmul(key_bias, t.distance_weight[self.g, :, None], distances, out=rest)
        else:
            rest.copy_(key_bias)
        if t.sin_weight.numel():
            rest.view(length(geo), -1, n_k).baddbmm_(self.rotated(geo, q), t.key_phase[geo, k].mT)
        return rest

    def whole(self) -> Tensor:
        """What the table holds for all queries and keys of the grid, `(*query cells, w, *key cells)`."""
        windows, axes = self.windows, len(self.block.shape)
        for axis, cells in enumerate(self.block.shape[:-1]):
            windows = windows.unfold(2 + axis, cells, 1)
        return windows.permute(*range(2, axes + 1), 0, 1, *range(axes + 2, 2 * axes + 1), axes + 1)

    def lines(self, windows: Tensor, q: slice, k: slice) -> Iterator[tuple[slice, Tensor]]:
        """Runs of queries along one grid line, and what an unfolded table holds for them, `(n, w, *key cells)`.

        Queries run backwards through the grid, so that the r-th reads the window that starts at entry r of the table.
        """
        shape, start = self.block.shape, self.block.query_start
        low, high = ((edge - self.block.key_start) // self.block.row for edge in (k.start, k.stop))
        first = q.start
        while first < q.stop:
            *leading, offset = _coordinates(first - start, shape)
            count = min(q.stop - first, shape[-1] - offset)
            window = windows.narrow(0, offset, count)
            for axis, entry in enumerate(leading):
                run = (entry + low, high - low) if axis == 0 else (entry, shape[axis])
                window = window.narrow(axis + 2, *run)
            if len(shape) == 1:
                window = window.narrow(2, low, high - low)
            yield slice(first - q.start, first - q.start + count), window
            first += count

    def distances(self, geo: slice, q: slice, k: slice) -> Tensor:
        """‖x_i - x_j‖, `(B', nq, nk)`, by differences: the expansion of the square loses near points."""
        squared = torch.zeros((), dtype=self.t.key_pos.dtype, device=self.t.key_pos.device)
        for x, y in zip(self.t.query_pos[geo, q].unbind(-1), self.t.key_pos[geo, k].unbind(-1), strict=True):
            squared = squared + (x[:, :, None] - y[:, None]).square()
        return squared.sqrt().to(self.t.query.dtype)

    def rotated(self, geo: slice, q: slice) -> Tensor:
        """Coefficients of [sin θ_j, cos θ_j] in s·sin(θ_i - θ_j) + c·cos(θ_i - θ_j), `(B', nq·w, 2L)`."""
        sin_w, cos_w = self.t.sin_weight[self.g], self.t.cos_weight[self.g]
        sin_q, cos_q = self.t.query_phase[geo, q, None].chunk(2, dim=-1)
        out = self.workspace.take("rotated", length(geo), length(q), self.width, 2 * sin_w.shape[-1])
        on_sin, on_cos = out.chunk(2, dim=-1)
        torch.mul(cos_w, sin_q, out=on_sin).addcmul_(sin_w, cos_q, value=-1)
        torch.mul(sin_w, sin_q, out=on_cos).addcmul_(cos_w, cos_q)
        return out.flatten(1, 2)

    def virtual_queries(self, b: slice, q: slice) -> Tensor:
        """M, `(b, nq·w, d)`."""
        u = self.t.query[b, self.g, q, None]
        out = self.workspace.take("virtual", length(b), length(q), self.width, self.dim)
        if not self.t.product_weight.numel():
            out.copy_(self.t.key_weight[self.g])
        elif not self.t.key_weight.numel():
            torch.mul(self.t.product_weight[self.g], u, out=out)
        else:
            torch.addcmul(self.t.key_weight[self.g], self.t.product_weight[self.g], u, out=out)
        return out.flatten(1, 2)

    def pre_activation(self, rest: Tensor, b: slice, q: slice, k: slice) -> Tensor:
        """p on a tile, `(b, nq, w, nk)`, from the tile's R of these batch entries, which it may overwrite."""
        alpha = self.t.query_bias[self.geometry(b), self.g, q]
        if self.t.query_weight.numel():
            alpha = alpha + self.t.query[b, self.g, q] @ self.t.query_weight[self.g].mT
        if self.t.query.shape[0] == 1 or self.positions_per_batch:
            p = rest.add_(alpha[..., None])
        else:
            p = self.workspace.take("p", length(b), *rest.shape[1:])
            torch.add(rest, alpha[..., None].expand(length(b), -1, -1, -1), out=p)
        if self.reads_keys:
            p.flatten(1, 2).baddbmm_(self.virtual_queries(b, q), self.t.key[b, self.g, k].mT)
        return p


def _coordinates(index: int, shape: tuple[int, ...]) -> list[int]:
    out = []
    for extent in reversed(shape):
        index, remainder = divmod(index, extent)
        out.append(remainder)
    return out[::-1]
