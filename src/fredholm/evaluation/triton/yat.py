"""Sums over Yat scores on a GPU, forward and backward.

Legend (beside that of `attention/score_tiled.py`)
    c         ln 2 for softmax, so that powers of 2 need no factor, else 1
    A, B      c (‖q‖² + ε) and c ‖k‖², computed once for all tiles and passes
    r, s      q·k / D, D = max(A + B - 2 c q·k, c ε), and q·k r: both over c
    σ, Z      reference score and sum of a row, kept from the forward pass
    a         n(s) / (n(σ) Z), the density of a pair but for its mass
    L         the combination of σ and Z that a needs beside s; see `_density` of `yat_kernels.py`

The forward pass keeps the largest score so far, as fused softmax attention does. Backward, every tile is built twice:
by the program of its queries and by that of its keys, so that each sum has one owner and one order: no atomic
operations, and two runs are identical. Seven products of a pair's d against the forward pass's two, and two more in
rows of softmax with large scores, where δ = g·O would differ in its last digits from the g·v that it is taken off. A, B
and the order in which D is summed are the same in all passes: where D is small, scores that are computed anew must not
differ.

A program owns UNITS points of one side, the rows of its tiles, and loops over the other side, the columns, N at a time.
Queries are rows in the forward pass and for their own gradients; keys are rows for theirs. Tiles in which every row
sees every column are met in a loop of their own, without comparisons. Signals have their channels in a row and points
STEP numbers apart; all other tensors are contiguous, with batch and heads in one dimension.
"""

from typing import Any

import torch
from torch import Tensor

from fredholm.evaluation.attention.score_tiled import ScoreInputs
from fredholm.evaluation.triton.machine import padded, precision
from fredholm.evaluation.triton.tuning import PROGRAMS_EACH, UNITS, Room, Tile, launch, multiprocessors, tuned_tile
from fredholm.evaluation.triton.yat_kernels import (
    yat_delta_kernel,
    yat_forward_kernel,
    yat_grads_kernel,
    yat_key_kernel,
    yat_query_kernel,
    yat_squares_kernel,
)
from fredholm.evaluation.triton.yat_sums import Settings, YatOutputs, empty_outputs

ALIGNED = 16
"""Divisor of a signal's strides between points, heads and entries that the kernels need."""


def _readable(t: Tensor) -> Tensor:
    """A signal in the kernels' layout, without a copy if possible: contiguous channels, aligned points and heads."""
    return t if t.stride(-1) == 1 and all(step % ALIGNED == 0 for step in t.stride()[:-1]) else t.contiguous()


def _shared(t: ScoreInputs, outputs: YatOutputs) -> dict[str, Any]:
    """The common arguments of the kernels of pairs."""
    value, nothing = _readable(t.value), t.query.new_empty(0)
    mass, seen = nothing if t.mass is None else t.mass, nothing.long() if t.seen is None else t.seen
    return {
        **_squared(t),
        "value": value,
        "query_square": outputs.query_square,
        "key_square": outputs.key_square,
        "mass": mass.float().contiguous(),
        "seen": seen.contiguous(),
        "value_head": value.stride(1),
        "value_batch": value.stride(0),
        "VALUE_STEP": value.stride(2),
        "mass_batch": len(mass),
        "seen_batch": len(seen),
        "MASS": mass.numel() > 0,
        "SEEN": seen.numel() > 0,
        "PRECISION": precision(),
        "VALUE": value.shape[-1],
        "V": padded(value.shape[-1]),
    }


def _squared(t: ScoreInputs) -> dict[str, Any]:
    """The arguments of the kernel of A and B."""
    query, key = _readable(t.query), _readable(t.key)
    return {
        "query": query,
        "key": key,
        "epsilon": t.query.new_zeros(()) if t.softening is None else t.softening,
        "num_queries": query.shape[2],
        "num_keys": key.shape[2],
        "heads": query.shape[1],
        "query_head": query.stride(1),
        "query_batch": query.stride(0),
        "key_head": key.stride(1),
        "key_batch": key.stride(0),
        "QUERY_STEP": query.stride(2),
        "KEY_STEP": key.stride(2),
        "DIM": query.shape[-1],
        "D": padded(query.shape[-1]),
    }


