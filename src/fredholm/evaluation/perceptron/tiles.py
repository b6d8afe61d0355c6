"""Inputs of an integral over pairs, its tiles, and p on a tile: the first layer by parts.

Legend of this folder (kernel g of G; batch entry b; query i; key j; hidden unit k; for κ see `kernels.PairwiseForm`)
    p_ijk   pre-activation of the first layer            h_ijk   last hidden layer
    R_ijk   the part of p that does not see the batch    α_ik    the part that only the query sees
    M_i     (w, d) "virtual queries" K + P ⊙ u_i, so that p_ij = R_ij + α_i + M_i u_j: one matrix product for all units
    S_i     Σ_j m_ij h_ij ⊗ ω_j u_j, (w, d)              out_i   W S_i: the last layer is applied once per query

Per pair this costs 2w(2d) flops beyond R instead of the 2w·d² of evaluating κ; nothing of size N x N outlives a tile,
and the backward pass rebuilds each tile from the inputs alone.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple, Self, final

import torch
from torch import Tensor

from fredholm.domains.domain import wrapped
from fredholm.evaluation.tiling import Workspace


class PerceptronInputs(NamedTuple):
    """All tensors of one integral; None where one is absent. B' is 1 or B, H' is 1 or G.

    If the kernel reads no content, so that the E entries of a batch share it, they may be folded into the channels:
    then B = 1, and the queries have no channels. Else E = 1.
    """

    query: Tensor  # u at the queries, (B, G, Nq, d)
    key: Tensor  # u at the keys, (B, G, N, E·d)
    weights: Tensor  # ω, (B', N)
    pairs: Tensor | None  # m: (B', H', Nq, N)
    query_bias: Tensor  # (B', G, Nq, w); `mlp_integral_triton` also takes (B', G, 1, w), the same at all queries
    key_bias: Tensor  # (B', G, N, w), or as the queries'
    query_weight: Tensor | None  # (G, w, d)
    key_weight: Tensor | None  # K: (G, w, d)
    product_weight: Tensor | None  # P: (G, w, d)
    sin_weight: Tensor | None  # (G, w, L)
    cos_weight: Tensor | None  # (G, w, L)
    query_phase: Tensor | None  # [sin, cos]: (B', Nq, 2L)
    key_phase: Tensor | None  # (B', N, 2L)
    distance_weight: Tensor | None  # (G, w)
    wrapped_weight: Tensor | None  # (G, w, 2L), or (G, w, s) without frequencies
    frequencies: Tensor | None  # (L, s) where displacements wrap round
    query_pos: Tensor  # (B', Nq, s)
    key_pos: Tensor  # (B', N, s)
    hidden_weight: Tensor | None  # (m, G, w, w)
    hidden_bias: Tensor | None  # (m, G, w)
    output_weight: Tensor  # W: (G, w, d, d_out)
    table: Tensor | None  # R of the grid block by displacement, (G, w, 2 n_1 - 1, ...); see `mlp_integral_triton`
    seen: Tensor | None  # number of leading keys each query may see, int64 (B', Nq)

    @property
    def entries(self) -> int:
        """E."""
        return self.key.shape[-1] // self.output_weight.shape[2]

    @property
    def has_one_kernel(self) -> bool:
        """Whether all entries of the batch have the same κ and the same m."""
        reads_content = any(weight is not None for weight in (self.query_weight, self.key_weight, self.product_weight))
        differ = (t for t in (self.key_bias, self.pairs, self.seen) if t is not None and t.shape[0] > 1)
        return not reads_content and next(differ, None) is None

    def spread(self) -> "PerceptronInputs":
        """The inputs with biases expanded to every point."""
        biases = {"query_bias": self.query.shape[2], "key_bias": self.key.shape[2]}
        return self._replace(
            **{name: getattr(self, name).expand(-1, -1, points, -1) for name, points in biases.items()}
        )

    def folded(self) -> "PerceptronInputs":
        """The inputs with the batch folded into the channels; for integrals with one kernel."""
        values = self.key * self.weights[:, None, :, None]
        return self._replace(
            query=self.query[:1, ..., :0],
            key=values.permute(1, 2, 0, 3).flatten(2)[None],
            weights=values.new_ones(1, values.shape[2]),
        )


def evaluates_kernel(entries: int, width: int, out_dim: int) -> bool:
    """Whether κ itself for all entries is cheaper than one S per entry: d·d_out (w + E) against w·d·E per pair."""
    return out_dim * (width + entries) < width * entries


class Block(NamedTuple):
    """The grid: its queries start at `query_start`, its keys at `key_start`.

    Tiles have the queries of the grid in reversed order. Without a shape there is no grid. A PyTorch operator, whose
    options are numbers and lists, gets `numbers`.
    """

    query_start: int = 0
    key_start: int = 0
    shape: tuple[int, ...] = ()

    @classmethod
    def of(cls, numbers: list[int]) -> Self:
        """The block with these `numbers`."""
        return cls(numbers[0], numbers[1], tuple(numbers[2:]))

    @property
    def numbers(self) -> list[int]:
        """Both starts, then the shape."""
        return [self.query_start, self.key_start, *self.shape]

    @property
    def size(self) -> int:
        """Number of grid points; 0 without a grid."""
        return math.prod(self.shape) if self.shape else 0

    @property
    def row(self) -> int:
        """Number of points that share their first grid coordinate."""
        return self.size // self.shape[0] if self.shape else 1


class Tiling(NamedTuple):
    """Sizes of a tile, which holds p, and of a chunk of tiles, which shares one S.

    `elements` is the target number of entries of a tile.
    """

    batch: int
    queries: int
    keys: int
    chunk_batch: int
    chunk_queries: int
    elements: int


def choose_tiling(batch: int, num_queries: int, num_keys: int, width: int, dim: int, elements: int) -> Tiling:
    """Tiles of about `elements` entries of p: all keys when they fit, then queries, then batch entries.

    A chunk holds about twice as many entries of S, batch entries before queries, because a batch shares R.
    """
    keys = max(1, min(num_keys, max(256, elements // (4 * width))))
    per_query = width * max(keys, dim)
    queries = max(1, min(num_queries, elements // per_query))
    capacity = 2 * elements // (width * dim)
    chunk_batch = max(1, min(batch, capacity // queries))
    chunk_queries = queries * max(1, capacity // (chunk_batch * queries))
    tile_batch = max(1, min(chunk_batch, elements // (per_query * queries)))
    return Tiling(tile_batch, queries, keys, chunk_batch, chunk_queries, elements)


def split_at_block(total: int, step: int, start: int, block: Block, multiple: int = 1) -> Iterator[tuple[slice, bool]]:
    """Slices of at most `step` inside or outside of the block, with a flag; inside, multiples of `multiple`."""
    stop = start + block.size
    for low, high, inside in ((0, start, False), (start, stop, True), (stop, total, False)):
        stride = max(multiple, step // multiple * multiple) if inside else step
        for first in range(low, high, stride):
            yield slice(first, min(first + stride, high)), inside


def length(run: slice) -> int:
    """Number of indices in a slice with start and stop."""
    return run.stop - run.start


@final
class FirstLayer:
    """Computes p for one kernel g at a time; call `select` first."""

    def __init__(self, tensors: PerceptronInputs, block: Block, workspace: Workspace, window_elements: int) -> None:
        self.t, self.block, self.workspace = tensors, block, workspace
        # on narrow grids unfolded windows are faster than short strides, where memory allows
        self.window_elements = window_elements
        self.width, self.dim = tensors.key_bias.shape[-1], tensors.query.shape[-1]
        self.positions_per_batch = tensors.key_bias.shape[0] > 1
        self.reads_keys = tensors.key_weight is not None or tensors.product_weight is not None
        self.reads_steps = tensors.distance_weight is not None or tensors.wrapped_weight is not None

    def select(self, g: int) -> None:
        """Selects kernel g."""
        self.g = g
        self.key_bias = self.t.key_bias[:, g].mT.contiguous()  # (B', w, N)
        if self.t.table is not None:
            self.windows = self.unfold(self.t.table[g])
            if self.windows.numel() <= self.window_elements:
                self.windows = self.windows.contiguous()

    def unfold(self, table: Tensor) -> Tensor:
        """A view of a displacement table, `(w, ...)`, by windows along its last axis: `(n_s, w, ..., n_s)`."""
        return table.unfold(-1, self.block.shape[-1], 1).movedim(-2, 0)

    def geometry(self, b: slice) -> slice:
        """The slice of position-dependent tensors for a slice of batch entries."""
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
        steps = self.steps(geo, q, k) if self.reads_steps else []
        if t.distance_weight is not None:
            distances = self.distances(steps)[:, :, None]
            torch.addcmul(key_bias, t.distance_weight[self.g, :, None], distances, out=rest)
        else:
            rest.copy_(key_bias)
        if t.wrapped_weight is not None:
            weight = t.wrapped_weight[self.g].expand(length(geo) * n_q, -1, -1)
            rest.flatten(0, 1).baddbmm_(weight, self.lifted(steps).flatten(0, 1))
        if t.key_phase is not None:
            rest.view(length(geo), -1, n_k).baddbmm_(self.rotated(geo, q), t.key_phase[geo, k].mT)
        return rest

    def whole(self) -> Tensor:
        """Entries of the table for all queries and keys of the grid, `(*query cells, w, *key cells)`."""
        windows, axes = self.windows, len(self.block.shape)
        for axis, cells in enumerate(self.block.shape[:-1]):
            windows = windows.unfold(2 + axis, cells, 1)
        return windows.permute(*range(2, axes + 1), 0, 1, *range(axes + 2, 2 * axes + 1), axes + 1)

    def lines(self, windows: Tensor, q: slice, k: slice) -> Iterator[tuple[slice, Tensor]]:
        """Runs of queries along one grid line, and their entries of an unfolded table, `(n, w, *key cells)`.

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

    def steps(self, geo: slice, q: slice, k: slice) -> list[Tensor]:
        """x_i - x_j along each axis, `(B', nq, nk)`, by differences, since expanded squares are inaccurate."""
        axes = zip(self.t.query_pos[geo, q].unbind(-1), self.t.key_pos[geo, k].unbind(-1), strict=True)
        steps = [x[:, :, None] - y[:, None] for x, y in axes]
        return steps if self.t.frequencies is None else [wrapped(step) for step in steps]

    def distances(self, steps: list[Tensor]) -> Tensor:
        """‖x_i - x_j‖, `(B', nq, nk)`."""
        squared = torch.zeros((), dtype=self.t.key_pos.dtype, device=self.t.key_pos.device)
        for step in steps:
            squared = squared + step.square()
        return squared.sqrt().to(self.t.query.dtype)

    def lifted(self, steps: list[Tensor]) -> Tensor:
        """γ(x_i - x_j), `(B', nq, 2L or s, nk)`."""
        frequencies = self.t.frequencies
        if frequencies is None or not frequencies.shape[0]:
            return torch.stack(steps, 2).to(self.t.query.dtype)
        turns = torch.zeros((), dtype=frequencies.dtype, device=frequencies.device)
        for step, frequency in zip(steps, frequencies.unbind(-1), strict=True):
            turns = turns + step[:, :, None] * frequency[:, None]
        phases = 2 * math.pi * turns
        return torch.cat([phases.sin(), phases.cos()], dim=2).to(self.t.query.dtype)

    def rotated(self, geo: slice, q: slice) -> Tensor:
        """Coefficients of [sin θ_j, cos θ_j] in s·sin(θ_i - θ_j) + c·cos(θ_i - θ_j), `(B', nq·w, 2L)`."""
        sin_w, cos_w, sin_q, cos_q = self.rotation(geo, q)
        out = self.workspace.take("rotated", length(geo), length(q), self.width, 2 * sin_w.shape[-1])
        on_sin, on_cos = out.chunk(2, dim=-1)
        torch.mul(cos_w, sin_q, out=on_sin).addcmul_(sin_w, cos_q, value=-1)
        torch.mul(sin_w, sin_q, out=on_cos).addcmul_(cos_w, cos_q)
        return out.flatten(1, 2)

    def rotation(self, geo: slice, q: slice) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """s, c `(w, L)`, sin θ_i and cos θ_i `(B', nq, 1, L)`."""
        t = self.t
        assert t.sin_weight is not None
        assert t.cos_weight is not None
        assert t.query_phase is not None
        sin_q, cos_q = t.query_phase[geo, q, None].chunk(2, dim=-1)
        return t.sin_weight[self.g], t.cos_weight[self.g], sin_q, cos_q

    def virtual_queries(self, b: slice, q: slice) -> Tensor:
        """M, `(b, nq·w, d)`."""
        u, key_weight, product_weight = self.t.query[b, self.g, q, None], self.t.key_weight, self.t.product_weight
        out = self.workspace.take("virtual", length(b), length(q), self.width, self.dim)
        if product_weight is None:
            assert key_weight is not None
            out.copy_(key_weight[self.g])
        elif key_weight is None:
            torch.mul(product_weight[self.g], u, out=out)
        else:
            torch.addcmul(key_weight[self.g], product_weight[self.g], u, out=out)
        return out.flatten(1, 2)

    def pre_activation(self, rest: Tensor, b: slice, q: slice, k: slice) -> Tensor:
        """p on a tile, `(b, nq, w, nk)`, from the tile's R of these batch entries, which it may overwrite."""
        alpha = self.t.query_bias[self.geometry(b), self.g, q]
        if self.t.query_weight is not None:
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
