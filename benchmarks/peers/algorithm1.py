"""The ITNet paper's Algorithms 1 and 2 (H.9, H.10) in plain PyTorch: tiles, the whole kernel MLP on every pair.

Phase 1 profiles one tile of each size in {16, 32, 64, 128}^2 and keeps the fastest per pair; the paper's on-chip
memory test becomes a bound on the tile's kernel values. Inside a tile the pairs are one batch instead of two loops.
"""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from benchmarks.harness.timing import Timed
from benchmarks.peers.kernel_input import kernel_input
from benchmarks.peers.peer import Peer
from benchmarks.peers.weights import KernelWeights, evaluate_kernel, join_heads, split_heads

TILE_SIZES = (16, 32, 64, 128)
TILE_BYTES = 2_000_000_000


def integrate_tile(weights: KernelWeights, x: Tensor, y: Tensor, u_x: Tensor, u_y: Tensor, measure: Tensor) -> Tensor:
    """``sum_q K_pq u_q omega_q`` of one tile: queries ``(H, B, P, d_h)``, keys ``(H, B, Q, d_h)``, masses ``(Q,)``."""
    z = kernel_input(x[None], y[:, None], u_x[:, :, None], u_y[:, :, :, None], weights.frequencies)
    kappa = evaluate_kernel(weights, z)  # (H, B, Q, P, d_h, d_h)
    return torch.einsum("hbqpde,hbqe->hbqpd", kappa, measure[:, None] * u_y).sum(dim=2)


def integrate_tile_by_line(
    weights: KernelWeights, x: Tensor, y: Tensor, u_x: Tensor, u_y: Tensor, measure: Tensor
) -> Tensor:
    """The same sum in the order of lines 21 and 22: ``K_pq``, its product with ``u_q``, the weight, sum over keys."""
    z = kernel_input(x[:, None], y[None], u_x[:, :, :, None], u_y[:, :, None], weights.frequencies)
    kappa = evaluate_kernel(weights, z)  # (H, B, P, Q, d_h, d_h)
    return ((kappa @ u_y[:, :, None, :, :, None])[..., 0] * measure[:, None]).sum(dim=3)


