"""The series of a causal kernel: rows need those before them only, so blocks of rows are solved one after another."""

import torch
from torch import Tensor

from fredholm.evaluation.neumann.system import System

BLOCK = 64
"""Rows solved together: their own triangle is solved as such, all before them is one product."""


def solve(system: System, signal: Tensor, *, adjoint: bool = False) -> Tensor:
    """x = B f + B x, or with Bᵀ; rows are the last of the points, and the signal of those before is v + y already.

    Args:
        system: B, whose i-th row reads the points up to the i-th of the rows.
        signal: f, `(g, N, c)`; of the adjoint `(g, n, c)`.

    Returns:
        `(g, n, c)`; of the adjoint `(g, N, c)`.
    """
    return _backward(system, signal) if adjoint else _forward(system, signal)


def _forward(system: System, signal: Tensor) -> Tensor:
    tiles, start = system.tiles, system.tiles.num_keys - system.tiles.num_queries
    reached = signal.clone()  # v + y, as far as it is known
    out = signal.new_zeros(len(signal), tiles.num_queries, signal.shape[-1])
    for rows in tiles.rows_of(system.heads, BLOCK):
        weight, own = system.weight[:, rows.rows], slice(start + rows.rows.start, start + rows.rows.stop)
        right = torch.zeros_like(out[:, rows.rows])
        for columns in tiles.columns_of(rows, own.start):
            right.baddbmm_(tiles.hop(rows, columns), reached[:, columns])
        triangle = tiles.hop(rows, own)
        right = weight * right.baddbmm_(triangle, signal[:, own])
        found = torch.linalg.solve_triangular(_unit(triangle, -weight), right, upper=False)
        out[:, rows.rows] = found
        reached[:, own] += found
    return out


def _backward(system: System, signal: Tensor) -> Tensor:
    tiles, start = system.tiles, system.tiles.num_keys - system.tiles.num_queries
    out = signal.new_zeros(len(signal), tiles.num_keys, signal.shape[-1])  # Bᵀ λ
    for rows in reversed(list(tiles.rows_of(system.heads, BLOCK))):
        weight, own = system.weight[:, rows.rows], slice(start + rows.rows.start, start + rows.rows.stop)
        triangle = tiles.hop(rows, own)
        found = torch.linalg.solve_triangular(
            _unit(triangle, -weight).mT, signal[:, rows.rows] + out[:, own], upper=True
        )
        weighed = weight * found
        out[:, own].baddbmm_(triangle.mT, weighed)
        for columns in tiles.columns_of(rows, own.start):
            out[:, columns].baddbmm_(tiles.hop(rows, columns).mT, weighed)
    return out


def _unit(triangle: Tensor, factor: Tensor) -> Tensor:
    """I + factor · triangle."""
    matrix = factor * triangle
    matrix.diagonal(dim1=-2, dim2=-1).add_(1.0)
    return matrix
