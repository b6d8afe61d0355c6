"""The kernels of the integral of a pairwise perceptron kernel. Legend: `perceptron.py`.

`sums_kernel` is the forward pass: S of every query. `gradients_kernel` is the backward pass, for owners that are
queries and for owners that are keys. A displacement of a table occurs at many pairs, which no program owns:
`relative_gradient_kernel` sums the gradient of R over the batch for some queries at a time, and `gather_table_kernel`
gathers it by displacement, both in a fixed order.
"""

# a constexpr has the attributes of what it holds
# pyright: reportGeneralTypeIssues=false, reportAttributeAccessIssue=false
from typing import Any, NamedTuple

import triton
import triton.language as tl

from fredholm.evaluation.triton.tile import (
    activate,
    activate_with_slope,
    by_unit,
    length_of,
    point_rows,
    run_of_points,
    steps_to,
    stop_of_visible,
    unit_rows,
    write_unit_rows,
)


class Side(NamedTuple):
    """The points of one side, queries or keys, and the weights of their features."""

    u: Any
    bias: Any
    phase: Any
    pos: Any
    weight: Any
    num: Any


class Layer(NamedTuple):
    """What else the first layer has: P, s, c, r, and the table of displacements with the place of every cell in it."""

    product_weight: Any
    sin_weight: Any
    cos_weight: Any
    distance_weight: Any
    table: Any
    entry: Any


class Extent(NamedTuple):
    """Kernels; 1 where positions, and `seen`, differ within the batch, else 0; cells of the grid, and of its table."""

    kernels: Any
    geometry: Any
    seen_geometry: Any
    block: Any
    entries: Any


class Received(NamedTuple):
    """Gradients: of owners, once a block of units, then of parameters, once a program, both to be summed."""

    bias: Any
    u: Any
    phase: Any
    pos: Any
    product_weight: Any
    sin_weight: Any
    cos_weight: Any
    distance_weight: Any


class Plan(NamedTuple):
    """What a kernel is compiled for: sizes, the powers of two that hold them, and what there is.

    SIGN is 1 where owners are queries, -1 where they are keys. BESIDE: whether points lie beside the grid that the
    TABLE is of. READS: whether p reads the features of the points that an owner meets. PHASE, POS: whether the
    gradients of the owners' phases and positions are wanted; ROTATION: or those of s and c.
    """

    ACTIVATION: str
    PRECISION: str
    SIGN: int
    TABLE: bool
    BESIDE: bool
    CAUSAL: bool
    OWN_WEIGHT: bool
    WEIGHT: bool
    PRODUCT: bool
    READS: bool
    DISTANCE: bool
    PHASE: bool
    POS: bool
    ROTATION: bool
    WIDTH: int
    DIM: int
    VALUE_DIM: int
    FREQUENCIES: int
    DIMENSIONS: int
    D: int
    E: int
    L: int
    S: int


class Owner(NamedTuple):
    """One owner: u_o, A_o, the coefficients of the sines and cosines that it meets, its own part of p, r, where its
    position lies, and its row of the table."""

    u: Any
    matrix: Any
    sin: Any
    cos: Any
    alpha: Any
    r: Any
    pos: Any
    table: Any


class Met(NamedTuple):
    """Where the points lie that an owner meets, their values among them."""

    u: Any
    value: Any
    bias: Any
    phase: Any
    pos: Any
    entry: Any
    seen: Any


@triton.jit
def _content(own, weight, layer, head, plane, o, g, units, PLAN: tl.constexpr):
    """u_o `(D,)`, A_o `(units, D)`, and what the owner alone adds to p, `(units,)`, all in float32."""
    D: tl.constexpr = PLAN.D
    channels, square = tl.arange(0, D), g * PLAN.WIDTH * PLAN.DIM
    u = tl.load(own.u + (head * own.num + o) * PLAN.DIM + channels, mask=channels < PLAN.DIM, other=0.0)
    u = u.to(tl.float32)
    alpha = tl.load(own.bias + (plane * own.num + o) * PLAN.WIDTH + units, mask=units < PLAN.WIDTH, other=0.0)
    alpha = alpha.to(tl.float32)
    matrix = tl.zeros([units.shape[0], D], tl.float32)
    if PLAN.OWN_WEIGHT:
        rows = unit_rows(own.weight + square, units, PLAN.WIDTH, PLAN.DIM, D)
        alpha += tl.sum(rows.to(tl.float32) * u[None, :], 1)
    if PLAN.WEIGHT:
        matrix += unit_rows(weight + square, units, PLAN.WIDTH, PLAN.DIM, D).to(tl.float32)
    if PLAN.PRODUCT:
        rows = unit_rows(layer.product_weight + square, units, PLAN.WIDTH, PLAN.DIM, D)
        matrix += rows.to(tl.float32) * u[None, :]
    return u, matrix, alpha