TileRule = Callable[[KernelWeights, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


class _TiledIntegral(torch.autograd.Function):
    """Forward by Algorithm 1; backward by Algorithm 2, which recomputes each tile and differentiates it at once."""

    @staticmethod
    def forward(
        ctx: Any,
        weights: KernelWeights,
        tile: tuple[int, int],
        on_tile: TileRule,
        x: Tensor,
        y: Tensor,
        *signals: Tensor,
    ):
        measure, u_x, u_y, *parameters = signals
        ctx.weights, ctx.tile, ctx.on_tile = weights, tile, on_tile
        ctx.save_for_backward(x, y, *signals)
        weights = _with_parameters(weights, parameters)
        integral = torch.zeros_like(u_x)
        for rows, keys in _tiles(u_x.shape[2], u_y.shape[2], tile):
            integral[:, :, rows] += on_tile(weights, x[rows], y[keys], u_x[:, :, rows], u_y[:, :, keys], measure[keys])
        return integral

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        x, y, measure, u_x, u_y, *parameters = ctx.saved_tensors
        totals = [torch.zeros_like(leaf) for leaf in (u_x, u_y, *parameters)]
        leaves = [parameter.detach().requires_grad_() for parameter in parameters]
        weights = _with_parameters(ctx.weights, leaves)
        for rows, keys in _tiles(u_x.shape[2], u_y.shape[2], ctx.tile):
            query = u_x[:, :, rows].detach().requires_grad_()
            key = u_y[:, :, keys].detach().requires_grad_()
            with torch.enable_grad():
                tile = ctx.on_tile(weights, x[rows], y[keys], query, key, measure[keys])
                query_grad, key_grad, *grads = torch.autograd.grad(
                    tile, (query, key, *leaves), cotangents[0][:, :, rows]
                )
            totals[0][:, :, rows] += query_grad
            totals[1][:, :, keys] += key_grad
            for total, grad in zip(totals[2:], grads, strict=True):
                total += grad
        return None, None, None, None, None, None, *totals


@final
class Algorithm1(Peer):
    """The paper's tiling with ``tile`` = (query tile, key tile); `tuned` is its Phase 1.

    ``by_line`` goes head by head and line by line as the paper writes it; otherwise all heads share a tile, whose
    kernel values lie in the order that is fastest to contract.
    """

    def __init__(self, tile: tuple[int, int], *, by_line: bool = False):
        self.tile, self.by_line = tile, by_line
        self.name = "Algorithm 1" if by_line else "Algorithm 1, best layout"

    @classmethod
    def tuned(
        cls, weights: KernelWeights, u: Tensor, pos: Tensor, measure: Tensor, *, by_line: bool = False
    ) -> "Algorithm1":
        """Phase 1: the tile size with the least measured forward time per pair, among those within `TILE_BYTES`."""
        heads, on_tile = split_heads(u, weights.num_heads), integrate_tile
        if by_line:
            heads, weights, on_tile = heads[:1], _head(weights, 0), integrate_tile_by_line
        sizes = [size for size in TILE_SIZES if size <= u.shape[1]] or [TILE_SIZES[0]]
        seconds_per_pair: dict[tuple[int, int], float] = {}
        with torch.no_grad():
            for tile in itertools.product(sizes, sizes):
                pairs = tile[0] * tile[1]
                if seconds_per_pair and _tile_bytes(weights, len(u), pairs) > TILE_BYTES:
                    continue
                x, y, u_x, u_y = pos[: tile[0]], pos[: tile[1]], heads[:, :, : tile[0]], heads[:, :, : tile[1]]
                arguments, timed = (weights, x, y, u_x, u_y, measure[: tile[1]]), Timed()
                for _ in range(3):  # the least of three, since the first call of each size allocates its memory
                    timed.clock(lambda arguments=arguments: (on_tile(*arguments),), u.device)
                seconds_per_pair[tile] = min(timed.seconds) / pairs
        return cls(min(seconds_per_pair, key=lambda tile: seconds_per_pair[tile]), by_line=by_line)

    def integrate(self, weights: KernelWeights, u: Tensor, pos: Tensor, measure: Tensor) -> Tensor:
        heads = split_heads(u, weights.num_heads)
        return self._integrate(weights, heads, pos, heads, pos, measure)

    def integrate_rows(self, weights: KernelWeights, u: Tensor, pos: Tensor, measure: Tensor, rows: Tensor) -> Tensor:
        """The integral at the query points ``rows (M,)`` only, ``(B, M, H * d_h)``: an oracle at any size."""
        heads = split_heads(u, weights.num_heads)
        return self._integrate(weights, heads[:, :, rows], pos[rows], heads, pos, measure)

    def kernel_bytes(self, weights: KernelWeights, batch: int, num_points: int) -> int:
        return _tile_bytes(weights, batch, self.tile[0] * self.tile[1])

    def _integrate(
        self, weights: KernelWeights, u_x: Tensor, x: Tensor, u_y: Tensor, y: Tensor, measure: Tensor
    ) -> Tensor:
        if not self.by_line:
            return join_heads(self._tiles_of(weights, integrate_tile, u_x, x, u_y, y, measure))
        heads = [
            self._tiles_of(_head(weights, h), integrate_tile_by_line, u_x[h : h + 1], x, u_y[h : h + 1], y, measure)
            for h in range(weights.num_heads)
        ]
        return join_heads(torch.cat(heads))

    def _tiles_of(
        self, weights: KernelWeights, on_tile: TileRule, u_x: Tensor, x: Tensor, u_y: Tensor, y: Tensor, measure: Tensor
    ) -> Tensor:
        parameters = (weights.hidden, weights.hidden_bias, weights.output, weights.output_bias)
        return _TiledIntegral.apply(weights, self.tile, on_tile, x, y, measure, u_x, u_y, *parameters)


def _head(weights: KernelWeights, h: int) -> KernelWeights:
    run = slice(h, h + 1)
    return replace(
        weights,
        hidden=weights.hidden[run],
        hidden_bias=weights.hidden_bias[run],
        output=weights.output[run],
        output_bias=weights.output_bias[run],
    )


def _with_parameters(weights: KernelWeights, parameters: list[Tensor]) -> KernelWeights:
    hidden, hidden_bias, output, output_bias = parameters
    return replace(weights, hidden=hidden, hidden_bias=hidden_bias, output=output, output_bias=output_bias)


def _tile_bytes(weights: KernelWeights, batch: int, pairs: int) -> int:
    return batch * pairs * weights.output_bias.numel() * weights.output_bias.element_size()


def _tiles(num_queries: int, num_keys: int, tile: tuple[int, int]):
    for i in range(0, num_queries, tile[0]):
        for j in range(0, num_keys, tile[1]):
            yield slice(i, i + tile[0]), slice(j, j + tile[1])
