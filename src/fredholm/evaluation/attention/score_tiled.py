"""Scores in tiles, forward and backward: memory that grows with N, not N².

Legend (heads of a batch in a row, G = B·H)
    s_ij, P_ij   score and mass of a pair (`pair_tiles`)      n, Z   numerator of a pair; the sum of a row
    σ            reference score of a row                     O      Σ P n v over the same reference, and over Z
    g, δ         ∂L/∂O / Z, and g·O = Σ P n g·v / Z of a row where scores compete, else 0
    G            ∂L/∂s = (g·v - δ) P ∂n/∂s, for the row's own sum held fixed

Few rows need a reference: they are summed without one while sums stay in range. Backward, every tile is recomputed, for
rows with a reference twice: where one key has all the weight, g·v - δ is 0 and ∂n/∂s may be 10⁶, so δ must be summed
from the same g·v from which it is subtracted; g·O differs from it by rounding.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm._precision import wide_dtype
from fredholm.domains import Domain, Sequence
from fredholm.domains.checks import has_values
from fredholm.evaluation.custom_op import Operator
from fredholm.evaluation.evaluation import StatefulRoute, cache_refusals
from fredholm.evaluation.integral import Integral
from fredholm.evaluation.pair_tiles import PairGradients, PairTiles, Rows, TileInputs, all_pairs, measured
from fredholm.kernels import Normaliser, Scored, State
from fredholm.kernels.attention.scored import CachedScored, Competitive, Score, ScoreForm
from fredholm.kernels.heads import each_query_head
from fredholm.kernels.kernel import divided

LARGEST, SMALLEST = 1e12, 1e-12
"""Range of row sums that need no reference: their terms, times values and gradients, stay in the range of float32."""


@final
@dataclasses.dataclass(frozen=True)
class ScoreTiled(StatefulRoute[Scored]):
    """For `Scored` kernels: scores, densities and sums tile by tile, recomputed in the backward pass.

    Cost per pair and head 2(d + d_v) flops forward and five products of d or d_v backward, and twice that of the score;
    memory O(N·d) plus tiles. Scores, densities and sums are in at least float32, since distances cancel.

    Args:
        tile_elements: pairs in a tile; None: 2^17 a thread on a CPU, which its cache can hold, 2^24 elsewhere.
    """

    marker = Scored
    weighs_pairs = True
    tile_elements: int | None = None

    def refusals(self, integral: Integral[Scored]) -> list[str]:
        """Refuses scores and normalisers that hold more than numbers; see `Route.refusals`."""
        return integral.kernel.score.not_numbers() + integral.kernel.normaliser.not_numbers()

    def compute(self, integral: Integral[Scored]) -> Tensor:
        """See `Route.compute`."""
        return integrate_scores(integral, self._in_tiles)

    def run_refusals(self, integral: Integral[Scored], state: State | None, reset: Tensor | None) -> list[str]:
        """Refuses kernels whose state is not keys and values, and resets, masks and weights, which a cache lacks."""
        return continuation_refusals(integral, reset)

    def advance(
        self, integral: Integral[Scored], state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """See `StatefulRoute.advance`; the state is every key and value so far."""
        return continue_scores(integral, state, self._in_tiles)

    def _in_tiles(self, inputs: "ScoreInputs", score: Score, normaliser: Normaliser) -> Tensor:
        return score_sums(inputs, score.encoded(), normaliser.encoded(), self.tile_elements).out


class ScoreInputs(NamedTuple):
    """Inputs of the sum: values, and the fields of `TileInputs`."""

    value: Tensor  # (B, H, N, d_v)
    query: Tensor
    key: Tensor
    key_bias: Tensor | None
    softening: Tensor | None
    numbers: Tensor | None
    mass: Tensor | None
    pairs: Tensor | None
    seen: Tensor | None


class ScoreOutputs(NamedTuple):
    """The sums, and σ and Z of each row, ones where the normaliser has none; in at least float32.

    Lower precision would lose differences of the sums in the backward pass.
    """

    out: Tensor  # (B, H, Nq, d_v)
    reference: Tensor  # (B, H, Nq)
    total: Tensor  # (B, H, Nq)


ScoreSum = Callable[[ScoreInputs, Score, Normaliser], Tensor]
"""A function that computes the integral `(B, H, Nq, d_v)`, in at least float32."""


def integrate_scores(integral: Integral[Scored], sums: ScoreSum) -> Tensor:
    """The integral `(B, Nq, H·d_v)`, computed by `sums`."""
    form = integral.kernel.score_form(integral.u, integral.domain, integral.query, integral.query_domain)
    return _summed(integral.kernel, form, integral.domain, integral.query_domain, sums)


def continuation_refusals(integral: Integral[Scored], reset: Tensor | None) -> list[str]:
    """Reasons why a sequence cannot be continued from its keys and values, a sentence each."""
    if not isinstance(integral.kernel, CachedScored):
        return [f"the state of {type(integral.kernel).__name__} is not its keys and values"]
    return cache_refusals(integral, reset)


def continue_scores(integral: Integral[Scored], state: State | None, sums: ScoreSum) -> tuple[Tensor, State]:
    """The integral at the next points of a sequence, computed by `sums`; the state is all keys and values so far.

    Raises:
        TypeError: for a kernel whose state is not keys and values, or that has no state.
    """
    kernel, u, domain = integral.kernel, integral.u, integral.domain
    if not isinstance(kernel, CachedScored):
        raise TypeError(f"{type(kernel).__name__} carries no keys and values along a sequence")
    if u.shape[1] == 1 and state is not None:
        # for the few scores of one point tiles do not pay
        time = None if domain.times is None else domain.times[..., 0].expand(len(u))
        out, state = kernel.step(u[:, 0], state, time)
        return out[:, None], state
    form = kernel.continued_form(u, domain, state)
    here, so_far = (Sequence(n, device=u.device) for n in (u.shape[1], form.key.shape[2]))
    return _summed(kernel, form, so_far, here, sums), (form.key, form.value)


def _summed(kernel: Scored, form: ScoreForm, domain: Domain, query_domain: Domain, sums: ScoreSum) -> Tensor:
    """The integral `(B, Nq, H·d_v)` for these queries, keys and values, computed by `sums`."""
    kernel.check_score()
    batch, heads = form.value.shape[0], form.query.shape[1]
    bias = None if form.key_bias is None else each_query_head(form.key_bias, heads).expand(batch, -1, -1)
    inputs = ScoreInputs(
        each_query_head(form.value, heads),
        form.query.expand(batch, -1, -1, -1),
        each_query_head(form.key, heads),
        bias,
        form.softening,
        form.numbers,
        *measured(kernel, domain, query_domain),
    )
    out = sums(inputs, kernel.score, kernel.normaliser)
    return out.to(form.value.dtype).transpose(1, 2).flatten(2)


def score_forward(
    inputs: ScoreInputs, score: list[float], normaliser: list[float], elements: int | None
) -> ScoreOutputs:
    """The sums, tile by tile."""
    tiles, rho = PairTiles(TileInputs(*inputs[1:]), Score.decoded(score), elements), Normaliser.decoded(normaliser)
    value = tiles.flat(inputs.value)
    out = value.new_zeros(*tiles.query.shape[:2], value.shape[-1])
    total = value.new_ones(*out.shape[:2], 1)
    reference = torch.ones_like(total)
    if not isinstance(rho, Competitive):
        for rows in tiles.all_rows():
            _add(tiles, value, rows, rho, out[rows.heads, rows.rows])
    else:
        reference.fill_(rho.neutral)
        plain = True
        for rows in tiles.all_rows():
            here = rows.heads, rows.rows
            if plain:
                z = total[here] = _add(tiles, value, rows, rho, out[here]) + rho.floor()
                # if one tile has such scores, others have too; NaN is out of range
                usable = z >= SMALLEST
                usable = usable | (z == 0) if tiles.score.is_nonnegative else usable
                plain = not has_values(z) or bool(((z <= LARGEST) & usable).all())
            if not plain:
                reference[here], total[here] = _add_online(tiles, value, rows, rho, out[here].zero_())
            out[here].div_(total[here].where(total[here] != 0, 1.0))  # a row without mass is all zeros
    heads = inputs.query.shape[:2]
    return ScoreOutputs(out.unflatten(0, heads), reference.view(*heads, -1), total.view(*heads, -1))


def _add(tiles: PairTiles, value: Tensor, rows: Rows, normaliser: Normaliser, out: Tensor) -> Tensor:
    """Adds Σ P n v to `out`; returns Σ P n, `(g, r, 1)`."""
    total = out.new_zeros(*out.shape[:2], 1)
    for columns in tiles.columns_of(rows):
        # mass 0 hides a pair, so that its score may be any cheap number
        score, mass = _visible_scores(tiles, rows, columns, hidden=0.0)
        share = _weighed(normaliser.numerator(score), mass)
        if normaliser.is_competitive:
            total += share.sum(-1, keepdim=True)
        out.baddbmm_(share, tiles.at(value, rows.heads, columns))
    return total


def _add_online(
    tiles: PairTiles, value: Tensor, rows: Rows, normaliser: Competitive, out: Tensor
) -> tuple[Tensor, Tensor]:
    """Adds O to `out`; returns σ, the largest score, and Z, `(g, r, 1)`."""
    total = out.new_zeros(*out.shape[:2], 1)
    reference = torch.full_like(total, normaliser.least)
    for columns in tiles.columns_of(rows):
        score, mass = _visible_scores(tiles, rows, columns, normaliser.hidden)
        larger = torch.maximum(reference, score.amax(-1, keepdim=True))
        share = _weighed(normaliser.numerator(score, larger), mass)
        if columns.start > 0:
            kept = normaliser.numerator(reference, larger)
            total.mul_(kept)
            out.mul_(kept)
        reference = larger
        total += share.sum(-1, keepdim=True)
        out.baddbmm_(share, tiles.at(value, rows.heads, columns))
    return reference, total + normaliser.floor(reference)


def _visible_scores(tiles: PairTiles, rows: Rows, columns: slice, hidden: float) -> tuple[Tensor, Tensor | None]:
    """s, replaced where hidden, and the masses of the pairs."""
    score, _ = tiles.scores(rows, columns)
    mass = tiles.pair_mass(rows, columns)
    return (score if mass is None else score.masked_fill_(mass <= 0, hidden)), mass


def _weighed(values: Tensor, mass: Tensor | None) -> Tensor:
    return values if mass is None else values.mul_(mass)


def score_backward(
    inputs: ScoreInputs,
    outputs: ScoreOutputs,
    grads: ScoreOutputs,
    wanted: frozenset[str],
    score: list[float],
    normaliser: list[float],
    elements: int | None,
    delta: Tensor | None = None,
) -> dict[str, Tensor]:
    """Gradients of the `wanted` inputs, by name.

    `delta` `(B, H, Nq)` is δ where O, σ and Z include further keys: the sum of `score_delta` over all blocks.
    """
    tiles, rho = PairTiles(TileInputs(*inputs[1:]), Score.decoded(score), elements), Normaliser.decoded(normaliser)
    value, grad = tiles.flat(inputs.value), tiles.flat(grads.out)
    with_known = grad, value
    reference = total = whole = None
    if isinstance(rho, Competitive):
        reference, total = (t.flatten(0, 1)[..., None] for t in (outputs.reference, outputs.total))
        whole = None if delta is None else delta.flatten(0, 1)[..., None]
        grad = divided(grad, total)
        known = (grad * outputs.out.flatten(0, 1)).sum(-1, keepdim=True)
        # an extra channel subtracts δ within the product
        with_known = torch.cat([grad, -known], -1), torch.cat([value, torch.ones_like(value[..., :1])], -1)
    sums, to_value = PairGradients(tiles, wanted), torch.zeros_like(value)
    into = sums.queries(tiles)
    for rows in tiles.all_rows():
        sigma = known = None
        by_row, by_key = with_known
        if isinstance(rho, Competitive) and reference is not None and total is not None:
            sigma, z = (tiles.at(t, rows.heads, rows.rows) for t in (reference, total))
            sigma = sigma if has_references(sigma, rho) else None
            if sigma is not None:
                by_row, by_key = grad, value
                if whole is None:
                    known = _summed_delta(tiles, value, tiles.at(grad, rows.heads, rows.rows), rows, rho, sigma, z)
                else:
                    known = tiles.at(whole, rows.heads, rows.rows)
        for columns in tiles.columns_of(rows):
            there = rows.heads, columns
            s, kept = tiles.scores(rows, columns)
            mass = tiles.pair_mass(rows, columns)
            if mass is not None:
                s.masked_fill_(mass <= 0, 0.0 if sigma is None else rho.hidden)
            s_kept = s.clone() if rho.slope_reads_score else s
            numerator = rho.numerator(s, sigma)
            slope = rho.slope(s_kept, sigma, numerator)
            pulled = tiles.scratch(2, numerator.shape)
            torch.bmm(tiles.at(by_row, rows.heads, rows.rows), tiles.at(by_key, *there).mT, out=pulled)
            if known is not None:
                pulled.sub_(known)
            if sums.mass is not None or sums.pairs is not None:
                by_mass = pulled * numerator
                by_mass = by_mass if mass is None else by_mass.masked_fill_(mass <= 0, 0.0)
                if sums.mass is not None:
                    pairs = None if tiles.pairs is None else tiles.pairs_of(rows, columns)
                    sums.add_masses(tiles, rows, columns, by_mass if pairs is None else by_mass * pairs)
                if sums.pairs is not None:
                    by_pair = by_mass if tiles.mass is None else by_mass * tiles.mass_of(rows, columns)
                    sums.add_pairs(tiles, rows, columns, by_pair)
            if rho.is_its_slope:
                weighed = _weighed(numerator, mass)
                by_score = pulled.mul_(weighed)
            else:
                by_score = _weighed(pulled.mul_(slope), mass)
                weighed = _weighed(numerator, mass)
            tiles.at(to_value, *there).baddbmm_(weighed.mT, tiles.at(grad, rows.heads, rows.rows))
            sums.add(tiles, rows, columns, kept, by_score, into)
    return {"value": to_value, "query": sums.of_queries(tiles, into), **sums.found(tiles)}


def has_references(reference: Tensor, normaliser: Competitive) -> bool:
    """Whether some row has a reference score σ, so that one key may have all its weight."""
    return has_values(reference) and not bool((reference == normaliser.neutral).all())


def score_delta(
    inputs: ScoreInputs,
    outputs: ScoreOutputs,
    grad: Tensor,
    score: list[float],
    normaliser: list[float],
    elements: int | None,
) -> Tensor:
    """Contribution of these keys to δ, `(B, H, Nq)`; `outputs` are those of all keys, `grad` is ∂L/∂O."""
    tiles, rho = PairTiles(TileInputs(*inputs[1:]), Score.decoded(score), elements), Normaliser.decoded(normaliser)
    assert isinstance(rho, Competitive)
    value = tiles.flat(inputs.value)
    reference, total = (t.flatten(0, 1)[..., None] for t in (outputs.reference, outputs.total))
    grad = divided(tiles.flat(grad), total)
    delta = torch.zeros_like(total)
    for rows in tiles.all_rows():
        g, sigma, z = (tiles.at(t, rows.heads, rows.rows) for t in (grad, reference, total))
        delta[rows.heads, rows.rows] = _summed_delta(tiles, value, g, rows, rho, sigma, z)
    return delta.view_as(outputs.total)


def _summed_delta(
    tiles: PairTiles,
    value: Tensor,
    grad: Tensor,
    rows: Rows,
    normaliser: Competitive,
    reference: Tensor,
    total: Tensor,
) -> Tensor:
    """δ = Σ P n g·v / Z of rows, `(g, r, 1)`, with g·v bit for bit as in the gradients of these rows."""
    delta = torch.zeros_like(total)
    for columns in tiles.columns_of(rows):
        score, mass = _visible_scores(tiles, rows, columns, normaliser.hidden)
        # a weight of 1 must keep g·v exactly
        share = divided(_weighed(normaliser.numerator(score, reference), mass), total)
        pulled = tiles.scratch(2, share.shape)
        torch.bmm(grad, tiles.at(value, rows.heads, columns).mT, out=pulled)
        delta += (share * pulled).sum(-1, keepdim=True)
    return delta


def _like(inputs: ScoreInputs, score: list[float], normaliser: list[float], elements: int | None) -> ScoreOutputs:
    dtype = wide_dtype(inputs.query)
    rows = inputs.query.new_empty(inputs.query.shape[:3], dtype=dtype)
    return ScoreOutputs(rows.new_empty(*rows.shape, inputs.value.shape[-1]), rows, torch.empty_like(rows))


def plain_scores(
    inputs: ScoreInputs, score: list[float], normaliser: list[float], elements: int | None = None
) -> tuple[Tensor]:
    """The sums in differentiable operations, all pairs at once."""
    scores, mass, _ = all_pairs(TileInputs(*inputs[1:]), Score.decoded(score))
    mass = scores.new_ones(()) if mass is None else mass
    weighed = Normaliser.decoded(normaliser).shares(scores, mass)
    return (weighed @ inputs.value.to(weighed.dtype),)


score_sums = Operator(
    "score_sums",
    ScoreInputs,
    ScoreOutputs,
    score_forward,
    _like,
    score_backward,
    results=("out",),
    keeps=("out", "reference", "total"),
    plain=plain_scores,
)
"""The integral of a scored kernel; options: score and normaliser as `encoded`, and pairs in a tile."""
