"""The forward kernel: S of every query. Legend: `launch.py`."""

# pyright: reportGeneralTypeIssues=false
import triton
import triton.language as tl

from fredholm.evaluation.triton.activation import activate
from fredholm.evaluation.triton.owner import content, rotation
from fredholm.evaluation.triton.tile import (
    by_unit,
    length_of,
    point_rows,
    run_of_points,
    steps_to,
    stop_of_visible,
    write_unit_rows,
)


@triton.jit
def _add_tiles(
    total, matrix, on_sin, on_cos, alpha, r, units, own_pos, own_table, u, value, bias, phase, pos, entry,
    stop, threshold, shift, start,
    ACTIVATION: tl.constexpr, PRECISION: tl.constexpr, IN_TABLE: tl.constexpr, READS_KEYS: tl.constexpr,
    DISTANCE: tl.constexpr, WIDTH: tl.constexpr, DIM: tl.constexpr, FREQUENCIES: tl.constexpr,
    DIMENSIONS: tl.constexpr, N: tl.constexpr, D: tl.constexpr, L: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    """total + Σ_j φ(p_ij) ⊗ ω_j u_j over the keys of one loop."""
    for begin in range(0, stop, N):
        keys, exist = run_of_points(begin, stop, threshold, shift, N)
        p = alpha[:, None] + by_unit(bias, keys, exist, units, WIDTH)
        if IN_TABLE:
            p += by_unit(own_table, tl.load(entry + (keys - start), mask=exist, other=0), exist, units, WIDTH)
        elif DISTANCE:
            p += r[:, None] * length_of(steps_to(own_pos, pos, keys, exist, DIMENSIONS, S))[None, :]
        if READS_KEYS:
            features = point_rows(u, keys, exist, DIM, DIM, D)
            p = tl.dot(matrix, tl.trans(features), p, input_precision=PRECISION)
        if (not IN_TABLE) and FREQUENCIES > 0:
            sin = point_rows(phase, keys, exist, 2 * FREQUENCIES, FREQUENCIES, L)
            p = tl.dot(on_sin, tl.trans(sin), p, input_precision=PRECISION)
            cos = point_rows(phase + FREQUENCIES, keys, exist, 2 * FREQUENCIES, FREQUENCIES, L)
            p = tl.dot(on_cos, tl.trans(cos), p, input_precision=PRECISION)
        values = point_rows(value, keys, exist, DIM, DIM, D)
        total = tl.dot(activate(p, ACTIVATION).to(values.dtype), values, total, input_precision=PRECISION)
    return total


@triton.jit(do_not_specialize=["first", "count", "own_start", "start"])
def sums_kernel(
    own_u, own_bias, own_phase, own_pos, u, value, bias, phase, pos, seen,
    own_weight, weight, product, sin_weight, cos_weight, distance_weight, table, entry, sums,
    first, count, own_num, num, kernels, geometry, seen_geometry, own_start, start, block, entries,
    ACTIVATION: tl.constexpr, PRECISION: tl.constexpr, TABLE: tl.constexpr, BESIDE: tl.constexpr,
    CAUSAL: tl.constexpr, OWN_WEIGHT: tl.constexpr, WEIGHT: tl.constexpr, PRODUCT: tl.constexpr,
    DISTANCE: tl.constexpr, WIDTH: tl.constexpr, DIM: tl.constexpr, FREQUENCIES: tl.constexpr,
    DIMENSIONS: tl.constexpr, UNITS: tl.constexpr, N: tl.constexpr, D: tl.constexpr, L: tl.constexpr,
    S: tl.constexpr,
):  # fmt: skip
    """S of `count` queries from the `first` on, numbered through the batch: `(G, count, w, d)`.

    A program has UNITS units of one query in one kernel. `geometry` and `seen_geometry` are 1 where what they concern
    differs within the batch. BESIDE: whether points lie beside the grid that the TABLE is of.
    """
    place = tl.program_id(0).to(tl.int64)
    units = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    g = tl.program_id(2).to(tl.int64)
    b, i = (first + place) // own_num, (first + place) % own_num
    head, geo, real = b * kernels + g, b * geometry, units < WIDTH
    plane = geo * kernels + g
    dtype: tl.constexpr = u.dtype.element_ty

    _, matrix, alpha = content(
        own_u + (head * own_num + i) * DIM, own_bias + (plane * own_num + i) * WIDTH, own_weight + g * WIDTH * DIM,
        weight + g * WIDTH * DIM, product + g * WIDTH * DIM, units, OWN_WEIGHT, WEIGHT, PRODUCT, WIDTH, DIM, D,
    )  # fmt: skip
    matrix = matrix.to(dtype)
    r = alpha
    if DISTANCE:
        r = tl.load(distance_weight + g * WIDTH + units, mask=real, other=0.0).to(tl.float32)
    visible = num
    if CAUSAL:
        visible = tl.load(seen + b * seen_geometry * own_num + i).to(tl.int32)
    u, value, bias = u + head * num * DIM, value + head * num * DIM, bias + plane * num * WIDTH
    phase, pos, own_pos = (
        phase + geo * num * 2 * FREQUENCIES,
        pos + geo * num * DIMENSIONS,
        own_pos + (geo * own_num + i) * DIMENSIONS,
    )
    inside = (i >= own_start) & (i < own_start + block)
    total = tl.zeros([UNITS, D], tl.float32)
    if BESIDE:
        on_sin, on_cos = matrix, matrix
        if FREQUENCIES > 0:
            on_sin, on_cos = rotation(
                own_phase + (geo * own_num + i) * 2 * FREQUENCIES, sin_weight + g * WIDTH * FREQUENCIES,
                cos_weight + g * WIDTH * FREQUENCIES, units, 1, WIDTH, FREQUENCIES, L,
            )  # fmt: skip
            on_sin, on_cos = on_sin.to(dtype), on_cos.to(dtype)
        skip = tl.where(inside, block, 0)
        stop = stop_of_visible(num - skip, start, skip, visible)
        total = _add_tiles(
            total, matrix, on_sin, on_cos, alpha, r, units, own_pos, table, u, value, bias, phase, pos, entry,
            stop, start, skip, start, ACTIVATION, PRECISION, False, WEIGHT or PRODUCT, DISTANCE, WIDTH, DIM,
            FREQUENCIES, DIMENSIONS, N, D, L, S,
        )  # fmt: skip
    if TABLE:
        own_entry = tl.load(entry + (i - own_start), mask=inside, other=0)
        stop = stop_of_visible(tl.where(inside, block, 0), 0, start, visible)
        total = _add_tiles(
            total, matrix, matrix, matrix, alpha, r, units, own_pos, table + (g * entries + own_entry) * WIDTH, u,
            value, bias, phase, pos, entry, stop, 0, start, start, ACTIVATION, PRECISION, True, WEIGHT or PRODUCT,
            DISTANCE, WIDTH, DIM, FREQUENCIES, DIMENSIONS, N, D, L, S,
        )  # fmt: skip
    write_unit_rows(sums + ((g * count + place) * WIDTH) * DIM, total, units, WIDTH, DIM, D)
