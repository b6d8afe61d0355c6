"""A hop and its transpose, in tiles, and what its norm needs of every row."""

import torch
from torch import Tensor

from fredholm.evaluation.neumann.tiles import HopTiles, weigh


def hop(tiles: HopTiles, signal: Tensor, heads: slice) -> Tensor:
    """S f, `(g, Nq, c)`, of a signal `(g, N, c)` on some heads."""
    out = signal.new_zeros(len(signal), tiles.num_queries, signal.shape[-1])
    for rows in tiles.rows_of(heads):
        for columns in tiles.columns_of(rows):
            out[:, rows.rows].baddbmm_(tiles.hop(rows, columns), signal[:, columns])
    return out


def transposed_hop(tiles: HopTiles, signal: Tensor, heads: slice) -> Tensor:
    """Sᵀ f, `(g, N, c)`, of a signal `(g, Nq, c)` on some heads."""
    out = signal.new_zeros(len(signal), tiles.num_keys, signal.shape[-1])
    for rows in tiles.rows_of(heads):
        for columns in tiles.columns_of(rows):
            out[:, columns].baddbmm_(tiles.hop(rows, columns).mT, signal[:, rows.rows])
    return out


def measured_hop(tiles: HopTiles, signal: Tensor, heads: slice, squares: bool) -> tuple[Tensor, Tensor]:
    """S f, and of every row Σ_j ω_j (φ m)_ij² or Σ_j ω_j |φ m|_ij, `(g, Nq)` in float64."""
    out = signal.new_zeros(len(signal), tiles.num_queries, signal.shape[-1])
    total = torch.zeros(len(signal), tiles.num_queries, dtype=torch.float64, device=signal.device)
    for rows in tiles.rows_of(heads):
        for columns in tiles.columns_of(rows):
            scores = tiles.activated(tiles.raw(rows, columns))
            mass, density = tiles.pair_mass(rows, columns), tiles.density(rows, columns)
            flow = scores if mass is None else weigh(scores, mass)
            out[:, rows.rows].baddbmm_(flow, signal[:, columns])
            total[:, rows.rows] += _row_sums(tiles, scores, mass, density) if squares else flow.abs().sum(-1)
    return out, total


def _row_sums(tiles: HopTiles, scores: Tensor, mass: Tensor | None, density: Tensor | None) -> Tensor:
    """Σ_j P_ij m_ij φ_ij² of a tile, `(g, r)`."""
    if mass is None or density is None:
        return torch.linalg.vector_norm(scores, dim=-1).double().square()
    roots = (mass * density).sqrt()
    return torch.linalg.vector_norm(weigh(scores, roots), dim=-1).double().square()


def row_measures(tiles: HopTiles, squares: bool) -> Tensor:
    """What `measured_hop` says of the rows, `(G, Nq)`, without a hop."""
    total = torch.zeros(len(tiles.query), tiles.num_queries, dtype=torch.float64, device=tiles.query.device)
    for heads in tiles.groups():
        nothing = tiles.query.new_zeros(heads.stop - heads.start, tiles.num_keys, 0)
        total[heads] = measured_hop(tiles, nothing, heads, squares)[1]
    return total
