"""Matrix products with few rows and columns and a long inner dimension, split over many programs.

Libraries assign one tile of the result to one program, and here there are fewer tiles than a GPU has processors. So
each program sums over a part of the inner dimension, and the parts are added in a fixed order.
"""

# pyright: reportGeneralTypeIssues=false
import torch
import triton
import triton.language as tl
from torch import Tensor

from fredholm.evaluation.triton.machine import precision
from fredholm.evaluation.triton.tuning import Room, Tile, launch, split, tuned_tile

COLUMNS = 32
_RULE = Tile(32, 32, 4, 3)


@triton.jit
def long_products_kernel(
    a, b, out, rows, columns, size, run, matrices,
    PRECISION: tl.constexpr, COLUMNS: tl.constexpr, UNITS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """A part of a bᵀ, UNITS rows by COLUMNS, over a run of the inner dimension in steps of N."""
    part, across = tl.program_id(0), tl.cdiv(columns, COLUMNS)
    r = (tl.program_id(1) // across).to(tl.int64) * UNITS + tl.arange(0, UNITS)
    c = (tl.program_id(1) % across).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    head = tl.program_id(2).to(tl.int64)
    a += head * rows * size
    b += tl.where(matrices > 1, head, 0) * columns * size
    total = tl.zeros([UNITS, COLUMNS], tl.float32)
    begin = part * run
    for first in range(begin, tl.minimum(begin + run, size), N):
        k = first + tl.arange(0, N)
        exist = (k < size)[None, :]
        left = tl.load(a + r[:, None] * size + k[None, :], mask=(r < rows)[:, None] & exist, other=0.0)
        right = tl.load(b + c[:, None] * size + k[None, :], mask=(c < columns)[:, None] & exist, other=0.0)
        total = tl.dot(left.to(tl.float32), tl.trans(right.to(tl.float32)), total, input_precision=PRECISION)
    place = out + ((part * tl.num_programs(2) + head) * rows + r[:, None]) * columns + c[None, :]
    tl.store(place, total, mask=(r < rows)[:, None] & (c < columns)[None, :])


def long_products(a: Tensor, b: Tensor) -> Tensor:
    """a_h b_hᵀ, `(H, m, n)` in float32, from `(H, m, K)` and `(H, n, K)`, or `(1, n, K)` for all h."""
    a, b = a.contiguous(), b.contiguous()
    (heads, rows, size), columns = a.shape, b.shape[1]
    tile = tuned_tile(long_products_kernel, Room(rows, COLUMNS, COLUMNS, torch.float32), _RULE)
    blocks = tile.blocks(rows) * -(-columns // COLUMNS)
    parts, run = split(size, tile, blocks * heads, a.device)
    out = a.new_empty(parts, heads, rows, columns, dtype=torch.float32)
    sizes = {"rows": rows, "columns": columns, "size": size, "run": run, "matrices": len(b)}
    if out.numel():
        arguments = {"a": a, "b": b, "out": out, **sizes, "PRECISION": precision(), "COLUMNS": COLUMNS}
        launch(long_products_kernel, (parts, blocks, heads), tile, arguments)
    return out[0] if parts == 1 else out.sum(0)
