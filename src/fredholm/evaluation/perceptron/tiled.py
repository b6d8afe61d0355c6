"""Exact integration of pairwise perceptron kernels in tiles, without κ and without N x N memory."""

import dataclasses
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor

from fredholm._precision import wide_dtype
from fredholm.domains import Domain, GridBlock, preceding_counts
from fredholm.evaluation.evaluation import StatefulRoute, cache_refusals
from fredholm.evaluation.integral import Integral
from fredholm.evaluation.perceptron.sums import mlp_integral
from fredholm.evaluation.perceptron.tiles import Block, PerceptronInputs
from fredholm.evaluation.running_sums import state_refusals
from fredholm.evaluation.tiling import pair_refusals
from fredholm.kernels import PairwiseMLP, State
from fredholm.kernels.perceptron.mlp import PairwiseForm, norm


@final
@dataclasses.dataclass(frozen=True)
class Tiled(StatefulRoute[PairwiseMLP]):
    """For `PairwiseMLP` kernels on any points: the last layer after the integral, the first layer by parts.

    Cost per pair and head 2w(2d + 2L) flops, w hidden units, d channels, L frequencies; memory O(N·d) forward and
    backward, plus tiles. In low precision p and h are rounded, all sums are kept in float32. Where displacements wrap
    round, their 2L sines and cosines are computed at every pair.

    Args:
        tile_elements: entries of p in a tile; None: 2^20 on a CPU (a tile then stays in its cache), 2^26 elsewhere.
    """

    marker = PairwiseMLP
    weighs_pairs = True
    tile_elements: int | None = None

    def refusals(self, integral: Integral[PairwiseMLP]) -> list[str]:
        """Refuses pair weights for other heads than the kernel's; see `Route.refusals`."""
        return pair_refusals(integral)

    def details(self, integral: Integral[PairwiseMLP]) -> list[str]:
        """The cost."""
        kernel = integral.kernel
        of_pair = 2 * kernel.width * (2 * kernel.in_dim + 2 * kernel.num_heads * kernel.num_frequencies)
        pairs = integral.u.shape[0] * integral.num_queries * integral.domain.num_points
        return [f"{pairs:.3g} pairs, {pairs * of_pair:.2g} flops forward, about three times as many backward"]

    def compute(self, integral: Integral[PairwiseMLP]) -> Tensor:
        """See `Route.compute`."""
        return integrate_pairwise(integral, in_tiles(self.tile_elements))

    def run_refusals(self, integral: Integral[PairwiseMLP], state: State | None, reset: Tensor | None) -> list[str]:
        """Refuses states that need more than the signal and times of all points so far."""
        return _run_refusals(integral, state, reset)

    def advance(
        self, integral: Integral[PairwiseMLP], state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """See `StatefulRoute.advance`; the state is the signal at all points so far, and their times."""
        return _continue(integral, state, in_tiles(self.tile_elements))


def _run_refusals(integral: Integral[PairwiseMLP], state: State | None, reset: Tensor | None) -> list[str]:
    kernel, domain = integral.kernel, integral.domain
    reasons = kernel.unsteppable(domain) + cache_refusals(integral, reset) + state_refusals(integral, state)
    if domain.pos_dim != 1:
        reasons.append("the domain does not order its points")
    elif state is not None and domain.times is not None:
        reasons += kernel.out_of_order(domain.pos if domain.pos.ndim == 3 else domain.pos[None], state)
    return reasons


PairIntegral = Callable[[PerceptronInputs, Block, str], Tensor]
"""A function of all tensors, the grid's block and the activation, to the integral `(B, G, Nq, d_out)` without b."""


def in_tiles(tile_elements: int | None) -> PairIntegral:
    """The integral tile by tile in torch's own operations; see `Tiled` for the size of a tile."""

    def integral(inputs: PerceptronInputs, block: Block, activation: str) -> Tensor:
        entries = inputs.key.shape[0]
        if entries > 1 and inputs.has_one_kernel:
            out = integral(inputs.folded(), block, activation)
            return out.unflatten(-1, (entries, -1))[0].movedim(2, 0)
        return mlp_integral(inputs.spread(), block.numbers, activation, tile_elements).out

    return integral


def integrate_pairwise(
    integral: Integral[PairwiseMLP],
    by: PairIntegral,
    blocks: tuple[GridBlock, GridBlock] | None = None,
    table: Tensor | None = None,
) -> Tensor:
    """The integral, computed by `by` from prepared tensors.

    Args:
        integral: the integral.
        by: the function of all tensors.
        blocks: the same grid among the queries and among the keys, for which R comes from a table.
        table: R of all pairs in the layout of `by`. None: R of the grid, whose queries `by` gets in reversed order.
    """
    kernel, u, domain, query_domain = integral.kernel, integral.u, integral.domain, integral.query_domain
    form = kernel.pairwise_form(domain, None if integral.own_positions else query_domain)
    pairs = domain.pair_weights
    dtype = integral.working_dtype
    folds = kernel.num_heads if kernel.head_shared else 1
    block, order = Block(), None
    if blocks is not None:
        block = Block(blocks[0].start, blocks[1].start, blocks[1].shape)
        if table is None:
            order = _reversed_within(query_domain.num_points, blocks[0], u.device)
            cells = tuple(2 * extent - 1 for extent in blocks[1].shape)
            part = kernel.relative_part(*between_cells(blocks[1], domain), is_periodic=blocks[1].periodic)
            table = part.mT.unflatten(-1, cells)
        else:
            unread: dict[str, Any] = {"query_pos": form.query_pos[..., :0], "key_pos": form.key_pos[..., :0]}
            form = form._replace(**dict.fromkeys(_RELATIVE), **unread)
    if form.frequencies is None and form.key_pos.shape[-1]:
        middle = domain.middle
        form = form._replace(query_pos=form.query_pos - middle, key_pos=form.key_pos - middle)
    if pairs is not None:
        pairs = _permuted(pairs if folds == 1 else _heads_in_batch(pairs, u.shape[0], folds), order, -2)
    seen = _permuted(preceding_counts(query_domain, domain), order, -1) if kernel.is_causal else None
    # a cast also changes the layout to head by head, which the fused kernels read
    key = _split_heads(u, kernel).to(dtype, memory_format=torch.contiguous_format)
    given: dict[str, Any] = {
        "query": _permuted(key if integral.own_queries else _split_heads(integral.query, kernel), order, -2),
        "key": key,
        "weights": _fold(torch.atleast_2d(domain.weights.to(dtype)), folds),
        "pairs": pairs,
        "seen": None if seen is None else _fold(seen, folds),
        "table": table,
        **_geometry(form, order, folds),
    }
    # fields with the same names in a form
    given |= {name: getattr(form, name) for name in PerceptronInputs._fields if name not in given}
    # centred, since differences of float32 positions are accurate near 0 only
    wide = torch.promote_types(dtype, torch.float32 if form.frequencies is None else domain.pos.dtype)
    special = {"query_pos": wide, "key_pos": wide, "frequencies": wide, "seen": torch.int64}
    given |= {name: t.to(special.get(name, dtype)) for name, t in given.items() if t is not None}
    inputs = PerceptronInputs(**given)
    out = by(inputs, block, kernel.activation)
    out = _permuted(out, order, -2) + _constant_part(form.output_bias, inputs, order).to(out.dtype)
    out = out.reshape(u.shape[0], kernel.num_heads, *out.shape[-2:]).transpose(1, 2).flatten(2)
    share = kernel.past_share(domain, query_domain)
    return out if share is None else (out * share[..., None]).to(out.dtype)


def between_cells(grid: GridBlock, domain: Domain) -> tuple[Tensor, Tensor]:
    """x - y within a grid among the points of a domain, `(T, s)` in the order of its displacements, and its norm."""

    def found() -> tuple[Tensor, Tensor]:
        displacement = grid.displacements(domain.device).flatten(0, -2)
        return displacement, norm(displacement)

    return domain.cached((between_cells, grid), found)


def _continue(
    integral: Integral[PairwiseMLP],
    state: State | None,
    by: PairIntegral,
    blocks: tuple[GridBlock, GridBlock] | None = None,
) -> tuple[Tensor, State]:
    """The integral along a sequence that continues from a state, as in `StatefulRoute.advance`.

    Without earlier points it is integrated as a whole.
    """
    kernel, u, pos = integral.kernel, integral.u, integral.domain.pos
    state = kernel.initial_state(u.shape[0]) if state is None else state
    if u.shape[1] == 0:
        return u.new_zeros(u.shape[0], 0, kernel.out_dim), state
    is_first = state[0].shape[1] == 0
    state = kernel.appended(u, pos, state)
    if not is_first:
        domain, here = kernel.places(state, u.shape[1])
        integral = Integral(kernel, state[0], domain, u, here)
    return integrate_pairwise(integral, by, blocks), state


def _constant_part(bias: Tensor, inputs: PerceptronInputs, order: Tensor | None) -> Tensor:
    """b Σ_j ω_j m_ij u_j, over the keys a query may see: `(B, G, Nq or 1, d_out)`."""
    accumulator = wide_dtype(inputs.key)
    values = inputs.key.to(accumulator) * inputs.weights.to(accumulator)[:, None, :, None]
    seen = None if inputs.seen is None else _permuted(inputs.seen, order, -1)[:, None, :, None]
    if inputs.pairs is not None:
        pairs = _permuted(inputs.pairs, order, -2).to(accumulator)
        if seen is not None:
            pairs = pairs * (torch.arange(pairs.shape[-1], device=pairs.device) < seen)
        total = pairs @ values
    elif seen is None:
        total = values.sum(-2, keepdim=True)
    else:
        running = torch.nn.functional.pad(values.cumsum(-2), (0, 0, 1, 0))
        total = running.gather(2, seen.expand(*running.shape[:2], -1, running.shape[-1]))
    return torch.einsum("goi,bgni->bgno", bias.to(accumulator), total)


def _geometry(form: PairwiseForm, order: Tensor | None, folds: int) -> dict[str, Tensor | None]:
    """Tensors that depend only on positions, with one leading size: 1 when the batch shares positions, else B."""
    sides = {f"{side}_{what}": order if side == "query" else None for side in ("query", "key") for what in _AT_POINTS}
    found: dict[str, Tensor | None] = {name: getattr(form, name) for name in sides}
    batch = max(t.shape[0] for t in found.values() if t is not None)
    for name, value in found.items():
        if value is not None:
            found[name] = _fold(_permuted(value.expand(batch, *value.shape[1:]), sides[name], -2), folds)
    return found


_AT_POINTS = ("bias", "phase", "pos")
_RELATIVE = ("sin_weight", "cos_weight", "query_phase", "key_phase", "distance_weight", "wrapped_weight", "frequencies")
"""Tensors from which R is computed where no table has all of it."""


def _split_heads(u: Tensor, kernel: PairwiseMLP) -> Tensor:
    """`(B, N, C)` to `(B, H, N, d)`, or to `(B·H, 1, N, d)` when one kernel serves all heads."""
    heads = u.unflatten(-1, (kernel.num_heads, -1)).transpose(1, 2)
    return heads.flatten(0, 1)[:, None] if kernel.head_shared else heads


def _fold(value: Tensor, folds: int) -> Tensor:
    """Repeats tensors that differ within the batch for each head, where heads are folded into the batch."""
    return value.repeat_interleave(folds, dim=0) if value.shape[0] > 1 and folds > 1 else value


def _heads_in_batch(pairs: Tensor, batch: int, heads: int) -> Tensor:
    """m `(B', H', Nq, N)` where heads are folded into the batch: `(1 or B·H, 1, Nq, N)`."""
    if pairs.shape[:2] == (1, 1):
        return pairs
    return pairs.expand(batch, heads, -1, -1).flatten(0, 1)[:, None]


def _reversed_within(num_points: int, block: GridBlock, device: torch.device) -> Tensor:
    index = torch.arange(num_points, device=device)
    stop = block.start + block.num_points
    return torch.cat([index[: block.start], index[block.start : stop].flip(0), index[stop:]])


def _permuted(value: Tensor, order: Tensor | None, dim: int) -> Tensor:
    """Permutes the points along one dimension, unless its size is 1."""
    return value if order is None or value.shape[dim] == 1 else value.index_select(dim, order)


@final
@dataclasses.dataclass(frozen=True)
class Toeplitz(StatefulRoute[PairwiseMLP]):
    """For `PairwiseMLP` kernels where queries and keys hold the same grid: the relative part is tabulated once.

    A grid of n_1 x ... x n_s cells has (2n_1 - 1)...(2n_s - 1) displacements, shared by batch and queries, so that a
    pair costs 2w(2d) flops for any relative part. Points off the grid, such as a class token, are tiled as in `Tiled`.

    Args:
        tile_elements: as in `Tiled`.
    """

    marker = PairwiseMLP
    weighs_pairs = True
    tile_elements: int | None = None

    def refusals(self, integral: Integral[PairwiseMLP]) -> list[str]:
        """Refuses domains without a common grid, kernels with nothing to tabulate, and what `Tiled` refuses."""
        if not integral.kernel.reads_displacement(integral.domain):
            return ["this kernel has no part in the displacement that does not split over the two points"]
        if integral.cached(common_grid) is None:
            return ["queries and keys do not hold the same regular grid"]
        return pair_refusals(integral)

    def compute(self, integral: Integral[PairwiseMLP]) -> Tensor:
        """See `Route.compute`."""
        return integrate_pairwise(integral, in_tiles(self.tile_elements), integral.cached(common_grid))

    def run_refusals(self, integral: Integral[PairwiseMLP], state: State | None, reset: Tensor | None) -> list[str]:
        """Refuses what `Tiled` refuses, and earlier points."""
        goes_on = state is not None and state[0].shape[1] > 0
        reasons = ["earlier points are not on the grid of the next ones"] if goes_on else []
        return reasons + _run_refusals(integral, state, reset)

    def advance(
        self, integral: Integral[PairwiseMLP], state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """See `StatefulRoute.advance`; the state is that of `Tiled`."""
        return _continue(integral, state, in_tiles(self.tile_elements), integral.cached(common_grid))


def common_grid(integral: Integral[PairwiseMLP]) -> tuple[GridBlock, GridBlock] | None:
    """The largest grid that queries and keys both hold: its block among the queries, and among the keys."""
    queries, keys = integral.query_domain.grid_blocks, integral.domain.grid_blocks
    pairs = [(q, k) for q in queries for k in keys if q.same_geometry(k)]
    largest = None
    # a loop, because the compiler does not trace `max` over symbolic sizes
    for pair in pairs:
        if largest is None or pair[1].num_points > largest[1].num_points:
            largest = pair
    return largest