@triton.jit
def _phases(own, geo, o, PLAN: tl.constexpr):
    """sin θ_o and cos θ_o, `(1, L)` each, in float32."""
    waves = tl.arange(0, PLAN.L)
    at = own.phase + (geo * own.num + o) * 2 * PLAN.FREQUENCIES + waves
    sin = tl.load(at, mask=waves < PLAN.FREQUENCIES, other=0.0)
    cos = tl.load(at + PLAN.FREQUENCIES, mask=waves < PLAN.FREQUENCIES, other=0.0)
    return sin.to(tl.float32)[None, :], cos.to(tl.float32)[None, :]


@triton.jit
def _wave_rows(layer, g, units, PLAN: tl.constexpr):
    """s and c, `(units, L)`, in float32."""
    wave = g * PLAN.WIDTH * PLAN.FREQUENCIES
    s = unit_rows(layer.sin_weight + wave, units, PLAN.WIDTH, PLAN.FREQUENCIES, PLAN.L).to(tl.float32)
    c = unit_rows(layer.cos_weight + wave, units, PLAN.WIDTH, PLAN.FREQUENCIES, PLAN.L).to(tl.float32)
    return s, c


@triton.jit
def _owner(own, weight, layer, extent, r, b, o, g, own_start, units, dtype: tl.constexpr, PLAN: tl.constexpr):
    """The owner o of batch entry b, before it meets other points."""
    head, geo = b * extent.kernels + g, b * extent.geometry
    u, matrix, alpha = _content(own, weight, layer, head, geo * extent.kernels + g, o, g, units, PLAN)
    matrix = matrix.to(dtype)
    on_sin, on_cos = matrix, matrix
    if PLAN.FREQUENCIES > 0:
        # in s sin(θ_i - θ_j) + c cos(θ_i - θ_j), the owner being i or j
        sin, cos = _phases(own, geo, o, PLAN)
        s, c = _wave_rows(layer, g, units, PLAN)
        on_sin, on_cos = (c * sin - PLAN.SIGN * s * cos).to(dtype), (c * cos + PLAN.SIGN * s * sin).to(dtype)
    table = layer.table
    if PLAN.TABLE:
        inside = (o >= own_start) & (o < own_start + extent.block)
        table += (g * extent.entries + tl.load(layer.entry + (o - own_start), mask=inside, other=0)) * PLAN.WIDTH
    pos = own.pos + (geo * own.num + o) * PLAN.DIMENSIONS
    return Owner(u, matrix, on_sin, on_cos, alpha, r, pos, table)


@triton.jit
def _met(other, value, seen, layer, extent, own_num, b, g, PLAN: tl.constexpr):
    """The points that the owners of batch entry b meet."""
    head, geo = b * extent.kernels + g, b * extent.geometry
    bias = other.bias + (geo * extent.kernels + g) * other.num * PLAN.WIDTH
    phase, pos = other.phase + geo * other.num * 2 * PLAN.FREQUENCIES, other.pos + geo * other.num * PLAN.DIMENSIONS
    seen += b * extent.seen_geometry * (own_num if PLAN.SIGN == 1 else other.num)
    u, value = other.u + head * other.num * PLAN.DIM, value + head * other.num * PLAN.VALUE_DIM
    return Met(u, value, bias, phase, pos, layer.entry, seen)


@triton.jit
def _distance_weights(layer, g, units, PLAN: tl.constexpr):
    """r, `(units,)`, in float32; 0 where distances are not read."""
    r = tl.zeros([units.shape[0]], tl.float32)
    if PLAN.DISTANCE:
        r = tl.load(layer.distance_weight + g * PLAN.WIDTH + units, mask=units < PLAN.WIDTH, other=0.0).to(tl.float32)
    return r


