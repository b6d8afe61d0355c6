"""The kernels of the integral of a pairwise perceptron kernel. Legend: `perceptron.py`.

`sums_kernel` is the forward pass: S of every query. `gradients_kernel` is the backward pass, for owners that are
queries and for owners that are keys. A row of the table belongs to many pairs, which no program owns:
`relative_gradient_kernel` sums the gradient of R over the batch for some queries at a time, and `gather_table_kernel`
gathers it by displacement, both in a fixed order.

Loops run over full tiles, without masks, and then over the remainder in tiles of a quarter. The number of iterations is
hidden from the compiler (`do_not_specialize`): Triton 3.6 removes a loop of one iteration, and its matrix products
outside of loops read shared memory that has been overwritten.
"""

# a constexpr has the attributes of its value
# pyright: reportGeneralTypeIssues=false, reportAttributeAccessIssue=false
from typing import Any, NamedTuple

import triton
import triton.language as tl

from fredholm.evaluation.triton.tile import (
    activate,
    activate_with_slope,
    by_unit,
    length_of,
    of_units,
    point_rows,
    steps_to,
    tail_of,
    unit_rows,
    write_unit_rows,
)
from fredholm.evaluation.triton.tuning import AFTER, BEFORE, PRODUCT

AT_FIRST, AT_LAST, BY_PRODUCT = tl.constexpr(BEFORE), tl.constexpr(AFTER), tl.constexpr(PRODUCT)
"""Values of REST, the time at which R is added to p; see `Tile`."""


class Side(NamedTuple):
    """The points of one side, queries or keys: their features, their parts of p as owners and as partners, phases,
    positions, and entries of the table."""

    u: Any
    part: Any
    bias: Any
    phase: Any
    pos: Any
    entry: Any
    num: Any


class Layer(NamedTuple):
    """Further parts of the first layer: the weight of the partners' features, P, s, c, r, and the table of R."""

    weight: Any
    product_weight: Any
    sin_weight: Any
    cos_weight: Any
    distance_weight: Any
    table: Any


class Extent(NamedTuple):
    """Number of kernels; 1 where positions, and `seen`, differ within the batch, else 0; number of rows of the table,
    and of those for displacements within the grid."""

    kernels: Any
    geometry: Any
    seen_geometry: Any
    entries: Any
    displacements: Any


class GradientSums(NamedTuple):
    """Gradients to be summed: of owners, one per block of units, then of parameters, one per program."""

    bias: Any
    u: Any
    phase: Any
    pos: Any
    product_weight: Any
    sin_weight: Any
    cos_weight: Any
    distance_weight: Any


class Plan(NamedTuple):
    """Compile-time constants of a kernel: sizes, the powers of two that hold them, and flags.

    SIGN is 1 where owners are queries, -1 where they are keys. TABLE: whether R comes from the table only. BIAS:
    whether the partners of an owner have their own term in p. WEIGHT: whether p reads their features beside the
    product. PHASE, POS, ROTATION: whether the gradients of the owners' phases, of their positions, or of s and c are
    needed.
    """

    ACTIVATION: str
    PRECISION: str
    SIGN: int
    TABLE: bool
    BIAS: bool
    CAUSAL: bool
    WEIGHT: bool
    PRODUCT: bool
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
    """One owner: u_o, A_o, the coefficients of its partners' sines and cosines, its own part of p, r, its position, and
    its entry of the table."""

    u: Any
    matrix: Any
    sin: Any
    cos: Any
    part: Any
    r: Any
    pos: Any
    entry: Any


class Partners(NamedTuple):
    """Pointers to the partners of an owner, to their values and to the table."""

    u: Any
    value: Any
    bias: Any
    phase: Any
    pos: Any
    entry: Any
    table: Any
    seen: Any


