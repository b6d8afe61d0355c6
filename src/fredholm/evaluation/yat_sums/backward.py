"""Gradients of the sum over Yat scores; every tile is computed anew.

Legend
    T, D, s      q·k + b, ‖q - k‖² + ε and T²/D            r     T/D
    a            density of a pair, masses aside             δ     ∂L/∂O·O of a row where scores compete, else 0
    G            ∂L/∂s = (∂L/∂O·v - δ) ω m ∂a/∂s, for the row's own sum held fixed

    ∂s/∂(q·k) = 2 r (1 + r),   ∂s/∂b = 2 r,   ∂s/∂‖q‖² = ∂s/∂‖k‖² = ∂s/∂ε = -r²

Where rounding pushes a distance below 0 and it is held there, these stay as they are: q = k, to rounding, and what they
say of ‖q - k‖² cancels.
"""

from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm.evaluation.yat_sums.forward import reciprocal
from fredholm.evaluation.yat_sums.tiles import Rows, Tiles
from fredholm.kernels import Normaliser


class Given(NamedTuple):
    """What the forward pass left behind, and the gradient that came in; `(G, Nq, ...)` each."""

    grad: Tensor
    out: Tensor
    reference: Tensor
    total: Tensor


@final
class Backward:
    """Gradients of everything in `YatInputs` but the order, for some heads.

    Args:
        tiles: the problem.
        normaliser: ρ.
        given: see `Given`.
        wants_mass, wants_pairs: whether masses and pair weights need gradients.
    """

    def __init__(
        self, tiles: Tiles, normaliser: Normaliser, given: Given, *, wants_mass: bool, wants_pairs: bool
    ) -> None:
        self._tiles, self._normaliser, self._given = tiles, normaliser, given
        self._share = reciprocal(given.total)
        product = (given.grad * given.out).sum(-1, keepdim=True)
        self._delta = product if normaliser.is_competitive else None
        self.query, self.key, self.value = (torch.zeros_like(t) for t in (tiles.query, tiles.key, tiles.value))
        self._query_square, self._key_square = (torch.zeros_like(t) for t in (tiles.query_square, tiles.key_square))
        self.bias = None if tiles.bias is None else torch.zeros_like(tiles.bias)
        self.mass = None if tiles.mass is None or not wants_mass else torch.zeros_like(tiles.mass)
        self.pairs = None
        if wants_pairs and tiles.pairs is not None:
            self.pairs = torch.zeros_like(tiles.pairs, dtype=tiles.dtype)
        for rows in tiles.all_rows():
            for columns in tiles.columns_of(rows):
                self._add(rows, columns)
        self.epsilon = -self._query_square.sum()
        self.query.addcmul_(tiles.query, self._query_square, value=-2)
        self.key.addcmul_(tiles.key, self._key_square, value=-2)

    def _add(self, rows: Rows, columns: slice) -> None:
        tiles, at = self._tiles, self._tiles.at
        here, there = (rows.heads, rows.rows), (rows.heads, columns)
        shifted, distance = tiles.products(rows, columns)
        # to the bit what the forward pass had, or large scores would lie above their reference
        score = torch.mul(shifted, shifted, out=tiles.scratch(2, shifted.shape)).div_(distance)
        ratio = torch.div(shifted, distance, out=distance)
        by_score = self._by_score(score, rows, columns)
        by_dot = by_score.mul_(ratio)  # over 2, but for what the distance adds
        by_square = torch.mul(by_dot, ratio, out=shifted)
        at(self._query_square, *here).add_(by_square.sum(-1, keepdim=True))
        at(self._key_square, *there).add_(by_square.sum(-2)[..., None])
        if self.bias is not None:
            at(self.bias, *there).add_(by_dot.sum(-2)[..., None], alpha=2)
        by_dot.add_(by_square)
        at(self.query, *here).baddbmm_(by_dot, at(tiles.key, *there), alpha=2)
        at(self.key, *there).baddbmm_(by_dot.mT, at(tiles.query, *here), alpha=2)

    def _by_score(self, score: Tensor, rows: Rows, columns: slice) -> Tensor:
        """G, after adding to the gradients of values and masses."""
        tiles, given, normaliser = self._tiles, self._given, self._normaliser
        at = tiles.at
        here, there = (rows.heads, rows.rows), (rows.heads, columns)
        reference, share = at(given.reference, *here), at(self._share, *here)
        mass = tiles.pair_mass(rows, columns)
        if mass is not None:
            score.masked_fill_(mass <= 0, 0.0)
        kept = score.clone() if normaliser.slope_reads_score else score
        density = normaliser.numerator(score, reference)
        slope = normaliser.slope(kept, reference, density)
        by_density = torch.bmm(at(given.grad, *here), at(tiles.value, *there).mT, out=tiles.scratch(3, score.shape))
        if self._delta is not None:
            by_density.sub_(at(self._delta, *here))
        if self.mass is not None or self.pairs is not None:
            by_mass = by_density * density * share
            self._add_masses(by_mass if mass is None else by_mass.masked_fill_(mass <= 0, 0.0), rows, columns)
        if slope is density:
            density = _weighed(density, share, mass)
            by_score = by_density.mul_(density)
        else:
            by_score = _weighed(by_density.mul_(slope), share, mass)
            density = _weighed(density, share, mass)
        at(self.value, *there).baddbmm_(density.mT, at(given.grad, *here))
        return by_score

    def _add_masses(self, by_mass: Tensor, rows: Rows, columns: slice) -> None:
        """Adds to the gradients of ω and m what that of ω m says, `(g, r, c)`, 0 where a pair is hidden."""
        tiles = self._tiles
        if self.mass is not None:
            of_mass = by_mass if tiles.pairs is None else by_mass * tiles.pairs_of(rows, columns)
            batch, _ = tiles.places(rows, len(self.mass), 1)
            self.mass[:, columns].index_add_(0, batch, of_mass.sum(1))
        if self.pairs is not None:
            of_pairs = by_mass if tiles.mass is None else by_mass * tiles.mass_of(rows, columns)
            batch, head = tiles.places(rows, self.pairs.shape[0], self.pairs.shape[1])
            block = self.pairs[:, :, rows.rows, columns]
            block.index_put_((batch, head), of_pairs, accumulate=True)

    @property
    def of_heads(self) -> tuple[Tensor, ...]:
        """Gradients of queries, keys, values and b, a head after the other; that of an absent b is empty."""
        return self.query, self.key, self.value, self._present(self.bias)

    @property
    def of_all(self) -> tuple[Tensor, ...]:
        """What these heads say of the gradients of ε, masses and pair weights; empty where absent or not wanted."""
        return self.epsilon, self._present(self.mass), self._present(self.pairs)

    def _present(self, grad: Tensor | None) -> Tensor:
        return self.query.new_empty(0) if grad is None else grad


def _weighed(values: Tensor, share: Tensor, mass: Tensor | None) -> Tensor:
    values.mul_(share)
    return values if mass is None else values.mul_(mass)
