"""The integral of all pairs at once, in PyTorch's differentiable operations. Legend: `tiles.py`.

For derivatives that the operator in tiles lacks, and for exported graphs. Memory w·H per pair.
"""

import math

import torch
from torch import Tensor

from fredholm._precision import wide_dtype
from fredholm.domains.checks import is_open
from fredholm.domains.domain import wrapped
from fredholm.evaluation.perceptron.tiles import Block, PerceptronInputs
from fredholm.kernels.perceptron.mlp import activate, norm


def plain_integral(
    inputs: PerceptronInputs, block: list[int], activation: str, elements: int | None = None
) -> tuple[Tensor]:
    """`mlp_integral` in differentiable operations; ignores the size of a tile."""
    return with_relative(inputs, _relative(inputs, Block.of(block)), activation)


def with_relative(inputs: PerceptronInputs, relative: Tensor, activation: str) -> tuple[Tensor]:
    """The integral from R, `(B' or 1, G or 1, Nq or 1, N or 1, w)`."""
    t = inputs
    p = relative + t.key_bias[:, :, None] + t.query_bias[:, :, :, None]
    if t.query_weight is not None:
        p = p + torch.einsum("bgqd,gwd->bgqw", t.query, t.query_weight)[:, :, :, None]
    if t.key_weight is not None:
        p = p + torch.einsum("bgkd,gwd->bgkw", t.key, t.key_weight)[:, :, None]
    if t.product_weight is not None:
        virtual = t.query[:, :, :, None] * t.product_weight[:, None]
        p = p + torch.einsum("bgqwd,bgkd->bgqkw", virtual, t.key)
    h = activate(p, activation)
    if t.hidden_weight is not None and t.hidden_bias is not None:
        for weight, bias in zip(t.hidden_weight.unbind(), t.hidden_bias.unbind(), strict=True):
            h = activate(torch.einsum("gwv,bgqkv->bgqkw", weight, h) + bias[:, None, None], activation)
    if t.seen is not None:
        seen = torch.arange(t.key.shape[2], device=h.device) < t.seen[:, None, :, None]
        h = torch.where(seen[..., None], h, 0.0)
    if t.pairs is not None:
        h = h * t.pairs[..., None]
    values, dtype = t.key * t.weights[:, None, :, None], wide_dtype(t.key)
    sums = torch.einsum("bgqkw,bgkc->bgqwc", h.to(dtype), values.to(dtype)).to(t.key.dtype)
    by_entry = sums.unflatten(-1, (-1, t.output_weight.shape[2]))
    return (torch.einsum("bgqwed,gwdo->bgqeo", by_entry, t.output_weight).flatten(3),)


def _relative(t: PerceptronInputs, block: Block) -> Tensor:
    """R from the positions of the points, `(B' or 1, G or 1, Nq or 1, N or 1, w)`."""
    if t.table is None:
        return by_parts(t)
    inside = _of_table(t.table, block)
    if (block.size, block.size) == (t.query_bias.shape[2], t.key_bias.shape[2]):
        return inside
    # pairs with points off the grid are computed by parts
    every = by_parts(t)
    batch, groups, width = len(t.key_bias), *t.key_bias.shape[1::2]
    every = every.expand(batch, groups, t.query_bias.shape[2], t.key_bias.shape[2], width)
    first, last = block.query_start, block.query_start + block.size
    before, rows, after = every[:, :, :first], every[:, :, first:last], every[:, :, last:]
    left, right = rows[:, :, :, : block.key_start], rows[:, :, :, block.key_start + block.size :]
    inside = inside.expand(batch, *inside.shape[1:])
    return torch.cat([before, torch.cat([left, inside, right], dim=3), after], dim=2)


def _of_table(table: Tensor, block: Block) -> Tensor:
    """R among the points of the grid, queries in reversed order: `(1, G, n, n, w)`."""
    places = torch.zeros((), dtype=torch.int64, device=table.device)
    for axis, cells in enumerate(block.shape):
        cell = torch.arange(cells, device=table.device)
        step = (cell[:, None] + cell).view(*_along(axis, block), *_along(axis, block))
        places = places * table.shape[2 + axis] + step
    places = places.reshape(block.size, block.size)
    return table.flatten(2)[:, :, places].movedim(1, -1)[None]


def _along(axis: int, block: Block) -> list[int]:
    return [n if i == axis else 1 for i, n in enumerate(block.shape)]


def by_parts(t: PerceptronInputs) -> Tensor:
    """R, computed without a table."""
    found = t.query.new_zeros(1, 1, 1, 1, 1)
    if t.distance_weight is not None or t.wrapped_weight is not None:
        step = t.query_pos[:, :, None] - t.key_pos[:, None]  # (B', Nq, N, s)
        step = step if t.frequencies is None else wrapped(step)
        if t.distance_weight is not None:
            found = found + torch.einsum("bqk,gw->bgqkw", norm(step).to(found.dtype), t.distance_weight)
        if t.wrapped_weight is not None:
            lifted = step
            if t.frequencies is not None and t.frequencies.shape[0]:
                phases = 2 * math.pi * step @ t.frequencies.mT
                lifted = torch.cat([phases.sin(), phases.cos()], dim=-1)
            found = found + torch.einsum("bqkl,gwl->bgqkw", lifted.to(found.dtype), t.wrapped_weight)
    if t.sin_weight is not None and t.cos_weight is not None:
        assert t.query_phase is not None
        assert t.key_phase is not None
        keys, queries = t.key_phase.shape[1], t.query_phase.shape[1]
        # rotated points have w times as many entries: rotates the side with fewer points, unless both are symbolic
        if not is_open(keys) and not is_open(queries) and keys < queries:
            turned = _turned(t.key_phase, t.sin_weight, t.cos_weight, -1)
            found = found + torch.einsum("bgkwl,bql->bgqkw", turned, t.query_phase)
        else:
            turned = _turned(t.query_phase, t.sin_weight, t.cos_weight, 1)
            found = found + torch.einsum("bgqwl,bkl->bgqkw", turned, t.key_phase)
    return found


def _turned(phase: Tensor, sin_weight: Tensor, cos_weight: Tensor, sign: int) -> Tensor:
    """Coefficients of one side's sines and cosines in s sin(θ_i - θ_j) + c cos(θ_i - θ_j), `(B', G, n, w, 2L)`.

    They depend on the points of the other side: queries i, with sign 1, or keys j, with sign -1.
    """
    sin, cos = (part[:, None, :, None] for part in phase.chunk(2, dim=-1))  # (B', 1, n, 1, L)
    s, c = sin_weight[:, None], cos_weight[:, None]
    return torch.cat([c * sin - sign * s * cos, c * cos + sign * s * sin], dim=-1)
