"""Sums over Yat scores on a GPU, forward and backward.

Legend (beside that of `attention/score_tiled.py`)
    σ, Z      reference score and sum of a row, kept from the forward pass

The forward pass keeps the largest score so far, as fused softmax attention does. Backward, every tile is built twice:
by the program of its queries and by that of its keys, so that each sum has one owner and one order: no atomic
operations, and two runs are identical. Seven products of a pair's d against the forward pass's two.

A program owns UNITS points of one side, the rows of its tiles, and meets those of the other, the columns, N at a time.
Queries are rows in the forward pass and for their own gradients; keys are rows for theirs. All tensors are contiguous,
with batch and heads in one dimension.
"""

# pyright: reportGeneralTypeIssues=false
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fredholm.evaluation.attention.score_tiled import ScoreInputs
from fredholm.evaluation.triton.machine import padded, precision
from fredholm.evaluation.triton.tile import point_rows
from fredholm.evaluation.triton.tuning import UNITS, Room, Tile, launch, tuned_tile
from fredholm.kernels import Softermax
from fredholm.kernels.attention.scored import TINY
from fredholm.kernels.kernel import divided


@triton.jit
def _products(rows, columns, epsilon, PRECISION: tl.constexpr):
    """T = q·k and D = ‖q - k‖² + ε, `(rows, columns)`, in float32."""
    dot = tl.dot(rows, tl.trans(columns), input_precision=PRECISION)
    row_square = tl.sum(rows.to(tl.float32) * rows.to(tl.float32), 1)
    column_square = tl.sum(columns.to(tl.float32) * columns.to(tl.float32), 1)
    distance = row_square[:, None] + column_square[None, :] - 2 * dot
    return dot, tl.where(distance < 0, 0.0, distance) + epsilon


@triton.jit
def _numerator(score, reference, POWER: tl.constexpr):
    """n(s) over n(σ), at most 1: rounding may put a score that is computed anew above its reference. NaN stays NaN."""
    score = tl.where(score > reference, reference, score)
    if POWER == 0.0:
        share = tl.exp(score - reference)
    elif POWER == 1.0:
        share = score / reference
    else:
        zero = score == 0
        share = tl.where(zero, 0.0, tl.exp2(POWER * tl.log2(tl.where(zero, reference, score) / reference)))
    return share


@triton.jit
def _slope(score, reference, share, POWER: tl.constexpr):
    """The derivative of the numerator by the score."""
    if POWER == 0.0:
        slope = share
    elif POWER == 1.0:
        slope = 1.0 / reference + 0.0 * share
    else:
        zero = score == 0
        slope = tl.where(zero, 0.0, POWER * share / tl.where(zero, 1.0, score))
    return slope


@triton.jit
def _program(mass, seen, num_queries, num_keys, heads, mass_batch, seen_batch, UNITS: tl.constexpr):
    """The rows of this program, the head of the batch, and mass and order of the batch entry."""
    group = tl.program_id(1).to(tl.int64)
    batch = group // heads
    mass += tl.where(mass_batch > 1, batch, 0) * num_keys
    seen += tl.where(seen_batch > 1, batch, 0) * num_queries
    return tl.program_id(0) * UNITS + tl.arange(0, UNITS).to(tl.int64), group, mass, seen


@triton.jit
def _pair_mass(mass, seen, queries, query_exist, keys, key_exist, MASS: tl.constexpr, SEEN: tl.constexpr):
    """ω_j where query i sees key j, else 0: queries `(r, 1)` or `(1, r)`, keys the other way."""
    weight = (query_exist & key_exist).to(tl.float32)
    if MASS:
        weight *= tl.load(mass + keys, mask=key_exist, other=0.0).to(tl.float32)
    if SEEN:
        weight = tl.where(keys < tl.load(seen + queries, mask=query_exist, other=0), weight, 0.0)
    return weight