@triton.jit
def _pre_activation(owner, met, points, exist, units, start, IN_TABLE: tl.constexpr, PLAN: tl.constexpr):
    """p on a tile, `(units, points)`, and of its points, where they are read, u, sin θ, cos θ, steps and distances."""
    p = owner.alpha[:, None] + by_unit(met.bias, points, exist, units, PLAN.WIDTH)
    u, sin, cos, steps, distance = p, p, p, p, p
    if IN_TABLE:
        places = tl.load(met.entry + (points - start), mask=exist, other=0)
        p += by_unit(owner.table, places, exist, units, PLAN.WIDTH)
    elif PLAN.DISTANCE:
        steps = steps_to(owner.pos, met.pos, points, exist, PLAN.DIMENSIONS, PLAN.S)
        distance = length_of(steps)
        p += owner.r[:, None] * distance[None, :]
    if PLAN.READS:
        u = point_rows(met.u, points, exist, PLAN.DIM, PLAN.DIM, PLAN.D)
        p = tl.dot(owner.matrix, tl.trans(u), p, input_precision=PLAN.PRECISION)
    if (not IN_TABLE) and PLAN.FREQUENCIES > 0:
        sin = point_rows(met.phase, points, exist, 2 * PLAN.FREQUENCIES, PLAN.FREQUENCIES, PLAN.L)
        p = tl.dot(owner.sin, tl.trans(sin), p, input_precision=PLAN.PRECISION)
        cos = point_rows(met.phase + PLAN.FREQUENCIES, points, exist, 2 * PLAN.FREQUENCIES, PLAN.FREQUENCIES, PLAN.L)
        p = tl.dot(owner.cos, tl.trans(cos), p, input_precision=PLAN.PRECISION)
    return p, u, sin, cos, steps, distance


@triton.jit
def _add_sums(
    total, owner, met, units, first, last, stop, threshold, shift, start, IN_TABLE: tl.constexpr, PLAN: tl.constexpr,
    N: tl.constexpr,
):  # fmt: skip
    """total + Σ_j φ(p_ij) ⊗ ω_j u_j over the keys of one loop, from the first to before the last."""
    ACTIVATION: tl.constexpr = PLAN.ACTIVATION
    for begin in range(first, tl.minimum(last, stop), N):
        keys, exist = run_of_points(begin, stop, threshold, shift, N)
        p, _, _, _, _, _ = _pre_activation(owner, met, keys, exist, units, start, IN_TABLE, PLAN)
        values = point_rows(met.value, keys, exist, PLAN.DIM, PLAN.DIM, PLAN.D)
        h = activate(p, ACTIVATION).to(values.dtype)
        total = tl.dot(h, values, total, input_precision=PLAN.PRECISION)
    return total


