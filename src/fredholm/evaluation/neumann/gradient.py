"""Gradients of one hop, its norm included; every tile is computed anew.

Legend
    S, P, φ        as in `tiles.py`                          m     pair weight, 0 where hidden
    y = γ S z / c                                            w     γ λ / c, λ = ∂L/∂y
    δ_i            λ_i·y_i / c_i = -∂L/∂c_i                  E_l   as in `norms.py`

    t_ij = w_i·z_j - δ_i sign φ_ij   (norm of rows)      or      w_i·z_j - E_i ω_i m_ij φ_ij   (norm of a block)

    ∂L/∂(q_i·k_j) = P_ij t_ij φ'_ij,   ∂L/∂m_ij = ω_j t_ij φ_ij,   ∂L/∂z_j = Σ_i S_ij w_i
"""

from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm.evaluation.neumann.tiles import HopTiles, Rows, weigh


class Pull(NamedTuple):
    """What pulls at the rows of a hop, `(G, Nq, ...)`; None: nothing."""

    flow: Tensor | None  # w: (G, Nq, c)
    row: Tensor | None  # δ: (G, Nq, 1), under the norm of rows
    block: Tensor | None  # E: (G, Nq, 1), under the norm of a block
    row_mass: Tensor | None  # ω of the rows, (G, Nq, 1), where E is given; None: 1


@final
class HopGradient:
    """Sums up gradients of keys, values, masses and pair weights over the hops that `add` is told of.

    Args:
        carried: z, `(G, N, c)`.
        like: tiles, which say how many keys there are.
        wants_mass, wants_pairs: whether masses and pair weights need gradients.
    """

    def __init__(self, carried: Tensor, like: HopTiles, *, wants_mass: bool, wants_pairs: bool) -> None:
        self._carried = carried
        self.carried, self.key = torch.zeros_like(carried), torch.zeros_like(like.key)
        self.mass = torch.zeros_like(like.mass) if wants_mass and like.mass is not None else None
        self.pairs = None
        if wants_pairs and like.pairs is not None:
            self.pairs = torch.zeros_like(like.pairs, dtype=like.dtype)

    def add(self, tiles: HopTiles, pull: Pull) -> Tensor:
        """Adds what a hop says; its queries' gradients, `(G, Nq, d)`."""
        query = torch.zeros_like(tiles.query)
        for heads in tiles.groups():
            for rows in tiles.rows_of(heads):
                for columns in tiles.columns_of(rows):
                    self._add(tiles, pull, rows, columns, query)
        return query

    def _add(self, tiles: HopTiles, pull: Pull, rows: Rows, columns: slice, query: Tensor) -> None:
        here, there = (rows.heads, rows.rows), (rows.heads, columns)
        raw = tiles.raw(rows, columns)
        scores, mass, density = tiles.activated(raw), tiles.pair_mass(rows, columns), tiles.density(rows, columns)
        by_score = torch.zeros_like(scores)
        if pull.flow is not None:
            flow = scores if mass is None else weigh(scores, mass)
            self.carried[there].baddbmm_(flow.mT, pull.flow[here])
            by_score = pull.flow[here] @ self._carried[there].mT
        if pull.row is not None:
            by_score = by_score - pull.row[here] * scores.sign()
        shrink = None if pull.block is None else self._shrink(pull, here, scores, density)
        if self.mass is not None:
            half = by_score if shrink is None else by_score - 0.5 * shrink
            self._add_mass(tiles, rows, columns, _kept(half * scores, density))
        if shrink is not None:
            by_score = by_score - shrink
        if self.pairs is not None:
            there_too = None if tiles.mass is None else tiles.mass_of(rows, columns)
            by_pair = by_score * scores if there_too is None else weigh(by_score * scores, there_too)
            self._add_pairs(tiles, rows, columns, torch.where(density == 0, 0.0, by_pair))
        by_raw = by_score * tiles.slope(raw)
        by_raw = by_raw if mass is None else weigh(by_raw, mass)
        query[here].baddbmm_(by_raw, tiles.key[there])
        self.key[there].baddbmm_(by_raw.mT, tiles.query[here])

    def _shrink(self, pull: Pull, here: tuple[slice, slice], scores: Tensor, density: Tensor | None) -> Tensor:
        """E_i ω_i m_ij φ_ij."""
        assert pull.block is not None
        factor = pull.block[here]
        if pull.row_mass is not None:
            factor = factor * pull.row_mass[here]
        return factor * _kept(scores, density)

    def _add_mass(self, tiles: HopTiles, rows: Rows, columns: slice, by_mass: Tensor) -> None:
        assert self.mass is not None
        batch, _ = tiles.places(rows, len(self.mass), 1)
        self.mass[:, columns].index_add_(0, batch, by_mass.sum(1))

    def _add_pairs(self, tiles: HopTiles, rows: Rows, columns: slice, by_pair: Tensor) -> None:
        assert self.pairs is not None
        batch, head = tiles.places(rows, self.pairs.shape[0], self.pairs.shape[1])
        block = self.pairs[:, :, rows.rows, columns]
        block.index_put_((batch, head), by_pair, accumulate=True)


def _kept(values: Tensor, density: Tensor | None) -> Tensor:
    return values if density is None else weigh(values, density)
