"""How much of an integral one program holds, and its launch."""

from typing import Any, NamedTuple

import torch


class Tile(NamedTuple):
    """`units` hidden units against `points` points, by `warps` warps; loads run `stages` tiles ahead."""

    units: int
    points: int
    warps: int
    stages: int


def choose_tile(width: int, columns: int, dtype: torch.dtype) -> Tile:
    """A tile whose sums, `columns` numbers a unit in float32, leave registers for pre-activations beside them.

    Sizes are powers of two. float32 has no tensor cores at full precision, and its operands are twice as large.
    """
    small = dtype == torch.float32
    points = 32 if small else 64
    units = 128
    while units > 16 and (units >= 2 * width or units * (columns + points) > (8192 if small else 24576)):
        units //= 2
    return Tile(units, points, 8 if units * max(points, columns) > 4096 else 4, 2)


def launch(kernel: Any, programs: int, kernels: int, tile: Tile, arguments: dict[str, Any]) -> None:
    """Runs a Triton kernel: so many programs for each block of hidden units of each perceptron."""
    grid = (programs, -(-arguments["WIDTH"] // tile.units), kernels)
    kernel[grid](**arguments, UNITS=tile.units, N=tile.points, num_warps=tile.warps, num_stages=tile.stages)
