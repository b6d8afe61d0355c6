"""The sum over Yat scores.

Legend
    T, D, s      q·k + b, ‖q - k‖² + ε and T²/D = T r     P     numerators, times masses
    σ, Z         reference score and sum of a row           O     Σ P v over the same reference

Scores are never below 0, so that few need a reference: rows are summed without one while sums stay in range.
"""

import torch
from torch import Tensor

from fredholm.evaluation.attention.sums.tiles import Rows, Tiles
from fredholm.kernels import Normaliser
from fredholm.kernels.arithmetic import divided
from fredholm.kernels.attention.normalisers import Competitive

LARGEST, SMALLEST = 1e12, 1e-12
"""Between these a row's sum is taken without a reference: its terms, times values and gradients, stay float32."""


def forward(tiles: Tiles, normaliser: Normaliser) -> tuple[Tensor, Tensor, Tensor]:
    """The sums `(G, Nq, d_v)`, and σ and Z of every row `(G, Nq, 1)`, ones where the normaliser has none."""
    out = tiles.query.new_zeros(*tiles.query.shape[:2], tiles.value.shape[-1])
    total = torch.ones_like(tiles.query_square)
    if not isinstance(normaliser, Competitive):
        for rows in tiles.all_rows():
            _add(tiles, rows, normaliser, out[rows.heads, rows.rows])
        return out, torch.ones_like(total), total
    reference = torch.full_like(total, normaliser.neutral)
    plain = True
    for rows in tiles.all_rows():
        here = rows.heads, rows.rows
        if plain:
            total[here] = _add(tiles, rows, normaliser, out[here]) + normaliser.floor()
            # where one tile has such scores, so have others; NaN is in no range
            z = total[here]
            plain = bool(((z <= LARGEST) & ((z >= SMALLEST) | (z == 0))).all())
        if not plain:
            reference[here], total[here] = _add_online(tiles, rows, normaliser, out[here].zero_())
        out[here].mul_(divided(1.0, total[here]))
    return out, reference, total


def _add(tiles: Tiles, rows: Rows, normaliser: Normaliser, out: Tensor) -> Tensor:
    """Adds Σ P v to `out`; Σ P, `(g, r, 1)`."""
    total = out.new_zeros(*out.shape[:2], 1)
    for columns in tiles.columns_of(rows):
        score, mass = _scores(tiles, rows, columns)
        share = _weighed(normaliser.numerator(score), mass)
        if normaliser.is_competitive:
            total += share.sum(-1, keepdim=True)
        out.baddbmm_(share, tiles.at(tiles.value, rows.heads, columns))
    return total


def _add_online(tiles: Tiles, rows: Rows, normaliser: Competitive, out: Tensor) -> tuple[Tensor, Tensor]:
    """Adds O to `out`; σ, the largest score, and Z, `(g, r, 1)`."""
    total = out.new_zeros(*out.shape[:2], 1)
    reference = normaliser.reference(total)
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
    return reference, total + normaliser.floor(reference)


def _scores(tiles: Tiles, rows: Rows, columns: slice) -> tuple[Tensor, Tensor | None]:
    """s, 0 where hidden, and the masses of the pairs."""
    score, _ = tiles.scores(rows, columns)
    mass = tiles.pair_mass(rows, columns)
    return (score if mass is None else score.masked_fill_(mass <= 0, 0.0)), mass


def _weighed(numerator: Tensor, mass: Tensor | None) -> Tensor:
    return numerator if mass is None else numerator.mul_(mass)
