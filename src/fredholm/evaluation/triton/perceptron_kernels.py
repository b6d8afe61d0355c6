"""The kernels of the integral of a pairwise perceptron kernel. Legend: `perceptron.py`.

`content`, `phases` and `rotation` are what an owner's program builds before it meets other points. `sums_kernel` is the
forward pass: S of every query. `gradients_kernel` is the backward pass, for owners that are queries and for owners that
are keys. A displacement of a table occurs at many pairs, which no program owns: `relative_gradient_kernel` sums the
gradient of R over the batch for some queries at a time, and `gather_table_kernel` gathers it by displacement, both in a
fixed order.
"""

# pyright: reportGeneralTypeIssues=false
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


@triton.jit
def content(
    own_u, own_bias, own_weight, weight, product, units, OWN_WEIGHT: tl.constexpr, WEIGHT: tl.constexpr,
    PRODUCT: tl.constexpr, WIDTH: tl.constexpr, DIM: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """u_o `(D,)`, A_o `(units, D)`, and what the owner alone adds to p, `(units,)`, all in float32."""
    channels = tl.arange(0, D)
    u = tl.load(own_u + channels, mask=channels < DIM, other=0.0).to(tl.float32)
    alpha = tl.load(own_bias + units, mask=units < WIDTH, other=0.0).to(tl.float32)
    matrix = tl.zeros([units.shape[0], D], tl.float32)
    if OWN_WEIGHT:
        alpha += tl.sum(unit_rows(own_weight, units, WIDTH, DIM, D).to(tl.float32) * u[None, :], 1)
    if WEIGHT:
        matrix += unit_rows(weight, units, WIDTH, DIM, D).to(tl.float32)
    if PRODUCT:
        matrix += unit_rows(product, units, WIDTH, DIM, D).to(tl.float32) * u[None, :]
    return u, matrix, alpha


@triton.jit
def phases(own_phase, FREQUENCIES: tl.constexpr, L: tl.constexpr):
    """sin θ_o and cos θ_o, `(1, L)` each, in float32."""
    waves = tl.arange(0, L)
    sin = tl.load(own_phase + waves, mask=waves < FREQUENCIES, other=0.0)
    cos = tl.load(own_phase + FREQUENCIES + waves, mask=waves < FREQUENCIES, other=0.0)
    return sin.to(tl.float32)[None, :], cos.to(tl.float32)[None, :]


@triton.jit
def rotation(
    own_phase, sin_weight, cos_weight, units, SIGN: tl.constexpr, WIDTH: tl.constexpr, FREQUENCIES: tl.constexpr,
    L: tl.constexpr,
):  # fmt: skip
    """Coefficients of sin θ_x and cos θ_x in s sin(θ_i - θ_j) + c cos(θ_i - θ_j), `(units, L)` each, in float32.

    SIGN is 1 for an owner that is the query i, -1 for one that is the key j.
    """
    sin, cos = phases(own_phase, FREQUENCIES, L)
    s = unit_rows(sin_weight, units, WIDTH, FREQUENCIES, L).to(tl.float32)
    c = unit_rows(cos_weight, units, WIDTH, FREQUENCIES, L).to(tl.float32)
    return c * sin - SIGN * s * cos, c * cos + SIGN * s * sin


@triton.jit
def _add_sums(
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
        total = _add_sums(
            total, matrix, on_sin, on_cos, alpha, r, units, own_pos, table, u, value, bias, phase, pos, entry,
            stop, start, skip, start, ACTIVATION, PRECISION, False, WEIGHT or PRODUCT, DISTANCE, WIDTH, DIM,
            FREQUENCIES, DIMENSIONS, N, D, L, S,
        )  # fmt: skip
    if TABLE:
        own_entry = tl.load(entry + (i - own_start), mask=inside, other=0)
        stop = stop_of_visible(tl.where(inside, block, 0), 0, start, visible)
        total = _add_sums(
            total, matrix, matrix, matrix, alpha, r, units, own_pos, table + (g * entries + own_entry) * WIDTH, u,
            value, bias, phase, pos, entry, stop, 0, start, start, ACTIVATION, PRECISION, True, WEIGHT or PRODUCT,
            DISTANCE, WIDTH, DIM, FREQUENCIES, DIMENSIONS, N, D, L, S,
        )  # fmt: skip
    write_unit_rows(sums + ((g * count + place) * WIDTH) * DIM, total, units, WIDTH, DIM, D)


@triton.jit
def _add_gradients(
    sums, on_matrix, on_sin, on_cos, on_bias, on_r, on_pos,
    matrix, sin_part, cos_part, alpha, r, units, grad, own_pos, own_table, o,
    u, value, bias, phase, pos, entry, seen, stop, threshold, shift, start,
    SIGN: tl.constexpr, ACTIVATION: tl.constexpr, PRECISION: tl.constexpr, IN_TABLE: tl.constexpr,
    CAUSAL: tl.constexpr, READS: tl.constexpr, DISTANCE: tl.constexpr, ROTATION: tl.constexpr, POS: tl.constexpr,
    WIDTH: tl.constexpr, DIM: tl.constexpr, VALUE_DIM: tl.constexpr, FREQUENCIES: tl.constexpr,
    DIMENSIONS: tl.constexpr, N: tl.constexpr, D: tl.constexpr, E: tl.constexpr, L: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    """Adds what the points of one loop give to the sums of an owner, in the order in which they are named."""
    for begin in range(0, stop, N):
        points, exist = run_of_points(begin, stop, threshold, shift, N)
        p = alpha[:, None] + by_unit(bias, points, exist, units, WIDTH)
        if IN_TABLE:
            p += by_unit(own_table, tl.load(entry + (points - start), mask=exist, other=0), exist, units, WIDTH)
        elif DISTANCE:
            steps = steps_to(own_pos, pos, points, exist, DIMENSIONS, S)
            distance = length_of(steps)
            p += r[:, None] * distance[None, :]
        features = point_rows(u, points, exist, DIM, DIM, D)
        if READS:
            p = tl.dot(matrix, tl.trans(features), p, input_precision=PRECISION)
        if (not IN_TABLE) and FREQUENCIES > 0:
            sin = point_rows(phase, points, exist, 2 * FREQUENCIES, FREQUENCIES, L)
            p = tl.dot(sin_part, tl.trans(sin), p, input_precision=PRECISION)
            cos = point_rows(phase + FREQUENCIES, points, exist, 2 * FREQUENCIES, FREQUENCIES, L)
            p = tl.dot(cos_part, tl.trans(cos), p, input_precision=PRECISION)
        visible = exist
        if CAUSAL and SIGN == -1:
            visible = exist & (tl.load(seen + points, mask=exist, other=0) > o)
        # a value of 0 hides a pair from every gradient
        values = point_rows(value, points, visible, VALUE_DIM, VALUE_DIM, E)
        h, slope = activate_with_slope(p, ACTIVATION)
        grad_p = tl.dot(grad, tl.trans(values), input_precision=PRECISION) * slope
        rounded = grad_p.to(values.dtype)
        if SIGN == -1:
            sums = tl.dot(h.to(values.dtype), values, sums, input_precision=PRECISION)
        if READS:
            on_matrix = tl.dot(rounded, features, on_matrix, input_precision=PRECISION)
        on_bias += tl.sum(grad_p, 1)
        if (not IN_TABLE) and ROTATION:
            on_sin = tl.dot(rounded, sin, on_sin, input_precision=PRECISION)
            on_cos = tl.dot(rounded, cos, on_cos, input_precision=PRECISION)
        if (not IN_TABLE) and DISTANCE:
            on_r += tl.sum(grad_p * distance[None, :], 1)
            if POS:
                apart = exist & (distance > 0.0)
                scale = tl.where(apart, tl.sum(grad_p * r[:, None], 0) / tl.where(apart, distance, 1.0), 0.0)
                on_pos += tl.sum(scale[:, None] * steps, 0)
    return sums, on_matrix, on_sin, on_cos, on_bias, on_r, on_pos


@triton.jit
def _write_phase(
    out, on_sin, on_cos, sin_weight, cos_weight, units, SIGN: tl.constexpr, WIDTH: tl.constexpr,
    FREQUENCIES: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """Gradients of sin θ_o and cos θ_o, from those of the coefficients that `rotation` makes of them."""
    waves = tl.arange(0, L)
    s = unit_rows(sin_weight, units, WIDTH, FREQUENCIES, L).to(tl.float32)
    c = unit_rows(cos_weight, units, WIDTH, FREQUENCIES, L).to(tl.float32)
    tl.store(out + waves, tl.sum(c * on_sin + SIGN * s * on_cos, 0), mask=waves < FREQUENCIES)
    tl.store(out + FREQUENCIES + waves, tl.sum(c * on_cos - SIGN * s * on_sin, 0), mask=waves < FREQUENCIES)


@triton.jit(do_not_specialize=["first", "count", "own_start", "start", "owners", "total"])
def gradients_kernel(
    own_u, own_bias, own_phase, own_pos, u, value, bias, phase, pos, seen,
    own_weight, weight, product, sin_weight, cos_weight, distance_weight, table, entry, grads,
    sums, grad_bias, grad_u, grad_phase, grad_pos, grad_product, grad_sin, grad_cos, grad_distance,
    first, count, total, owners, own_num, num, kernels, geometry, seen_geometry, own_start, start, block, entries,
    SIGN: tl.constexpr, ACTIVATION: tl.constexpr, PRECISION: tl.constexpr, TABLE: tl.constexpr,
    BESIDE: tl.constexpr, CAUSAL: tl.constexpr, OWN_WEIGHT: tl.constexpr, WEIGHT: tl.constexpr,
    PRODUCT: tl.constexpr, DISTANCE: tl.constexpr, PHASE: tl.constexpr, POS: tl.constexpr, WIDTH: tl.constexpr,
    DIM: tl.constexpr, VALUE_DIM: tl.constexpr, FREQUENCIES: tl.constexpr, DIMENSIONS: tl.constexpr,
    UNITS: tl.constexpr, N: tl.constexpr, D: tl.constexpr, E: tl.constexpr, L: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    """Gradients of what `count` owners from the `first` on contribute, numbered through the batch.

    SIGN is 1 for owners that are queries: `grads` is the gradient of S_i, `value` is ω u. It is -1 for owners that are
    keys: `grads` is Y_j, `value` the gradient of the integral, and `sums` becomes T_j. A program has UNITS units of
    `owners` owners in one kernel; gradients of parameters come out once a program, those of owners once a block of
    units, to be summed. PHASE, POS: whether those of the owners' phases and positions are wanted.
    """
    units = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    g = tl.program_id(2).to(tl.int64)
    real = units < WIDTH
    axes, channels = tl.arange(0, S), tl.arange(0, D)
    dtype: tl.constexpr = u.dtype.element_ty
    READS: tl.constexpr = WEIGHT or PRODUCT
    ROTATION: tl.constexpr = FREQUENCIES > 0 and (PHASE or SIGN == 1)
    square, wave = g * WIDTH * DIM, g * WIDTH * FREQUENCIES
    r = tl.zeros([UNITS], tl.float32)
    if DISTANCE:
        r = tl.load(distance_weight + g * WIDTH + units, mask=real, other=0.0).to(tl.float32)
    total_product = tl.zeros([UNITS, D], tl.float32)
    total_sin = tl.zeros([UNITS, L], tl.float32)
    total_cos = tl.zeros([UNITS, L], tl.float32)
    total_r = tl.zeros([UNITS], tl.float32)
    begin = tl.program_id(0).to(tl.int64) * owners
    for place in range(begin, tl.minimum(begin + owners, count)):
        owner = (first + place).to(tl.int64)
        b, o = owner // own_num, owner % own_num
        head, geo = b * kernels + g, b * geometry
        plane = geo * kernels + g
        u_o, matrix, alpha = content(
            own_u + (head * own_num + o) * DIM, own_bias + (plane * own_num + o) * WIDTH, own_weight + square,
            weight + square, product + square, units, OWN_WEIGHT, WEIGHT, PRODUCT, WIDTH, DIM, D,
        )  # fmt: skip
        matrix = matrix.to(dtype)
        grad = unit_rows(grads + (g * count + place) * WIDTH * VALUE_DIM, units, WIDTH, VALUE_DIM, E)
        own_at, own_turn = own_pos + (geo * own_num + o) * DIMENSIONS, own_phase + (geo * own_num + o) * 2 * FREQUENCIES
        sees = seen + b * seen_geometry * (own_num if SIGN == 1 else num)
        visible = num
        if CAUSAL and SIGN == 1:
            visible = tl.load(sees + o).to(tl.int32)
        inside = (o >= own_start) & (o < own_start + block)
        on_sums = tl.zeros([UNITS, E], tl.float32)
        on_matrix = tl.zeros([UNITS, D], tl.float32)
        on_sin = tl.zeros([UNITS, L], tl.float32)
        on_cos = tl.zeros([UNITS, L], tl.float32)
        on_bias = tl.zeros([UNITS], tl.float32)
        on_r = tl.zeros([UNITS], tl.float32)
        on_pos = tl.zeros([S], tl.float32)
        if BESIDE:
            sin_part, cos_part = matrix, matrix
            if FREQUENCIES > 0:
                sin_part, cos_part = rotation(
                    own_turn, sin_weight + wave, cos_weight + wave, units, SIGN, WIDTH, FREQUENCIES, L
                )
                sin_part, cos_part = sin_part.to(dtype), cos_part.to(dtype)
            skip = tl.where(inside, block, 0)
            stop = stop_of_visible(num - skip, start, skip, visible)
            on_sums, on_matrix, on_sin, on_cos, on_bias, on_r, on_pos = _add_gradients(
                on_sums, on_matrix, on_sin, on_cos, on_bias, on_r, on_pos, matrix, sin_part, cos_part, alpha, r,
                units, grad, own_at, table, o, u + head * num * DIM, value + head * num * VALUE_DIM,
                bias + plane * num * WIDTH, phase + geo * num * 2 * FREQUENCIES, pos + geo * num * DIMENSIONS, entry,
                sees, stop, start, skip, start, SIGN, ACTIVATION, PRECISION, False, CAUSAL, READS, DISTANCE, ROTATION,
                POS, WIDTH, DIM, VALUE_DIM, FREQUENCIES, DIMENSIONS, N, D, E, L, S,
            )  # fmt: skip
        if TABLE:
            own_entry = tl.load(entry + (o - own_start), mask=inside, other=0)
            stop = stop_of_visible(tl.where(inside, block, 0), 0, start, visible)
            on_sums, on_matrix, on_sin, on_cos, on_bias, on_r, on_pos = _add_gradients(
                on_sums, on_matrix, on_sin, on_cos, on_bias, on_r, on_pos, matrix, matrix, matrix, alpha, r, units,
                grad, own_at, table + (g * entries + own_entry) * WIDTH, o, u + head * num * DIM,
                value + head * num * VALUE_DIM, bias + plane * num * WIDTH, phase, pos, entry, sees, stop, 0, start,
                start, SIGN, ACTIVATION, PRECISION, True, CAUSAL, READS, DISTANCE, ROTATION, POS, WIDTH, DIM,
                VALUE_DIM, FREQUENCIES, DIMENSIONS, N, D, E, L, S,
            )  # fmt: skip
        if SIGN == -1:
            write_unit_rows(sums + (g * count + place) * WIDTH * VALUE_DIM, on_sums, units, WIDTH, VALUE_DIM, E)
        own = (g * tl.num_programs(1) + tl.program_id(1)) * total + owner
        tl.store(grad_bias + (g * total + owner) * WIDTH + units, on_bias, mask=real)
        on_u = tl.zeros([D], tl.float32)
        if PRODUCT:
            on_u += tl.sum(on_matrix * unit_rows(product + square, units, WIDTH, DIM, D).to(tl.float32), 0)
            total_product += on_matrix * u_o[None, :]
        if OWN_WEIGHT:
            on_u += tl.sum(on_bias[:, None] * unit_rows(own_weight + square, units, WIDTH, DIM, D).to(tl.float32), 0)
        tl.store(grad_u + own * DIM + channels, on_u, mask=channels < DIM)
        if BESIDE and ROTATION:
            sin, cos = phases(own_turn, FREQUENCIES, L)
            total_sin += SIGN * (on_cos * sin - on_sin * cos)
            total_cos += on_sin * sin + on_cos * cos
        if BESIDE and PHASE:
            _write_phase(
                grad_phase + own * 2 * FREQUENCIES, on_sin, on_cos, sin_weight + wave, cos_weight + wave, units, SIGN,
                WIDTH, FREQUENCIES, L,
            )  # fmt: skip
        if DISTANCE:
            total_r += on_r
        if POS:
            tl.store(grad_pos + own * DIMENSIONS + axes, on_pos, mask=axes < DIMENSIONS)
    if SIGN == 1:
        program = g * tl.num_programs(0) + tl.program_id(0)
        if PRODUCT:
            write_unit_rows(grad_product + program * WIDTH * DIM, total_product, units, WIDTH, DIM, D)
        if FREQUENCIES > 0:
            write_unit_rows(grad_sin + program * WIDTH * FREQUENCIES, total_sin, units, WIDTH, FREQUENCIES, L)
            write_unit_rows(grad_cos + program * WIDTH * FREQUENCIES, total_cos, units, WIDTH, FREQUENCIES, L)
        if DISTANCE:
            tl.store(grad_distance + program * WIDTH + units, total_r, mask=real)


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