@triton.jit(do_not_specialize=["first", "count", "run", "own_start", "start"])
def sums_kernel(
    own, other, layer, extent, value, seen, sums, first, count, parts, run, own_start, start,
    PLAN: tl.constexpr, UNITS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """S of `count` queries from the `first` on, numbered through the batch: `(G, count, parts, w, d)`, to be added.

    A program has UNITS units of one query in one kernel, and of every loop a part of `run` keys.
    """
    D: tl.constexpr = PLAN.D
    program = tl.program_id(0).to(tl.int64)
    place = program // parts
    begin = ((program % parts) * run).to(tl.int32)
    units = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    g = tl.program_id(2).to(tl.int64)
    b, i = (first + place) // own.num, (first + place) % own.num
    r = _distance_weights(layer, g, units, PLAN)
    owner = _owner(own, other.weight, layer, extent, r, b, i, g, own_start, units, other.u.dtype.element_ty, PLAN)
    met = _met(other, value, seen, layer, extent, own.num, b, g, PLAN)
    visible = other.num
    if PLAN.CAUSAL:
        visible = tl.load(met.seen + i).to(tl.int32)
    inside = (i >= own_start) & (i < own_start + extent.block)
    total = tl.zeros([UNITS, D], tl.float32)
    if PLAN.BESIDE:
        skip = tl.where(inside, extent.block, 0)
        stop = stop_of_visible(other.num - skip, start, skip, visible)
        total = _add_sums(total, owner, met, units, begin, begin + run, stop, start, skip, start, False, PLAN, N)
    if PLAN.TABLE:
        stop = stop_of_visible(tl.where(inside, extent.block, 0), 0, start, visible)
        total = _add_sums(total, owner, met, units, begin, begin + run, stop, 0, start, start, True, PLAN, N)
    at = sums + (g * count * parts + program) * PLAN.WIDTH * PLAN.DIM
    write_unit_rows(at, total, units, PLAN.WIDTH, PLAN.DIM, D)


@triton.jit
def _add_gradients(
    on_sums, on_matrix, on_sin, on_cos, on_bias, on_r, on_pos, owner, met, units, grad, o, stop, threshold, shift,
    start, IN_TABLE: tl.constexpr, PLAN: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Adds what the points of one loop give to the sums of an owner, in the order in which they are named."""
    ACTIVATION: tl.constexpr = PLAN.ACTIVATION
    for begin in range(0, stop, N):
        points, exist = run_of_points(begin, stop, threshold, shift, N)
        p, u, sin, cos, steps, distance = _pre_activation(owner, met, points, exist, units, start, IN_TABLE, PLAN)
        visible = exist
        if PLAN.CAUSAL and PLAN.SIGN == -1:
            visible = exist & (tl.load(met.seen + points, mask=exist, other=0) > o)
        # a value of 0 hides a pair from every gradient
        values = point_rows(met.value, points, visible, PLAN.VALUE_DIM, PLAN.VALUE_DIM, PLAN.E)
        h, slope = activate_with_slope(p, ACTIVATION)
        grad_p = tl.dot(grad, tl.trans(values), input_precision=PLAN.PRECISION) * slope
        rounded = grad_p.to(values.dtype)
        if PLAN.SIGN == -1:
            on_sums = tl.dot(h.to(values.dtype), values, on_sums, input_precision=PLAN.PRECISION)
        if PLAN.READS:
            on_matrix = tl.dot(rounded, u, on_matrix, input_precision=PLAN.PRECISION)
        on_bias += tl.sum(grad_p, 1)
        if (not IN_TABLE) and PLAN.ROTATION:
            on_sin = tl.dot(rounded, sin, on_sin, input_precision=PLAN.PRECISION)
            on_cos = tl.dot(rounded, cos, on_cos, input_precision=PLAN.PRECISION)
        if (not IN_TABLE) and PLAN.DISTANCE:
            on_r += tl.sum(grad_p * distance[None, :], 1)
            if PLAN.POS:
                apart = exist & (distance > 0.0)
                scale = tl.where(apart, tl.sum(grad_p * owner.r[:, None], 0) / tl.where(apart, distance, 1.0), 0.0)
                on_pos += tl.sum(scale[:, None] * steps, 0)
    return on_sums, on_matrix, on_sin, on_cos, on_bias, on_r, on_pos


@triton.jit
def _write_phase(out, on_sin, on_cos, layer, g, units, PLAN: tl.constexpr):
    """Gradients of sin θ_o and cos θ_o, from those of the coefficients that `_owner` makes of them."""
    waves = tl.arange(0, PLAN.L)
    s, c = _wave_rows(layer, g, units, PLAN)
    real = waves < PLAN.FREQUENCIES
    tl.store(out + waves, tl.sum(c * on_sin + PLAN.SIGN * s * on_cos, 0), mask=real)
    tl.store(out + PLAN.FREQUENCIES + waves, tl.sum(c * on_cos - PLAN.SIGN * s * on_sin, 0), mask=real)


@triton.jit(do_not_specialize=["first", "count", "own_start", "start", "owners", "total"])
def gradients_kernel(
    own, other, layer, extent, value, seen, grads, sums, received, first, count, total, owners, own_start, start,
    PLAN: tl.constexpr, UNITS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Gradients of what `count` owners from the `first` on contribute, numbered through the batch.

    For owners that are queries `grads` is the gradient of S_i, `value` is ω u. For owners that are keys `grads` is Y_j,
    `value` the gradient of the integral, and `sums` becomes T_j. A program has UNITS units of `owners` owners in one
    kernel.
    """
    D: tl.constexpr = PLAN.D
    E: tl.constexpr = PLAN.E
    L: tl.constexpr = PLAN.L
    S: tl.constexpr = PLAN.S
    units = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    g = tl.program_id(2).to(tl.int64)
    real = units < PLAN.WIDTH
    axes, channels = tl.arange(0, S), tl.arange(0, D)
    square = g * PLAN.WIDTH * PLAN.DIM
    r = _distance_weights(layer, g, units, PLAN)
    total_product = tl.zeros([UNITS, D], tl.float32)
    total_sin = tl.zeros([UNITS, L], tl.float32)
    total_cos = tl.zeros([UNITS, L], tl.float32)
    total_r = tl.zeros([UNITS], tl.float32)
    begin = tl.program_id(0).to(tl.int64) * owners
    for place in range(begin, tl.minimum(begin + owners, count)):
        number = (first + place).to(tl.int64)
        b, o = number // own.num, number % own.num
        owner = _owner(own, other.weight, layer, extent, r, b, o, g, own_start, units, other.u.dtype.element_ty, PLAN)
        met = _met(other, value, seen, layer, extent, own.num, b, g, PLAN)
        at = (g * count + place) * PLAN.WIDTH * PLAN.VALUE_DIM
        grad = unit_rows(grads + at, units, PLAN.WIDTH, PLAN.VALUE_DIM, E)
        visible = other.num
        if PLAN.CAUSAL and PLAN.SIGN == 1:
            visible = tl.load(met.seen + o).to(tl.int32)
        inside = (o >= own_start) & (o < own_start + extent.block)
        on_sums = tl.zeros([UNITS, E], tl.float32)
        on_matrix = tl.zeros([UNITS, D], tl.float32)
        on_sin = tl.zeros([UNITS, L], tl.float32)
        on_cos = tl.zeros([UNITS, L], tl.float32)
        on_bias = tl.zeros([UNITS], tl.float32)
        on_r = tl.zeros([UNITS], tl.float32)
        on_pos = tl.zeros([S], tl.float32)
        if PLAN.BESIDE:
            skip = tl.where(inside, extent.block, 0)
            stop = stop_of_visible(other.num - skip, start, skip, visible)
            on_sums, on_matrix, on_sin, on_cos, on_bias, on_r, on_pos = _add_gradients(
                on_sums, on_matrix, on_sin, on_cos, on_bias, on_r, on_pos, owner, met, units, grad, o, stop, start,
                skip, start, False, PLAN, N,
            )  # fmt: skip
        if PLAN.TABLE:
            stop = stop_of_visible(tl.where(inside, extent.block, 0), 0, start, visible)
            on_sums, on_matrix, on_sin, on_cos, on_bias, on_r, on_pos = _add_gradients(
                on_sums, on_matrix, on_sin, on_cos, on_bias, on_r, on_pos, owner, met, units, grad, o, stop, 0, start,
                start, True, PLAN, N,
            )  # fmt: skip
        if PLAN.SIGN == -1:
            write_unit_rows(sums + at, on_sums, units, PLAN.WIDTH, PLAN.VALUE_DIM, E)
        line = (g * tl.num_programs(1) + tl.program_id(1)) * total + number
        tl.store(received.bias + (g * total + number) * PLAN.WIDTH + units, on_bias, mask=real)
        on_u = tl.zeros([D], tl.float32)
        if PLAN.PRODUCT:
            rows = unit_rows(layer.product_weight + square, units, PLAN.WIDTH, PLAN.DIM, D)
            on_u += tl.sum(on_matrix * rows.to(tl.float32), 0)
            total_product += on_matrix * owner.u[None, :]
        if PLAN.OWN_WEIGHT:
            rows = unit_rows(own.weight + square, units, PLAN.WIDTH, PLAN.DIM, D)
            on_u += tl.sum(on_bias[:, None] * rows.to(tl.float32), 0)
        tl.store(received.u + line * PLAN.DIM + channels, on_u, mask=channels < PLAN.DIM)
        if PLAN.ROTATION:
            sin, cos = _phases(own, b * extent.geometry, o, PLAN)
            total_sin += PLAN.SIGN * (on_cos * sin - on_sin * cos)
            total_cos += on_sin * sin + on_cos * cos
        if PLAN.PHASE:
            _write_phase(received.phase + line * 2 * PLAN.FREQUENCIES, on_sin, on_cos, layer, g, units, PLAN)
        if PLAN.DISTANCE:
            total_r += on_r
        if PLAN.POS:
            tl.store(received.pos + line * PLAN.DIMENSIONS + axes, on_pos, mask=axes < PLAN.DIMENSIONS)
    if PLAN.SIGN == 1:
        program = (g * tl.num_programs(0) + tl.program_id(0)) * PLAN.WIDTH
        if PLAN.PRODUCT:
            write_unit_rows(received.product_weight + program * PLAN.DIM, total_product, units, PLAN.WIDTH, PLAN.DIM, D)
        if PLAN.FREQUENCIES > 0:
            wave = program * PLAN.FREQUENCIES
            write_unit_rows(received.sin_weight + wave, total_sin, units, PLAN.WIDTH, PLAN.FREQUENCIES, L)
            write_unit_rows(received.cos_weight + wave, total_cos, units, PLAN.WIDTH, PLAN.FREQUENCIES, L)
        if PLAN.DISTANCE:
            tl.store(received.distance_weight + program + units, total_r, mask=real)


@triton.jit(do_not_specialize=["first", "count", "own_start", "start", "batch"])
def relative_gradient_kernel(
    own, other, layer, extent, value, seen, grads, relative, first, count, batch, own_start, start,
    PLAN: tl.constexpr, UNITS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Gradient of R between `count` queries of the grid from its `first` on and its keys: `(G, count, block, w)`.

    `grads` is the gradient of S, `(G, count, B, w, d)`. A program has UNITS units of one query, N keys, one kernel.
    """
    tiles = tl.cdiv(extent.block, N)
    place = (tl.program_id(0) // tiles).to(tl.int64)
    units = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    g = tl.program_id(2).to(tl.int64)
    cells = (tl.program_id(0) % tiles) * N + tl.arange(0, N)
    exist = cells < extent.block
    keys = (start + cells).to(tl.int64)
    i = own_start + first + place
    dtype: tl.constexpr = other.u.dtype.element_ty
    ACTIVATION: tl.constexpr = PLAN.ACTIVATION
    own_table = layer.table + (g * extent.entries + tl.load(layer.entry + first + place)) * PLAN.WIDTH
    rest = by_unit(own_table, tl.load(layer.entry + cells, mask=exist, other=0), exist, units, PLAN.WIDTH)
    total = tl.zeros([UNITS, N], tl.float32)
    for step in range(batch):
        b = tl.zeros([], tl.int64) + step
        head, plane = b * extent.kernels + g, b * extent.geometry * extent.kernels + g
        _, matrix, alpha = _content(own, other.weight, layer, head, plane, i, g, units, PLAN)
        met = _met(other, value, seen, layer, extent, own.num, b, g, PLAN)
        visible = exist
        if PLAN.CAUSAL:
            visible = exist & (keys < tl.load(met.seen + i))
        p = rest + alpha[:, None] + by_unit(met.bias, keys, exist, units, PLAN.WIDTH)
        if PLAN.READS:
            features = point_rows(met.u, keys, exist, PLAN.DIM, PLAN.DIM, PLAN.D)
            p = tl.dot(matrix.to(dtype), tl.trans(features), p, input_precision=PLAN.PRECISION)
        values = point_rows(met.value, keys, visible, PLAN.DIM, PLAN.DIM, PLAN.D)
        at = ((g * count + place) * batch + b) * PLAN.WIDTH * PLAN.DIM
        grad = unit_rows(grads + at, units, PLAN.WIDTH, PLAN.DIM, PLAN.D)
        _, slope = activate_with_slope(p, ACTIVATION)
        total += tl.dot(grad, tl.trans(values), input_precision=PLAN.PRECISION) * slope
    out = relative + ((g * count + place) * extent.block + cells[None, :]) * PLAN.WIDTH + units[:, None]
    tl.store(out, total, mask=(units[:, None] < PLAN.WIDTH) & exist[None, :])


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
