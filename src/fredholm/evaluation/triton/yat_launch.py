"""Sums over Yat scores on a GPU, forward and backward.

Legend (beside that of `attention/score_tiled.py`)
    σ, Z      reference score and sum of a row, kept from the forward pass

The forward pass keeps the largest score so far, as fused softmax attention does. Backward, every tile is built twice:
by the program of its queries and by that of its keys, so that each sum has one owner and one order: no atomic
operations, and two runs are identical. Seven products of a pair's d against the forward pass's two.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fredholm.evaluation.attention.score_tiled import ScoreInputs
from fredholm.evaluation.triton.problem import padded, precision
from fredholm.evaluation.triton.tiles import Tile, launch
from fredholm.evaluation.triton.yat_kernels import yat_forward_kernel, yat_key_kernel, yat_query_kernel
from fredholm.kernels import Softermax
from fredholm.kernels.arithmetic import divided
from fredholm.kernels.attention.normalisers import TINY


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


def _tile(t: ScoreInputs, sums: int) -> Tile:
    """A tile that leaves registers for `sums` sums of a row's channels, and fits what is loaded into shared memory.

    float32 has no tensor cores at full precision; those for bfloat16 want 64 rows.
    """
    width = max(padded(t.query.shape[-1]), padded(t.value.shape[-1]))
    summed = sums * width
    if t.query.dtype == torch.float32:
        return Tile(16 if summed > 256 else 32, 32 if summed <= 32 else 16, 4 if width <= 32 else 8, 2)
    if width > 128:
        return Tile(32, 32, 8, 2)
    return Tile(64, 64 if summed <= 64 else 32, 4 if summed <= 64 else 8, 2)


def yat_forward(t: ScoreInputs, settings: Settings) -> tuple[Tensor, Tensor, Tensor]:
    """The integral `(B, H, Nq, d_v)`, σ and Z `(B, H, Nq)`, in float32."""
    tile, heads = _tile(t, 1), t.query.shape[0] * t.query.shape[1]
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
        tile = _tile(t, 1)
        grid = (tile.blocks(t.query.shape[2]), heads, 1)
        launch(yat_query_kernel, grid, tile, {**arguments, "by_query": by_query, "by_square": squares})
        tile = _tile(t, 2)
        grid = (tile.blocks(t.key.shape[2]), heads, 1)
        own = {"by_key": by_key, "by_value": by_value, "by_mass": by_mass}
        launch(yat_key_kernel, grid, tile, {**arguments, **own})
    found = {"query": by_query, "key": by_key, "value": by_value, "softening": -squares.sum()}
    return found if t.mass is None else {**found, "mass": by_mass.sum(1).sum_to_size(t.mass.shape)}