def _tile(kernel: Any, t: ScoreInputs) -> Tile:
    """A tile with which two or three programs share a multiprocessor, if registers suffice.

    Tensor cores for bfloat16 need 64 rows for each 4 warps. Float32 has none at full precision.
    """
    dim, value_dim = padded(t.query.shape[-1]), padded(t.value.shape[-1])
    width, forward, own = max(dim, value_dim), kernel is yat_forward_kernel, kernel is yat_key_kernel
    if t.query.dtype == torch.float32:
        rule = Tile(32, 32, 4, 2) if width <= 64 else Tile(32, 16, 8, 2)
    elif width <= 64:
        rule = Tile(64, 32 if own else 64, 4, 3)
        programs = -(-t.query.shape[2] // 128) * t.query.shape[0] * t.query.shape[1]
        if forward and programs >= PROGRAMS_EACH * multiprocessors(t.query.device):
            rule = Tile(128, 64, 8, 3)
    elif width <= 128:
        rule = Tile(64, 32 if own else 64, 4, 2)
    else:
        rule = Tile(32 if own else 64, 32, 4, 2)
    rule = rule._replace(registers=_registers(kernel, rule, t))
    return tuned_tile(kernel, Room(UNITS[1], _summed(kernel, t), dim + value_dim, t.query.dtype), rule)


def _summed(kernel: Any, t: ScoreInputs) -> int:
    """Number of sums of a row."""
    dim, value_dim = padded(t.query.shape[-1]), padded(t.value.shape[-1])
    return dim + value_dim if kernel is yat_key_kernel else dim if kernel is yat_query_kernel else value_dim


def _registers(kernel: Any, tile: Tile, t: ScoreInputs) -> int:
    """Limit of registers per thread with which another program fits; 0: the compiler's choice for a single program."""
    pairs = 1 if kernel is yat_forward_kernel else 2
    held = tile.units * (_summed(kernel, t) + pairs * tile.points) // (32 * tile.warps)
    if t.query.dtype == torch.float32 or held > 96 or (held > 64 and tile.warps > 4):
        return 0
    return 128 if held <= 64 else 168


def _meet(kernel: Any, num_rows: int, t: ScoreInputs, arguments: dict[str, Any]) -> None:
    """Runs a kernel of pairs for all rows of all heads."""
    tile, heads = _tile(kernel, t), t.query.shape[0] * t.query.shape[1]
    launch(kernel, (tile.blocks(num_rows), heads, 1), tile, arguments)


def _point_tile(kernel: Any, t: ScoreInputs) -> Tile:
    """A tile for a kernel that reads every point once."""
    width = padded(max(t.query.shape[-1], t.value.shape[-1]))
    return tuned_tile(kernel, Room(UNITS[1], width, width, t.query.dtype), Tile(64, 64, 4, 1))


def yat_forward(t: ScoreInputs, settings: Settings) -> YatOutputs:
    """The integral, and tensors for the backward pass."""
    outputs, heads = empty_outputs(t), t.query.shape[0] * t.query.shape[1]
    num_queries, num_keys = t.query.shape[2], t.key.shape[2]
    if num_queries and heads:
        shared, tile = {**_shared(t, outputs), "POWER": settings.power}, _point_tile(yat_squares_kernel, t)
        squares = {name: shared[name] for name in yat_squares_kernel.arg_names if name in shared}
        grid = (max(tile.blocks(num_queries), -(-num_keys // tile.points)), heads, 2)
        launch(yat_squares_kernel, grid, tile, squares)
        own = {"out": outputs.out, "reference": outputs.reference, "total": outputs.total, "FLOOR": settings.floor}
        _meet(yat_forward_kernel, num_queries, t, {**shared, **own})
    return outputs


def yat_backward(
    grad: Tensor, outputs: YatOutputs, t: ScoreInputs, wanted: frozenset[str], settings: Settings
) -> dict[str, Tensor]:
    """Gradients of queries, keys, values, and of ε and masses where wanted, by name."""
    heads, num_queries, num_keys = t.query.shape[0] * t.query.shape[1], t.query.shape[2], t.key.shape[2]
    if not (heads and num_queries and num_keys):
        return {}  # all are 0
    rows = outputs.reference
    rounded = grad.new_empty(grad.shape, dtype=t.value.dtype)
    level, delta, by_square = (torch.empty_like(rows) for _ in range(3))
    tile = _point_tile(yat_grads_kernel, t)
    arguments = {
        "grad": grad,
        "out": outputs.out,
        "reference": rows,
        "total": outputs.total,
        "rounded": rounded,
        "level": level,
        "delta": delta,
        "num_queries": num_queries,
        "heads": t.query.shape[1],
        "MASS": t.mass is not None,
        "POWER": settings.power,
        "VALUE": grad.shape[-1],
        "V": padded(grad.shape[-1]),
    }
    launch(yat_grads_kernel, (tile.blocks(num_queries), heads, 1), tile, arguments)
    if settings.power == 0:  # other slopes are at most the density over the score
        sums = {"grad": rounded, "reference": rows, "total": outputs.total, "delta": delta}
        _meet(yat_delta_kernel, num_queries, t, {**_shared(t, outputs), **sums})
    by_query, by_key, by_value = (x.new_empty(x.shape) for x in (t.query, t.key, t.value))
    by_mass = rows.new_empty(*t.key.shape[:3] if t.mass is not None else (0,))
    arguments = {
        **_shared(t, outputs),
        "grad": rounded,
        "reference": rows,
        "level": level,
        "delta": delta,
        "POWER": settings.power,
    }
    _meet(yat_query_kernel, num_queries, t, {**arguments, "by_query": by_query, "by_square": by_square})
    own = {"by_key": by_key, "by_value": by_value, "by_mass": by_mass}
    _meet(yat_key_kernel, num_keys, t, {**arguments, **own})
    found = {"query": by_query, "key": by_key, "value": by_value}
    if "softening" in wanted:
        found["softening"] = -by_square.sum()
    if t.mass is not None and "mass" in wanted:
        found["mass"] = by_mass.sum(1).sum_to_size(t.mass.shape)
    return found