@triton.jit
def yat_forward_kernel(
    query, key, value, epsilon, mass, seen, out, reference, total, num_queries, num_keys, heads, mass_batch, seen_batch,
    tiny,
    MASS: tl.constexpr, SEEN: tl.constexpr, POWER: tl.constexpr, FLOOR: tl.constexpr, PRECISION: tl.constexpr,
    DIM: tl.constexpr, VALUE: tl.constexpr, D: tl.constexpr, V: tl.constexpr, UNITS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """O, σ and Z of UNITS queries."""
    rows, group, mass, seen = _program(mass, seen, num_queries, num_keys, heads, mass_batch, seen_batch, UNITS)
    exist = rows < num_queries
    q = point_rows(query + group * num_queries * DIM, rows, exist, DIM, DIM, D)
    key += group * num_keys * DIM
    value += group * num_keys * VALUE
    dtype: tl.constexpr = value.dtype.element_ty
    soft = tl.load(epsilon)
    largest = tl.zeros([UNITS], tl.float32) + tl.load(tiny)
    z = tl.zeros([UNITS], tl.float32)
    sums = tl.zeros([UNITS, V], tl.float32)
    stop = num_keys
    if SEEN:
        stop = tl.minimum(stop, tl.max(tl.load(seen + rows, mask=exist, other=0), 0))
    for first in range(0, stop, N):
        columns = first + tl.arange(0, N).to(tl.int64)
        there = columns < num_keys
        dot, distance = _products(q, point_rows(key, columns, there, DIM, DIM, D), soft, PRECISION)
        weight = _pair_mass(mass, seen, rows[:, None], exist[:, None], columns[None, :], there[None, :], MASS, SEEN)
        score = tl.where(weight > 0, dot * dot / distance, 0.0)
        larger = tl.maximum(largest, tl.max(score, 1))
        share = _numerator(score, larger[:, None], POWER) * weight
        kept = _numerator(largest, larger, POWER)
        z = z * kept + tl.sum(share, 1)
        v = point_rows(value, columns, there, VALUE, VALUE, V)
        sums = tl.dot(share.to(dtype), v, sums * kept[:, None], input_precision=PRECISION)
        largest = larger
    if POWER > 0.0:
        # a row of zeros has the least reference, whose power may be beyond the floating range
        z += FLOOR * tl.exp2(tl.minimum(-POWER * tl.log2(largest), 126.0))
    empty = z == 0
    sums = tl.where(empty[:, None], 0.0, sums / tl.where(empty, 1.0, z)[:, None])
    at = group * num_queries + rows
    channels = tl.arange(0, V)
    tl.store(out + at[:, None] * VALUE + channels[None, :], sums, mask=exist[:, None] & (channels[None, :] < VALUE))
    tl.store(reference + at, largest, mask=exist)
    tl.store(total + at, z, mask=exist)


@triton.jit
def _by_pair(
    dot, distance, weight, by_density, reference, share_of_total, delta, POWER: tl.constexpr
):  # fmt: skip
    """The density a; G r and G r², r = q·k / D; and what P receives. Legend: `attention/score_tiled.py`."""
    score = tl.where(weight > 0, dot * dot / distance, 0.0)
    numerator = _numerator(score, reference, POWER)
    by_share = (by_density - delta) * share_of_total
    ratio = dot / distance
    by_dot = by_share * _slope(score, reference, numerator, POWER) * weight * ratio
    return numerator * share_of_total, by_dot, by_dot * ratio, by_share * numerator


# two kernels, because sums that a program does not keep would cost registers


@triton.jit
def yat_query_kernel(
    query, key, value, epsilon, mass, seen, grad, reference, share, delta, by_query, by_square, num_queries, num_keys,
    heads, mass_batch, seen_batch,
    MASS: tl.constexpr, SEEN: tl.constexpr, POWER: tl.constexpr, PRECISION: tl.constexpr,
    DIM: tl.constexpr, VALUE: tl.constexpr, D: tl.constexpr, V: tl.constexpr, UNITS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """The gradient of UNITS queries, and Σ_j G r², which is that of -‖q‖²."""
    rows, group, mass, seen = _program(mass, seen, num_queries, num_keys, heads, mass_batch, seen_batch, UNITS)
    exist = rows < num_queries
    q = point_rows(query + group * num_queries * DIM, rows, exist, DIM, DIM, D)
    g = point_rows(grad + group * num_queries * VALUE, rows, exist, VALUE, VALUE, V)
    at = group * num_queries + rows
    sigma = tl.load(reference + at, mask=exist, other=1.0)[:, None]
    over_z = tl.load(share + at, mask=exist, other=0.0)[:, None]
    drop = tl.load(delta + at, mask=exist, other=0.0)[:, None]
    key += group * num_keys * DIM
    value += group * num_keys * VALUE
    dtype: tl.constexpr = key.dtype.element_ty
    soft = tl.load(epsilon)
    squares = tl.zeros([UNITS], tl.float32)
    sums = tl.zeros([UNITS, D], tl.float32)
    stop = num_keys
    if SEEN:
        stop = tl.minimum(stop, tl.max(tl.load(seen + rows, mask=exist, other=0), 0))
    for first in range(0, stop, N):
        columns = first + tl.arange(0, N).to(tl.int64)
        there = columns < num_keys
        k = point_rows(key, columns, there, DIM, DIM, D)
        dot, distance = _products(q, k, soft, PRECISION)
        weight = _pair_mass(mass, seen, rows[:, None], exist[:, None], columns[None, :], there[None, :], MASS, SEEN)
        v = point_rows(value, columns, there, VALUE, VALUE, V)
        by_density = tl.dot(g, tl.trans(v), input_precision=PRECISION)
        _, by_dot, by_distance, _ = _by_pair(dot, distance, weight, by_density, sigma, over_z, drop, POWER)
        squares += tl.sum(by_distance, 1)
        sums = tl.dot((by_dot + by_distance).to(dtype), k, sums, input_precision=PRECISION)
    found = 2 * (sums - q.to(tl.float32) * squares[:, None])
    channels = tl.arange(0, D)
    where = exist[:, None] & (channels[None, :] < DIM)
    tl.store(by_query + at[:, None] * DIM + channels[None, :], found, mask=where)
    tl.store(by_square + at, squares, mask=exist)


@triton.jit
def yat_key_kernel(
    query, key, value, epsilon, mass, seen, grad, reference, share, delta, by_key, by_value, by_mass, num_queries,
    num_keys, heads, mass_batch, seen_batch,
    MASS: tl.constexpr, SEEN: tl.constexpr, POWER: tl.constexpr, PRECISION: tl.constexpr,
    DIM: tl.constexpr, VALUE: tl.constexpr, D: tl.constexpr, V: tl.constexpr, UNITS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """The gradients of UNITS keys, their values and, with MASS, their masses in this head."""
    rows, group, mass, seen = _program(mass, seen, num_queries, num_keys, heads, mass_batch, seen_batch, UNITS)
    exist = rows < num_keys
    k = point_rows(key + group * num_keys * DIM, rows, exist, DIM, DIM, D)
    v = point_rows(value + group * num_keys * VALUE, rows, exist, VALUE, VALUE, V)
    query += group * num_queries * DIM
    grad += group * num_queries * VALUE
    dtype: tl.constexpr = key.dtype.element_ty
    soft = tl.load(epsilon)
    squares = tl.zeros([UNITS], tl.float32)
    masses = tl.zeros([UNITS], tl.float32)
    keys = tl.zeros([UNITS, D], tl.float32)
    values = tl.zeros([UNITS, V], tl.float32)
    for first in range(0, num_queries, N):
        columns = first + tl.arange(0, N).to(tl.int64)
        there = columns < num_queries
        weight = _pair_mass(mass, seen, columns[None, :], there[None, :], rows[:, None], exist[:, None], MASS, SEEN)
        if tl.max(tl.max(weight, 1), 0) > 0:
            at = group * num_queries + columns
            sigma = tl.load(reference + at, mask=there, other=1.0)[None, :]
            over_z = tl.load(share + at, mask=there, other=0.0)[None, :]
            drop = tl.load(delta + at, mask=there, other=0.0)[None, :]
            q = point_rows(query, columns, there, DIM, DIM, D)
            g = point_rows(grad, columns, there, VALUE, VALUE, V)
            dot, distance = _products(k, q, soft, PRECISION)
            by_density = tl.dot(v, tl.trans(g), input_precision=PRECISION)
            density, by_dot, by_distance, by_weight = _by_pair(
                dot, distance, weight, by_density, sigma, over_z, drop, POWER
            )
            if MASS:
                masses += tl.sum(tl.where(weight > 0, by_weight, 0.0), 1)
            values = tl.dot((density * weight).to(dtype), g, values, input_precision=PRECISION)
            squares += tl.sum(by_distance, 1)
            keys = tl.dot((by_dot + by_distance).to(dtype), q, keys, input_precision=PRECISION)
    at = group * num_keys + rows
    channels, outputs = tl.arange(0, D), tl.arange(0, V)
    found = 2 * (keys - k.to(tl.float32) * squares[:, None])
    where = exist[:, None] & (channels[None, :] < DIM)
    tl.store(by_key + at[:, None] * DIM + channels[None, :], found, mask=where)
    where = exist[:, None] & (outputs[None, :] < VALUE)
    tl.store(by_value + at[:, None] * VALUE + outputs[None, :], values, mask=where)
    if MASS:
        tl.store(by_mass + at, masses, mask=exist)


class Settings(NamedTuple):
    """A competitive normaliser as the kernels take it: power 0 is softmax."""

    power: float
    floor: float


def settings_of(normaliser: object) -> Settings:
    """Those of softmax or softermax."""
    return Settings(normaliser.power, normaliser.epsilon) if isinstance(normaliser, Softermax) else Settings(0.0, 0.0)


def _shared(t: ScoreInputs) -> dict[str, Any]:
    """What all three kernels are given."""
    dim, value_dim = t.query.shape[-1], t.value.shape[-1]
    nothing = t.query.new_empty(0)
    mass, seen = nothing if t.mass is None else t.mass, nothing.long() if t.seen is None else t.seen
    return {
        "query": t.query.contiguous(),
        "key": t.key.contiguous(),
        "value": t.value.contiguous(),
        "epsilon": (t.query.new_zeros(()) if t.softening is None else t.softening).float(),
        "mass": mass.float().contiguous(),
        "seen": seen.contiguous(),
        "num_queries": t.query.shape[2],
        "num_keys": t.key.shape[2],
        "heads": t.query.shape[1],
        "mass_batch": len(mass),
        "seen_batch": len(seen),
        "MASS": mass.numel() > 0,
        "SEEN": seen.numel() > 0,
        "PRECISION": precision(),
        "DIM": dim,
        "VALUE": value_dim,
        "D": padded(dim),
        "V": padded(value_dim),
    }


def _tile(kernel: Any, t: ScoreInputs, sums: int) -> Tile:
    """A tile that leaves registers for `sums` sums of a row's channels, and fits what is loaded into shared memory.

    float32 has no tensor cores at full precision; those for bfloat16 want 64 rows.
    """
    dim, value_dim = padded(t.query.shape[-1]), padded(t.value.shape[-1])
    width = max(dim, value_dim)
    summed = sums * width
    if t.query.dtype == torch.float32:
        rule = Tile(16 if summed > 256 else 32, 32 if summed <= 32 else 16, 4 if width <= 32 else 8, 2)
    elif width > 128:
        rule = Tile(32, 32, 8, 2)
    else:
        rule = Tile(64, 64 if summed <= 64 else 32, 4 if summed <= 64 else 8, 2)
    return tuned_tile(kernel, Room(UNITS[1], summed, dim + value_dim, t.query.dtype), rule)


def yat_forward(t: ScoreInputs, settings: Settings) -> tuple[Tensor, Tensor, Tensor]:
    """The integral `(B, H, Nq, d_v)`, σ and Z `(B, H, Nq)`, in float32."""
    tile, heads = _tile(yat_forward_kernel, t, 1), t.query.shape[0] * t.query.shape[1]
    shape = t.query.shape[:3]
    out = t.query.new_empty(*shape, t.value.shape[-1], dtype=torch.float32)
    reference, total = (t.query.new_empty(shape, dtype=torch.float32) for _ in range(2))
    grid = (tile.blocks(t.query.shape[2]), heads, 1)
    arguments = {"out": out, "reference": reference, "total": total, "POWER": settings.power, "FLOOR": settings.floor}
    tiny = torch.full((1,), TINY if settings.power else 0.0, device=out.device)
    if min(grid):
        launch(yat_forward_kernel, grid, tile, {**_shared(t), **arguments, "tiny": tiny})
    return out, reference, total


def yat_backward(
    grad: Tensor, out: Tensor, reference: Tensor, total: Tensor, t: ScoreInputs, settings: Settings
) -> dict[str, Tensor]:
    """Gradients of queries, keys, values, ε and, where they are, masses; in float32."""
    heads = t.query.shape[0] * t.query.shape[1]
    arguments: dict[str, Any] = {
        **_shared(t),
        "grad": grad.to(t.value.dtype).contiguous(),
        "reference": reference,
        "share": divided(1.0, total),
        "delta": (grad.float() * out).sum(-1),
        "POWER": settings.power,
    }
    by_query, by_key, by_value = (
        torch.zeros_like(x, dtype=torch.float32).contiguous() for x in (t.query, t.key, t.value)
    )
    squares = torch.zeros_like(total)
    by_mass = total.new_zeros(*t.key.shape[:3] if t.mass is not None else (0,))
    if t.query.shape[2] and t.key.shape[2] and heads:
        tile = _tile(yat_query_kernel, t, 1)
        grid = (tile.blocks(t.query.shape[2]), heads, 1)
        launch(yat_query_kernel, grid, tile, {**arguments, "by_query": by_query, "by_square": squares})
        tile = _tile(yat_key_kernel, t, 2)
        grid = (tile.blocks(t.key.shape[2]), heads, 1)
        own = {"by_key": by_key, "by_value": by_value, "by_mass": by_mass}
        launch(yat_key_kernel, grid, tile, {**arguments, **own})
    found = {"query": by_query, "key": by_key, "value": by_value, "softening": -squares.sum()}
    return found if t.mass is None else {**found, "mass": by_mass.sum(1).sum_to_size(t.mass.shape)}
