"""The sum over Yat scores, with the online form of competitive normalisers.

Legend
    T, D, s      q·k + b, ‖q - k‖² + ε and T²/D        P     numerators, times masses
    σ, Z         reference score and sum of a row so far   O     Σ P v over the same reference
"""

import torch
from torch import Tensor

from fredholm.evaluation.yat_sums.tiles import Rows, Tiles
from fredholm.kernels import Competitive, Normaliser


def forward(tiles: Tiles, normaliser: Normaliser) -> tuple[Tensor, Tensor, Tensor]:
    """The sums `(G, Nq, d_v)`, and σ and Z of every row `(G, Nq, 1)`, ones where the normaliser has none."""
    out = tiles.query.new_zeros(*tiles.query.shape[:2], tiles.value.shape[-1])
    reference, total = (torch.ones_like(tiles.query_square) for _ in range(2))
    for rows in tiles.all_rows():
        here = rows.heads, rows.rows
        if isinstance(normaliser, Competitive):
            reference[here], total[here] = _competing(tiles, rows, normaliser, out[here])
        else:
            one = reference.new_ones(())
            for columns in tiles.columns_of(rows):
                score, mass = _scores(tiles, rows, columns)
                share = _weighed(normaliser.numerator(score, one), mass)
                out[here].baddbmm_(share, tiles.at(tiles.value, rows.heads, columns))
    return out, reference, total


def _competing(tiles: Tiles, rows: Rows, normaliser: Competitive, out: Tensor) -> tuple[Tensor, Tensor]:
    """Writes the sums into `out`, zeros; σ and Z."""
    square = tiles.query_square[rows.heads, rows.rows]
    reference, total = normaliser.reference(torch.zeros_like(square)), torch.zeros_like(square)
    for columns in tiles.columns_of(rows):
        score, mass = _scores(tiles, rows, columns)
        larger = torch.maximum(reference, score.amax(-1, keepdim=True))
        share = _weighed(normaliser.numerator(score, larger), mass)
        if columns.start > 0:
            kept = normaliser.numerator(reference, larger)
            total.mul_(kept)
            out.mul_(kept)
        reference = larger
        total += share.sum(-1, keepdim=True)
        out.baddbmm_(share, tiles.at(tiles.value, rows.heads, columns))
    floor = normaliser.floor(reference)
    total = total if floor is None else total + floor
    out.mul_(reciprocal(total))
    return reference, total


def _scores(tiles: Tiles, rows: Rows, columns: slice) -> tuple[Tensor, Tensor | None]:
    """s, 0 where hidden, and the masses of the pairs."""
    shifted, distance = tiles.products(rows, columns)
    score = shifted.mul_(shifted).div_(distance)
    mass = tiles.pair_mass(rows, columns)
    return (score if mass is None else score.masked_fill_(mass <= 0, 0.0)), mass


def _weighed(numerator: Tensor, mass: Tensor | None) -> Tensor:
    return numerator if mass is None else numerator.mul_(mass)


def reciprocal(total: Tensor) -> Tensor:
    """1 / Z, and 0 for a row that sees nothing."""
    return torch.where(total > 0, 1 / torch.where(total > 0, total, 1.0), 0.0)