@triton.jit
def _content(own, layer, head, o, g, units, PLAN: tl.constexpr):
    """u_o `(D,)` and the owner's own part of p, `(units,)`, in float32; and A_o `(units, D)`."""
    D: tl.constexpr = PLAN.D
    channels, square = tl.arange(0, D), g * PLAN.WIDTH * PLAN.DIM
    u = tl.load(own.u + (head * own.num + o) * PLAN.DIM + channels, mask=channels < PLAN.DIM, other=0.0)
    part = tl.load(own.part + (head * own.num + o) * PLAN.WIDTH + units, mask=units < PLAN.WIDTH, other=0.0)
    matrix = tl.zeros([units.shape[0], D], u.dtype)
    if PLAN.WEIGHT:
        matrix = unit_rows(layer.weight + square, units, PLAN.WIDTH, PLAN.DIM, D)
    if PLAN.PRODUCT:
        rows = unit_rows(layer.product_weight + square, units, PLAN.WIDTH, PLAN.DIM, D)
        matrix = tl.fma(rows, tl.broadcast_to(u[None, :], rows.shape), matrix)
    return u.to(tl.float32), matrix, part.to(tl.float32)


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
def _owner(own, layer, extent, r, b, o, g, units, PLAN: tl.constexpr):
    """The owner o of batch entry b."""
    geo = b * extent.geometry
    dtype: tl.constexpr = own.u.dtype.element_ty
    u, matrix, part = _content(own, layer, b * extent.kernels + g, o, g, units, PLAN)
    on_sin, on_cos = matrix, matrix
    if PLAN.FREQUENCIES > 0:
        # in s sin(θ_i - θ_j) + c cos(θ_i - θ_j), the owner being i or j
        sin, cos = _phases(own, geo, o, PLAN)
        s, c = _wave_rows(layer, g, units, PLAN)
        on_sin, on_cos = (c * sin - PLAN.SIGN * s * cos).to(dtype), (c * cos + PLAN.SIGN * s * sin).to(dtype)
    entry = o.to(tl.int32)
    if PLAN.TABLE:
        entry = tl.load(own.entry + o)
    pos = own.pos + (geo * own.num + o) * PLAN.DIMENSIONS
    return Owner(u, matrix, on_sin, on_cos, part, r, pos, entry)


@triton.jit
def _met(other, value, layer, seen, extent, own_num, b, g, PLAN: tl.constexpr):
    """The partners of the owners of batch entry b."""
    head, geo = b * extent.kernels + g, b * extent.geometry
    bias = other.bias + (geo * extent.kernels + g) * other.num * PLAN.WIDTH
    phase, pos = other.phase + geo * other.num * 2 * PLAN.FREQUENCIES, other.pos + geo * other.num * PLAN.DIMENSIONS
    seen += b * extent.seen_geometry * (own_num if PLAN.SIGN == 1 else other.num)
    u, value = other.u + head * other.num * PLAN.DIM, value + head * other.num * PLAN.VALUE_DIM
    return Partners(u, value, bias, phase, pos, other.entry, layer.table + g * extent.entries * PLAN.WIDTH, seen)


@triton.jit
def _distance_weights(layer, g, units, PLAN: tl.constexpr):
    """r, `(units,)`, in float32; 0 where distances are not read."""
    r = tl.zeros([units.shape[0]], tl.float32)
    if PLAN.DISTANCE:
        r = tl.load(layer.distance_weight + g * PLAN.WIDTH + units, mask=units < PLAN.WIDTH, other=0.0).to(tl.float32)
    return r


@triton.jit
def _rows_of(own, o, other, points, displacements, SIGN: tl.constexpr):
    """Rows of the table for an owner o and its partners, from the entries of both sides.

    Entries within the grid are added. A point off the grid, whose entry is no displacement, has one row for each point
    of the other side; where both are off the grid, the key's is used.
    """
    if SIGN == 1:
        rows = tl.where(other >= displacements, other + o, own + tl.where(own >= displacements, points, other))
    else:
        beside = tl.where(other >= displacements, other + o, own + other)
        rows = tl.where(own >= displacements, own + points, beside)
    return rows


@triton.jit
def _table_rows(owner, met, o, points, exist, displacements, MASKED: tl.constexpr, PLAN: tl.constexpr):
    """Rows of the table for an owner and its partners."""
    entry = tl.load(met.entry + points, mask=exist, other=0) if MASKED else tl.load(met.entry + points)
    return _rows_of(owner.entry, o.to(tl.int32), entry, points, displacements, PLAN.SIGN)


@triton.jit
def _rest(owner, met, o, points, exist, units, extent, MASKED: tl.constexpr, PLAN: tl.constexpr):
    """The part of p from the table and the partners, `(units, points)`, in float32."""
    if PLAN.TABLE:
        rows = _table_rows(owner, met, o, points, exist, extent.displacements, MASKED, PLAN)
        rest = by_unit(met.table, rows, exist, units, PLAN.WIDTH, MASKED)
        if PLAN.BIAS:
            rest += by_unit(met.bias, points, exist, units, PLAN.WIDTH, MASKED)
    else:
        rest = by_unit(met.bias, points, exist, units, PLAN.WIDTH, MASKED)
    return rest.to(tl.float32)


