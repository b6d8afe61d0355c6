"""The gradient of the table of displacements, in two kernels. Legend: `launch.py`.

A displacement occurs at many pairs, which no program owns. So the gradient of R is summed over the batch for some
queries at a time, and then gathered by displacement: both in a fixed order.
"""

import triton
import triton.language as tl

from fredholm.evaluation.triton.activation import activate_with_slope
from fredholm.evaluation.triton.owner import content
from fredholm.evaluation.triton.tile import by_unit, point_rows, unit_rows


@triton.jit(do_not_specialize=["first", "count", "own_start", "start", "batch"])
def relative_gradient_kernel(
    own_u, own_bias, u, value, bias, seen, own_weight, weight, product, table, entry, grads, relative,
    first, count, batch, own_num, num, kernels, geometry, seen_geometry, own_start, start, block, entries,
    ACTIVATION: tl.constexpr, PRECISION: tl.constexpr, CAUSAL: tl.constexpr, OWN_WEIGHT: tl.constexpr,
    WEIGHT: tl.constexpr, PRODUCT: tl.constexpr, WIDTH: tl.constexpr, DIM: tl.constexpr,
    UNITS: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Gradient of R between `count` queries of the grid from its `first` on and its keys: `(G, count, block, w)`.

    `grads` is the gradient of S, `(G, count, B, w, d)`. A program has UNITS units of one query, N keys, one kernel.
    """
    tiles = tl.cdiv(block, N)
    place = (tl.program_id(0) // tiles).to(tl.int64)
    units = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    g = tl.program_id(2).to(tl.int64)
    cells = (tl.program_id(0) % tiles) * N + tl.arange(0, N)
    exist = cells < block
    keys = (start + cells).to(tl.int64)
    i = own_start + first + place
    dtype: tl.constexpr = u.dtype.element_ty
    square = g * WIDTH * DIM
    own_entry = tl.load(entry + first + place)
    own_table = table + (g * entries + own_entry) * WIDTH
    rest = by_unit(own_table, tl.load(entry + cells, mask=exist, other=0), exist, units, WIDTH)
    total = tl.zeros([UNITS, N], tl.float32)
    for step in range(batch):
        b = tl.zeros([], tl.int64) + step
        head, plane = b * kernels + g, b * geometry * kernels + g
        _, matrix, alpha = content(
            own_u + (head * own_num + i) * DIM, own_bias + (plane * own_num + i) * WIDTH, own_weight + square,
            weight + square, product + square, units, OWN_WEIGHT, WEIGHT, PRODUCT, WIDTH, DIM, D,
        )  # fmt: skip
        visible = exist
        if CAUSAL:
            visible = exist & (keys < tl.load(seen + b * seen_geometry * own_num + i))
        p = rest + alpha[:, None] + by_unit(bias + plane * num * WIDTH, keys, exist, units, WIDTH)
        if WEIGHT or PRODUCT:
            features = point_rows(u + head * num * DIM, keys, exist, DIM, DIM, D)
            p = tl.dot(matrix.to(dtype), tl.trans(features), p, input_precision=PRECISION)
        values = point_rows(value + head * num * DIM, keys, visible, DIM, DIM, D)
        grad = unit_rows(grads + ((g * count + place) * batch + b) * WIDTH * DIM, units, WIDTH, DIM, D)
        _, slope = activate_with_slope(p, ACTIVATION)
        total += tl.dot(grad, tl.trans(values), input_precision=PRECISION) * slope
    out = relative + ((g * count + place) * block + cells[None, :]) * WIDTH + units[:, None]
    tl.store(out, total, mask=(units[:, None] < WIDTH) & exist[None, :])


@triton.jit(do_not_specialize=["first", "count"])
def gather_table_kernel(
    relative, entry, cell, grad_table, first, count, block, entries,
    WIDTH: tl.constexpr, UNITS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Adds the gradient of R to that of the table, `(G, entries, w)`: each entry's pairs, query by query.

    `cell` is the inverse of `entry`: which cell lies there, or -1.
    """
    shown = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    units = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    g = tl.program_id(2).to(tl.int64)
    known = shown < entries
    out = grad_table + (g * entries + shown[:, None]) * WIDTH + units[None, :]
    mask = known[:, None] & (units[None, :] < WIDTH)
    total = tl.load(out, mask=mask, other=0.0)
    for place in range(count):
        from_query = shown - tl.load(entry + first + place)
        key = tl.load(cell + from_query, mask=known & (from_query >= 0), other=-1)
        pair = relative + ((g * count + place) * block + key[:, None]) * WIDTH + units[None, :]
        total += tl.load(pair, mask=mask & (key[:, None] >= 0), other=0.0)
    tl.store(out, total, mask=mask)
