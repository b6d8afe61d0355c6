"""How much of an integral one program holds, and its launch."""

from typing import Any, NamedTuple

import torch


class Tile(NamedTuple):
    """`units` hidden units against `points` points, by `warps` warps; loads run `stages` tiles ahead."""

    units: int
    points: int
    warps: int
    stages: int

    def blocks(self, width: int) -> int:
        """Blocks of hidden units."""
        return -(-width // self.units)


def choose_tile(width: int, summed: int, loaded: int, dtype: torch.dtype) -> Tile:
    """A tile that leaves registers for pre-activations beside the sums, and fits the loads into shared memory.

    Sizes are powers of two.

    Args:
        width: hidden units.
        summed: numbers a unit, in float32, that a program sums.
        loaded: numbers a point, in `dtype`, that a program loads for matrix products.
        dtype: float32 has no tensor cores at full precision, and its operands take twice the room.
    """
    points, registers = (32, 1 << 13) if dtype == torch.float32 else (64, 1 << 15)
    while points > 16 and points * loaded * dtype.itemsize > 1 << 15:
        points //= 2
    units = 128
    while units > 16 and (units >= 2 * width or units * (summed + points) > registers):
        units //= 2
    return Tile(units, points, 8 if units * max(points, summed) > 4096 else 4, 2)


def launch(kernel: Any, grid: tuple[int, int, int], tile: Tile, arguments: dict[str, Any]) -> None:
    """Runs a Triton kernel in a grid of programs of this tile."""
    kernel[grid](**arguments, UNITS=tile.units, N=tile.points, num_warps=tile.warps, num_stages=tile.stages)