@triton.jit
def _plus_turned(p, rows, PLAN: tl.constexpr):
    """p + rowsᵀ, by a matrix product with 1, which is exact."""
    place = tl.arange(0, p.shape[0])
    one = (place[:, None] == place[None, :]).to(rows.dtype)
    return tl.dot(one, tl.trans(rows), p, input_precision=PLAN.PRECISION)


@triton.jit
def _pre_activation(
    owner, met, o, points, exist, units, extent, MASKED: tl.constexpr, PLAN: tl.constexpr, REST: tl.constexpr
):
    """p on a tile, `(units, points)`, and u, sin θ, cos θ, steps and distances of its points, where read."""
    HAS_REST: tl.constexpr = PLAN.TABLE or PLAN.BIAS
    p = tl.zeros([units.shape[0], points.shape[0]], tl.float32) + owner.part[:, None]
    u, sin, cos, steps, distance = p, p, p, p, p
    if HAS_REST and REST == AT_FIRST:
        p += _rest(owner, met, o, points, exist, units, extent, MASKED, PLAN)
    if PLAN.BIAS and REST == BY_PRODUCT:
        p = _plus_turned(p, of_units(met.bias, points, exist, units, PLAN.WIDTH, MASKED), PLAN)
    if PLAN.TABLE and REST == BY_PRODUCT:
        rows = _table_rows(owner, met, o, points, exist, extent.displacements, MASKED, PLAN)
        p = _plus_turned(p, of_units(met.table, rows, exist, units, PLAN.WIDTH, MASKED), PLAN)
    if PLAN.DISTANCE:
        steps = steps_to(owner.pos, met.pos, points, exist, PLAN.DIMENSIONS, PLAN.S)
        distance = length_of(steps)
        p += owner.r[:, None] * distance[None, :]
    if PLAN.WEIGHT or PLAN.PRODUCT:
        u = point_rows(met.u, points, exist, PLAN.DIM, PLAN.DIM, PLAN.D, MASKED)
        p = tl.dot(owner.matrix, tl.trans(u), p, input_precision=PLAN.PRECISION)
    if PLAN.FREQUENCIES > 0:
        sin = point_rows(met.phase, points, exist, 2 * PLAN.FREQUENCIES, PLAN.FREQUENCIES, PLAN.L, MASKED)
        p = tl.dot(owner.sin, tl.trans(sin), p, input_precision=PLAN.PRECISION)
        phase = met.phase + PLAN.FREQUENCIES
        cos = point_rows(phase, points, exist, 2 * PLAN.FREQUENCIES, PLAN.FREQUENCIES, PLAN.L, MASKED)
        p = tl.dot(owner.cos, tl.trans(cos), p, input_precision=PLAN.PRECISION)
    if HAS_REST and REST == AT_LAST:
        p += _rest(owner, met, o, points, exist, units, extent, MASKED, PLAN)
    return p, u, sin, cos, steps, distance


