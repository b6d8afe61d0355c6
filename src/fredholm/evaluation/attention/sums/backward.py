"""Gradients of the sum over Yat scores; every tile is computed anew.

Legend
    T, D, s      q·k + b, ‖q - k‖² + ε and T²/D            r     T/D
    n, Z         numerator of a pair, masses aside, and the sum of a row where scores compete, else 1
    g, δ         ∂L/∂O / Z, and g·O of a row where scores compete, else 0
    G            ∂L/∂s = (g·v - δ) ω m ∂n/∂s, for the row's own sum held fixed

    ∂s/∂(q·k) = 2 r (1 + r),   ∂s/∂b = 2 r,   ∂s/∂‖q‖² = ∂s/∂‖k‖² = ∂s/∂ε = -r²

Where rounding pushes a distance below 0 and it is held there, these stay as they are: q = k, to rounding, and what they
say of ‖q - k‖² cancels.
"""

from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm.evaluation.attention.sums.tiles import Rows, Tiles
from fredholm.kernels import Normaliser
from fredholm.kernels.arithmetic import divided
from fredholm.kernels.attention.normalisers import Competitive


class Given(NamedTuple):
    """What the forward pass left behind, and the gradient that came in; `(G, Nq, ...)` each."""

    grad: Tensor
    out: Tensor
    reference: Tensor
    total: Tensor


@final
class Backward:
    """Gradients of everything in `YatInputs` but the order; of masses and pair weights None where not wanted.

    Args:
        tiles: the problem.
        normaliser: ρ.
        given: see `Given`.
        wants_mass, wants_pairs: whether masses and pair weights need gradients.
    """

    def __init__(
        self, tiles: Tiles, normaliser: Normaliser, given: Given, *, wants_mass: bool, wants_pairs: bool
    ) -> None:
        self._tiles, self._normaliser = tiles, normaliser
        self._reference = given.reference
        self._grad, self._by_density = given.grad, (given.grad, tiles.value)
        if isinstance(normaliser, Competitive):
            self._grad = given.grad * divided(1.0, given.total)
            delta = (self._grad * given.out).sum(-1, keepdim=True)
            # one more channel takes δ off within the product
            ones = torch.ones_like(tiles.value[..., :1])
            self._by_density = torch.cat([self._grad, -delta], -1), torch.cat([tiles.value, ones], -1)
        self.query, self.key, self.value = (torch.zeros_like(t) for t in (tiles.query, tiles.key, tiles.value))
        self._query_square, self._key_square = (torch.zeros_like(t) for t in (tiles.query_square, tiles.key_square))
        self.bias = None if tiles.bias is None else torch.zeros_like(tiles.bias)
        self.mass = None if tiles.mass is None or not wants_mass else torch.zeros_like(tiles.mass)
        self.pairs = None
        if wants_pairs and tiles.pairs is not None:
            self.pairs = torch.zeros_like(tiles.pairs, dtype=tiles.dtype)
        for rows in tiles.all_rows():
            reference = self._reference_of(rows)
            for columns in tiles.columns_of(rows):
                self._add(rows, columns, reference)
        self.epsilon = -self._query_square.sum()
        self.query.addcmul_(tiles.query, self._query_square, value=-2)
        self.key.addcmul_(tiles.key, self._key_square, value=-2)

    def _reference_of(self, rows: Rows) -> Tensor | None:
        """σ of these rows, None where all are neutral."""
        if not isinstance(self._normaliser, Competitive):
            return None
        reference = self._tiles.at(self._reference, rows.heads, rows.rows)
        return None if bool((reference == self._normaliser.neutral).all()) else reference

    def _add(self, rows: Rows, columns: slice, reference: Tensor | None) -> None:
        tiles, at = self._tiles, self._tiles.at
        here, there = (rows.heads, rows.rows), (rows.heads, columns)
        score, ratio = tiles.scores(rows, columns)
        by_score = self._by_score(score, rows, columns, reference)
        by_dot = by_score.mul_(ratio)  # over 2, but for what the distance adds
        by_square = torch.mul(by_dot, ratio, out=ratio)
        at(self._query_square, *here).add_(by_square.sum(-1, keepdim=True))
        at(self._key_square, *there).add_(by_square.sum(-2)[..., None])
        if self.bias is not None:
            at(self.bias, *there).add_(by_dot.sum(-2)[..., None], alpha=2)
        by_dot.add_(by_square)
        at(self.query, *here).baddbmm_(by_dot, at(tiles.key, *there), alpha=2)
        at(self.key, *there).baddbmm_(by_dot.mT, at(tiles.query, *here), alpha=2)

    def _by_score(self, score: Tensor, rows: Rows, columns: slice, reference: Tensor | None) -> Tensor:
        """G, after adding to the gradients of values and masses."""
        tiles, normaliser, at = self._tiles, self._normaliser, self._tiles.at
        here, there = (rows.heads, rows.rows), (rows.heads, columns)
        mass = tiles.pair_mass(rows, columns)
        if mass is not None:
            score.masked_fill_(mass <= 0, 0.0)
        kept = score.clone() if normaliser.slope_reads_score else score
        numerator = normaliser.numerator(score, reference)
        slope = normaliser.slope(kept, reference, numerator)
        grad, values = self._by_density
        by_density = torch.bmm(at(grad, *here), at(values, *there).mT, out=tiles.scratch(2, score.shape))
        if self.mass is not None or self.pairs is not None:
            by_mass = by_density * numerator
            self._add_masses(by_mass if mass is None else by_mass.masked_fill_(mass <= 0, 0.0), rows, columns)
        if slope is numerator:
            weighed = _weighed(numerator, mass)
            by_score = by_density.mul_(weighed)
        else:
            by_score = _weighed(by_density.mul_(slope), mass)
            weighed = _weighed(numerator, mass)
        at(self.value, *there).baddbmm_(weighed.mT, at(self._grad, *here))
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


def _weighed(values: Tensor, mass: Tensor | None) -> Tensor:
    return values if mass is None else values.mul_(mass)