@triton.jit
def _add_sums(
    total, owner, met, o, units, first, stop, last, extent,
    MASKED: tl.constexpr, PLAN: tl.constexpr, REST: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """total + Σ_j φ(p_ij) ⊗ ω_j u_j over the keys in [first, stop) that are before the last."""
    ACTIVATION: tl.constexpr = PLAN.ACTIVATION
    for begin in range(first, stop, N):
        keys = begin + tl.arange(0, N)
        exist = keys < last
        p, _, _, _, _, _ = _pre_activation(owner, met, o, keys, exist, units, extent, MASKED, PLAN, REST)
        values = point_rows(met.value, keys, exist, PLAN.DIM, PLAN.DIM, PLAN.D, MASKED)
        h = activate(p, ACTIVATION).to(values.dtype)
        total = tl.dot(h, values, total, input_precision=PLAN.PRECISION)
    return total


@triton.jit
def _first_place(program, together, own_num):
    """Index of the first owner of a program, which has `together` owners: one point in several batch entries.

    Data of the point alone is then read once from the L2 cache, and afterwards from the L1 cache.
    """
    return program // own_num * (together * own_num) + program % own_num


@triton.jit
def _numbered(place, first_batch, first, own_num):
    """Batch entry and point of an owner, from those of the one at place 0."""
    number = tl.zeros([], tl.int32) + first + place
    return first_batch + (number // own_num).to(tl.int64), (number % own_num).to(tl.int64)


@triton.jit(do_not_specialize=["others", "first_batch", "first", "count", "run"])
def sums_kernel(
    own, other, layer, extent, value, seen, sums, others, first_batch, first, count, parts, run,
    PLAN: tl.constexpr, REST: tl.constexpr, UNITS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """S of `count` queries, `(G, count, parts, w, d)`, to be added: from the `first` of the `first_batch` entry on.

    A program has UNITS units of one query in one kernel, and a part of `run` keys, of which there are `others`.
    """
    D: tl.constexpr = PLAN.D
    TAIL: tl.constexpr = tail_of(N)
    program = tl.program_id(0)
    begin = (program % parts) * run
    units = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    g = tl.program_id(2).to(tl.int64)
    b, i = _numbered(program // parts, first_batch, first, own.num)
    r = _distance_weights(layer, g, units, PLAN)
    owner = _owner(own, layer, extent, r, b, i, g, units, PLAN)
    met = _met(other, value, layer, seen, extent, own.num, b, g, PLAN)
    last = tl.minimum(begin + run, others)
    if PLAN.CAUSAL:
        last = tl.minimum(last, tl.load(met.seen + i).to(tl.int32))
    full = tl.maximum(begin, begin + (last - begin) // N * N)
    total = tl.zeros([UNITS, D], tl.float32)
    total = _add_sums(total, owner, met, i, units, begin, full, last, extent, False, PLAN, REST, N)
    total = _add_sums(total, owner, met, i, units, full, last, last, extent, True, PLAN, REST, TAIL)
    at = sums + (g * count * parts + program) * PLAN.WIDTH * PLAN.DIM
    write_unit_rows(at, total, units, PLAN.WIDTH, PLAN.DIM, D)


@triton.jit
def _add_gradients(
    on_sums, on_matrix, on_sin, on_cos, on_bias, on_r, on_pos, owner, met, units, grad, o, first, stop, last, extent,
    MASKED: tl.constexpr, PLAN: tl.constexpr, REST: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Adds the contributions of the points of one loop to the sums of an owner, in the order of their names."""
    ACTIVATION: tl.constexpr = PLAN.ACTIVATION
    for begin in range(first, stop, N):
        points = begin + tl.arange(0, N)
        exist = points < last
        p, u, sin, cos, steps, distance = _pre_activation(
            owner, met, o, points, exist, units, extent, MASKED, PLAN, REST
        )
        visible = exist
        if PLAN.CAUSAL and PLAN.SIGN == -1:
            visible = exist & (tl.load(met.seen + points, mask=exist, other=0) > o)
        # a value of 0 hides a pair from every gradient
        values = point_rows(
            met.value, points, visible, PLAN.VALUE_DIM, PLAN.VALUE_DIM, PLAN.E,
            MASKED or (PLAN.CAUSAL and PLAN.SIGN == -1),
        )  # fmt: skip
        h, slope = activate_with_slope(p, ACTIVATION)
        grad_p = tl.dot(grad, tl.trans(values), input_precision=PLAN.PRECISION) * slope
        rounded = grad_p.to(values.dtype)
        if PLAN.SIGN == -1:
            on_sums = tl.dot(h.to(values.dtype), values, on_sums, input_precision=PLAN.PRECISION)
        if PLAN.WEIGHT or PLAN.PRODUCT:
            on_matrix = tl.dot(rounded, u, on_matrix, input_precision=PLAN.PRECISION)
        on_bias += tl.sum(grad_p, 1)
        if PLAN.ROTATION:
            on_sin = tl.dot(rounded, sin, on_sin, input_precision=PLAN.PRECISION)
            on_cos = tl.dot(rounded, cos, on_cos, input_precision=PLAN.PRECISION)
        if PLAN.DISTANCE:
            on_r += tl.sum(grad_p * distance[None, :], 1)
            if PLAN.POS:
                apart = exist & (distance > 0.0)
                scale = tl.where(apart, tl.sum(grad_p * owner.r[:, None], 0) / tl.where(apart, distance, 1.0), 0.0)
                on_pos += tl.sum(scale[:, None] * steps, 0)
    return on_sums, on_matrix, on_sin, on_cos, on_bias, on_r, on_pos


@triton.jit
def _write_phase(out, on_sin, on_cos, layer, g, units, PLAN: tl.constexpr):
    """Gradients of sin θ_o and cos θ_o, from those of the coefficients that `_owner` computes."""
    waves = tl.arange(0, PLAN.L)
    s, c = _wave_rows(layer, g, units, PLAN)
    real = waves < PLAN.FREQUENCIES
    tl.store(out + waves, tl.sum(c * on_sin + PLAN.SIGN * s * on_cos, 0), mask=real)
    tl.store(out + PLAN.FREQUENCIES + waves, tl.sum(c * on_cos - PLAN.SIGN * s * on_sin, 0), mask=real)


@triton.jit(do_not_specialize=["others", "first_batch", "first", "count", "together", "before", "total"])
def gradients_kernel(
    own, other, layer, extent, value, seen, grads, sums, received, others, first_batch, first, count, together,
    before, total,
    PLAN: tl.constexpr, REST: tl.constexpr, UNITS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Gradients of the contributions of `count` owners, numbered as in `sums_kernel`.

    For owners that are queries `grads` is the gradient of S_i, `value` is ω u. For owners that are keys `grads` is Y_j,
    `value` the gradient of the integral, and `sums` becomes T_j. A program has UNITS units of `together` owners in one
    kernel. Gradients of owners are numbered from the first owner of all: there are `total`, and `before` precede these.
    """
    D: tl.constexpr = PLAN.D
    E: tl.constexpr = PLAN.E
    L: tl.constexpr = PLAN.L
    S: tl.constexpr = PLAN.S
    TAIL: tl.constexpr = tail_of(N)
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
    first_place = _first_place(tl.program_id(0), together, own.num)
    for place in range(first_place, tl.minimum(first_place + together * own.num, count), own.num):
        b, o = _numbered(place, first_batch, first, own.num)
        number = tl.zeros([], tl.int64) + before + place
        owner = _owner(own, layer, extent, r, b, o, g, units, PLAN)
        met = _met(other, value, layer, seen, extent, own.num, b, g, PLAN)
        at = (g * count + place) * PLAN.WIDTH * PLAN.VALUE_DIM
        grad = unit_rows(grads + at, units, PLAN.WIDTH, PLAN.VALUE_DIM, E)
        last = others
        if PLAN.CAUSAL and PLAN.SIGN == 1:
            last = tl.minimum(last, tl.load(met.seen + o).to(tl.int32))
        full = last // N * N
        on_sums = tl.zeros([UNITS, E], tl.float32)
        on_matrix = tl.zeros([UNITS, D], tl.float32)
        on_sin = tl.zeros([UNITS, L], tl.float32)
        on_cos = tl.zeros([UNITS, L], tl.float32)
        on_bias = tl.zeros([UNITS], tl.float32)
        on_r = tl.zeros([UNITS], tl.float32)
        on_pos = tl.zeros([S], tl.float32)
        on_sums, on_matrix, on_sin, on_cos, on_bias, on_r, on_pos = _add_gradients(
            on_sums, on_matrix, on_sin, on_cos, on_bias, on_r, on_pos, owner, met, units, grad, o, 0, full, last,
            extent, False, PLAN, REST, N,
        )  # fmt: skip
        on_sums, on_matrix, on_sin, on_cos, on_bias, on_r, on_pos = _add_gradients(
            on_sums, on_matrix, on_sin, on_cos, on_bias, on_r, on_pos, owner, met, units, grad, o, full, last, last,
            extent, True, PLAN, REST, TAIL,
        )  # fmt: skip
        if PLAN.SIGN == -1:
            write_unit_rows(sums + at, on_sums, units, PLAN.WIDTH, PLAN.VALUE_DIM, E)
        line = (g * tl.num_programs(1) + tl.program_id(1)) * total + number
        tl.store(received.bias + (g * total + number) * PLAN.WIDTH + units, on_bias, mask=real)
        if PLAN.PRODUCT:
            rows = unit_rows(layer.product_weight + square, units, PLAN.WIDTH, PLAN.DIM, D)
            on_u = tl.sum(on_matrix * rows.to(tl.float32), 0)
            tl.store(received.u + line * PLAN.DIM + channels, on_u, mask=channels < PLAN.DIM)
            if PLAN.SIGN == 1:
                total_product += on_matrix * owner.u[None, :]
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


@triton.jit(do_not_specialize=["first", "count", "batch"])
def relative_gradient_kernel(
    own, other, layer, extent, value, seen, grads, relative, first, count, batch,
    PLAN: tl.constexpr, UNITS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Gradient of R between `count` queries from the `first` on and all keys: `(G, count, keys, w)`.

    `grads` is the gradient of S, `(G, count, B, w, d)`. A program has UNITS units of one query, N keys, one kernel.
    """
    tiles = tl.cdiv(other.num, N)
    place = (tl.program_id(0) // tiles).to(tl.int64)
    units = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    g = tl.program_id(2).to(tl.int64)
    keys = (tl.program_id(0) % tiles) * N + tl.arange(0, N)
    exist = keys < other.num
    i = first + place
    ACTIVATION: tl.constexpr = PLAN.ACTIVATION
    entry = tl.load(other.entry + keys, mask=exist, other=0)
    rows = _rows_of(tl.load(own.entry + i), i.to(tl.int32), entry, keys, extent.displacements, PLAN.SIGN)
    rest = by_unit(layer.table + g * extent.entries * PLAN.WIDTH, rows, exist, units, PLAN.WIDTH, True)
    total = tl.zeros([UNITS, N], tl.float32)
    for step in range(batch):
        b = tl.zeros([], tl.int64) + step
        _, matrix, part = _content(own, layer, b * extent.kernels + g, i, g, units, PLAN)
        met = _met(other, value, layer, seen, extent, own.num, b, g, PLAN)
        visible = exist
        if PLAN.CAUSAL:
            visible = exist & (keys < tl.load(met.seen + i))
        own_rest = rest
        if PLAN.BIAS:
            own_rest += by_unit(met.bias, keys, exist, units, PLAN.WIDTH, True)
        p = own_rest.to(tl.float32) + part[:, None]
        if PLAN.WEIGHT or PLAN.PRODUCT:
            features = point_rows(met.u, keys, exist, PLAN.DIM, PLAN.DIM, PLAN.D, True)
            p = tl.dot(matrix, tl.trans(features), p, input_precision=PLAN.PRECISION)
        values = point_rows(met.value, keys, visible, PLAN.DIM, PLAN.DIM, PLAN.D, True)
        at = ((g * count + place) * batch + b) * PLAN.WIDTH * PLAN.DIM
        grad = unit_rows(grads + at, units, PLAN.WIDTH, PLAN.DIM, PLAN.D)
        _, slope = activate_with_slope(p, ACTIVATION)
        total += tl.dot(grad, tl.trans(values), input_precision=PLAN.PRECISION) * slope
    out = relative + ((g * count + place) * other.num + keys[None, :]) * PLAN.WIDTH + units[:, None]
    tl.store(out, total, mask=(units[:, None] < PLAN.WIDTH) & exist[None, :])


@triton.jit(do_not_specialize=["first", "count"])
def gather_table_kernel(
    relative, entry, cell, grad_table, first, count, own_start, start, keys, displacements, entries,
    WIDTH: tl.constexpr, UNITS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Adds the gradient of R to that of the table, `(G, entries, w)`: each displacement's pairs, query by query.

    `relative` has `count` queries of the grid from its `first` on; the grid begins at query `own_start` and key
    `start`. `cell` is the inverse of `entry`: the cell of an entry, or -1.
    """
    shown = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    units = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    g = tl.program_id(2).to(tl.int64)
    known = shown < displacements
    out = grad_table + (g * entries + shown[:, None]) * WIDTH + units[None, :]
    mask = known[:, None] & (units[None, :] < WIDTH)
    total = tl.load(out, mask=mask, other=0.0)
    for place in range(count):
        from_query = shown - tl.load(entry + own_start + first + place)
        key = tl.load(cell + from_query, mask=known & (from_query >= 0), other=-1)
        pair = relative + ((g * count + place) * keys + start + key[:, None]) * WIDTH + units[None, :]
        total += tl.load(pair, mask=mask & (key[:, None] >= 0), other=0.0)
    tl.store(out, total, mask=mask)
