"""The kernels of sums over Yat scores. Legend: `yat.py`.

`yat_squares_kernel` computes A and B; `yat_forward_kernel` is the forward pass. Backward, `yat_grads_kernel` computes
the per-query terms, for softmax `yat_delta_kernel` a more accurate δ, and then `yat_query_kernel` and `yat_key_kernel`
recompute every tile once each.
"""

# pyright: reportGeneralTypeIssues=false
import triton
import triton.language as tl

from fredholm.evaluation.triton.processor import exp2, larger, log2, product, reciprocal, settled, smaller
from fredholm.kernels.attention.scored import TINY

LEAST = tl.constexpr(TINY)
SMALLEST = tl.constexpr(1.2e-38)
"""About the smallest normal float32: its logarithm and reciprocal are finite."""
STEEP = tl.constexpr(32.0)
"""Largest score of a row, over c, for which δ is g·O: slopes amplify its rounding error by the score."""
SCANNED = tl.constexpr(2048)
"""Number of queries whose order is read at once."""


@triton.jit
def _points(
    base, first, stop, STEP: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, N: tl.constexpr,
    CHECKED: tl.constexpr,
):  # fmt: skip
    """Rows of data of the points from `first` on, `(N, BLOCK)`; 0 beyond COLUMNS and, CHECKED, from `stop` on."""
    points, channels = first + tl.arange(0, N), tl.arange(0, BLOCK)
    at = base + points.to(tl.int64)[:, None] * STEP + channels[None, :]
    if CHECKED:
        return tl.load(at, mask=(points < stop)[:, None] & (channels < COLUMNS)[None, :], other=0.0)
    elif COLUMNS < BLOCK:
        return tl.load(at, mask=(channels < COLUMNS)[None, :], other=0.0)
    else:
        return tl.load(at)


@triton.jit
def _numbers(base, points, stop, OTHER: tl.constexpr, CHECKED: tl.constexpr):
    """One number per point; OTHER, CHECKED, from `stop` on."""
    if CHECKED:
        return tl.load(base + points, mask=points < stop, other=OTHER)
    else:
        return tl.load(base + points)


@triton.jit
def _write(base, value, points, exist, STEP, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """Writes `(points, BLOCK)`, COLUMNS of each point that exists."""
    channels = tl.arange(0, BLOCK)
    mask = exist[:, None] & (channels < COLUMNS)[None, :]
    at = base + points.to(tl.int64)[:, None] * STEP + channels[None, :]
    tl.store(at, value.to(base.dtype.element_ty), mask=mask)


@triton.constexpr_function
def _unit(power):
    """c."""
    return 0.6931471805599453 if power == 0 else 1.0


@triton.jit
def _score(dot, squares, softening, visible, HIDES: tl.constexpr, POWER: tl.constexpr):
    """s and r of pairs from A + B; HIDES: pairs that are not visible get density and slope 0."""
    ratio = dot * reciprocal(larger(squares - 2 * _unit(POWER) * dot, softening))
    score = product(dot, ratio)
    if HIDES:
        if POWER == 0.0:
            score = tl.where(visible, score, float("-inf"))
        else:
            score, ratio = tl.where(visible, score, 0.0), tl.where(visible, ratio, 0.0)
    return score, ratio


@triton.jit
def _power(score, POWER: tl.constexpr):
    """log2 of score^POWER, above 2^-126 POWER."""
    return POWER * log2(larger(score, SMALLEST))


@triton.jit
def _numerator(score, reference, POWER: tl.constexpr):
    """n(s) / n(σ); σ is at least s, with one entry per row."""
    if POWER == 0.0:
        share = exp2(score - reference)
    elif POWER == 1.0:
        share = score * (1.0 / reference)
    else:
        share = tl.where(score == 0, 0.0, exp2(_power(score, POWER) - _power(reference, POWER)))
    return share


@triton.jit
def _level(reference, total, MASS: tl.constexpr, POWER: tl.constexpr):
    """L."""
    empty = total == 0
    total = tl.where(empty, 1.0, total)
    if POWER == 1.0:
        level = tl.where(empty, 0.0, 1.0 / (reference * total))
    else:
        level = tl.log2(total)
        if POWER > 0.0:
            level += _power(reference, POWER)
        elif not MASS:
            level += reference
        level = tl.where(empty, float("inf"), level)
    return level


@triton.jit
def _density(score, reference, level, MASS: tl.constexpr, POWER: tl.constexpr):
    """a, and c times its derivative by s for fixed σ and Z of the row; only softmax with MASS reads σ."""
    if POWER == 0.0:
        # rounding may raise a recomputed score above its reference, so that a would overflow
        most, less = (reference, level) if MASS else (level, 0.0)
        density = exp2(smaller(score - most, 0.0) - less)
        slope = density
    elif POWER == 1.0:
        density = score * level
        slope = level
    else:
        density = tl.where(score == 0, 0.0, exp2(_power(score, POWER) - level))
        slope = POWER * density * reciprocal(larger(score, SMALLEST))
    return density, slope


@triton.jit
def _program(heads, LAST_FIRST: tl.constexpr, UNITS: tl.constexpr):
    """The first row of this program, and its head, batch entry, and place among all heads of the batch."""
    block = tl.program_id(0)
    if LAST_FIRST:
        block = tl.num_programs(0) - 1 - block
    group = tl.program_id(1).to(tl.int64)
    return block * UNITS, group % heads, group // heads, group


@triton.jit
def yat_squares_kernel(
    query, key, epsilon, query_square, key_square, num_queries, num_keys, heads, query_head, query_batch, key_head,
    key_batch,
    POWER: tl.constexpr, QUERY_STEP: tl.constexpr, KEY_STEP: tl.constexpr, DIM: tl.constexpr, D: tl.constexpr,
    UNITS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """A of UNITS queries, or B of N keys."""
    group = tl.program_id(1).to(tl.int64)
    head, batch = group % heads, group // heads
    if tl.program_id(2) == 0:
        first = tl.program_id(0) * UNITS
        q = _points(
            query + head * query_head + batch * query_batch, first, num_queries, QUERY_STEP, DIM, D, UNITS, True
        ).to(tl.float32)
        rows = first + tl.arange(0, UNITS)
        square = tl.sum(q * q, 1) + tl.load(epsilon).to(tl.float32)
        tl.store(query_square + group * num_queries + rows, square * _unit(POWER), mask=rows < num_queries)
    else:
        first = tl.program_id(0) * N
        k = _points(key + head * key_head + batch * key_batch, first, num_keys, KEY_STEP, DIM, D, N, True)
        k = k.to(tl.float32)
        columns = first + tl.arange(0, N)
        square = tl.sum(k * k, 1) * _unit(POWER)
        tl.store(key_square + group * num_keys + columns, square, mask=columns < num_keys)


@triton.jit
def _add_keys(
    largest, z, sums, q, row_square, softening, limit, key, value, key_square, mass, first, stop, num_keys,
    CHECKED: tl.constexpr, MASS: tl.constexpr, SEEN: tl.constexpr, POWER: tl.constexpr, PRECISION: tl.constexpr,
    KEY_STEP: tl.constexpr, VALUE_STEP: tl.constexpr, DIM: tl.constexpr, VALUE: tl.constexpr, D: tl.constexpr,
    V: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """σ, Z and Σ n v with the keys from `first` to `stop`."""
    sums = settled(sums)
    if first < stop:
        for start in range(first, stop, N):
            columns = start + tl.arange(0, N)
            k = _points(key, start, num_keys, KEY_STEP, DIM, D, N, CHECKED)
            squares = row_square[:, None] + _numbers(key_square, columns, num_keys, 1.0, CHECKED)[None, :]
            dot = tl.dot(q, tl.trans(k), input_precision=PRECISION)
            visible = (columns < num_keys)[None, :]
            if MASS:
                weight = _numbers(mass, columns, num_keys, 0.0, CHECKED)[None, :]
                visible = weight > 0
            if CHECKED and SEEN:
                visible = visible & (columns[None, :] < limit[:, None])
            score, _ = _score(dot, squares, softening, visible, CHECKED or MASS, POWER)
            highest = tl.maximum(largest, tl.max(score, 1))
            share = _numerator(score, highest[:, None], POWER)
            if MASS:
                share *= weight
            kept = _numerator(largest, highest, POWER)
            z = z * kept + tl.sum(share, 1)
            v = _points(value, start, num_keys, VALUE_STEP, VALUE, V, N, CHECKED)
            sums = tl.dot(share.to(v.dtype), v, sums * kept[:, None], input_precision=PRECISION)
            largest = highest
    return largest, z, sums


@triton.jit(do_not_specialize=["num_queries", "num_keys"])
def yat_forward_kernel(
    query, key, value, query_square, key_square, epsilon, mass, seen, out, reference, total, num_queries, num_keys,
    heads, query_head, query_batch, key_head, key_batch, value_head, value_batch, mass_batch, seen_batch,
    MASS: tl.constexpr, SEEN: tl.constexpr, POWER: tl.constexpr, FLOOR: tl.constexpr, PRECISION: tl.constexpr,
    QUERY_STEP: tl.constexpr, KEY_STEP: tl.constexpr, VALUE_STEP: tl.constexpr, DIM: tl.constexpr,
    VALUE: tl.constexpr, D: tl.constexpr, V: tl.constexpr, UNITS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """O, σ and Z of UNITS queries."""
    first, head, batch, group = _program(heads, SEEN, UNITS)
    rows = first + tl.arange(0, UNITS)
    exist = rows < num_queries
    q = _points(query + head * query_head + batch * query_batch, first, num_queries, QUERY_STEP, DIM, D, UNITS, True)
    at = group * num_queries + rows
    row_square = tl.load(query_square + at, mask=exist, other=1.0)
    key += head * key_head + batch * key_batch
    value += head * value_head + batch * value_batch
    key_square += group * num_keys
    mass += tl.where(mass_batch > 1, batch, 0) * num_keys
    softening = tl.load(epsilon).to(tl.float32) * _unit(POWER)
    largest = tl.full([UNITS], LEAST if POWER > 0 else 0.0, tl.float32)
    z = tl.zeros([UNITS], tl.float32)
    sums = tl.zeros([UNITS, V], tl.float32)
    limit, clear, stop = _limits(seen, rows, exist, num_queries, num_keys, batch, seen_batch, SEEN, N)
    largest, z, sums = _add_keys(
        largest, z, sums, q, row_square, softening, limit, key, value, key_square, mass, 0, clear, num_keys, False,
        MASS, SEEN, POWER, PRECISION, KEY_STEP, VALUE_STEP, DIM, VALUE, D, V, N
    )  # fmt: skip
    largest, z, sums = _add_keys(
        largest, z, sums, q, row_square, softening, limit, key, value, key_square, mass, clear, stop, num_keys, True,
        MASS, SEEN, POWER, PRECISION, KEY_STEP, VALUE_STEP, DIM, VALUE, D, V, N
    )  # fmt: skip
    if POWER > 0.0:
        # a row of zeros has the smallest reference, whose power may underflow
        z += FLOOR * tl.exp2(tl.minimum(-POWER * tl.log2(largest), 126.0))
    empty = z == 0
    sums = tl.where(empty[:, None], 0.0, sums * (1.0 / tl.where(empty, 1.0, z))[:, None])
    out += (batch * num_queries * heads + head) * VALUE
    _write(out, sums, rows, exist, heads * VALUE, VALUE, V)
    tl.store(reference + at, largest, mask=exist)
    tl.store(total + at, z, mask=exist)


@triton.jit
def _limits(seen, rows, exist, num_queries, num_keys, batch, seen_batch, SEEN: tl.constexpr, N: tl.constexpr):
    """Number of keys that each query sees; end of the tiles that all queries see, and of those that any sees."""
    limit, clear, stop = rows, num_keys, num_keys
    if SEEN:
        seen += tl.where(seen_batch > 1, batch, 0) * num_queries
        limit = tl.load(seen + rows, mask=exist, other=0).to(tl.int32)
        clear = tl.min(tl.where(exist, limit, num_keys), 0)
        stop = tl.max(limit, 0)
    return limit, clear // N * N, stop


@triton.jit
def yat_grads_kernel(
    grad, out, reference, total, rounded, level, delta, num_queries, heads,
    MASS: tl.constexpr, POWER: tl.constexpr, VALUE: tl.constexpr, V: tl.constexpr, UNITS: tl.constexpr,
    N: tl.constexpr,
):  # fmt: skip
    """∂L/∂O of UNITS queries, rounded to the dtype of values, and their L and, from the rounded ∂L/∂O, δ."""
    first, head, batch, group = _program(heads, False, UNITS)
    rows = first + tl.arange(0, UNITS)
    exist = rows < num_queries
    at = group * num_queries + rows
    g = _points(grad + group * num_queries * VALUE, first, num_queries, VALUE, VALUE, V, UNITS, True)
    g = g.to(rounded.dtype.element_ty)
    out += (batch * num_queries * heads + head) * VALUE
    channels = tl.arange(0, V)
    o = tl.load(
        out + rows.to(tl.int64)[:, None] * (heads * VALUE) + channels[None, :],
        mask=exist[:, None] & (channels < VALUE)[None, :], other=0.0,
    )  # fmt: skip
    sigma = tl.load(reference + at, mask=exist, other=1.0)
    z = tl.load(total + at, mask=exist, other=1.0)
    tl.store(level + at, _level(sigma, z, MASS, POWER), mask=exist)
    tl.store(delta + at, tl.sum(g.to(tl.float32) * o, 1), mask=exist)
    _write(rounded + group * num_queries * VALUE, g, rows, exist, VALUE, VALUE, V)


@triton.jit(do_not_specialize=["num_queries", "num_keys"])
def yat_delta_kernel(
    query, key, value, query_square, key_square, epsilon, mass, seen, grad, reference, total, delta, num_queries,
    num_keys, heads, query_head, query_batch, key_head, key_batch, value_head, value_batch, mass_batch, seen_batch,
    MASS: tl.constexpr, SEEN: tl.constexpr, PRECISION: tl.constexpr,
    QUERY_STEP: tl.constexpr, KEY_STEP: tl.constexpr, VALUE_STEP: tl.constexpr, DIM: tl.constexpr,
    VALUE: tl.constexpr, D: tl.constexpr, V: tl.constexpr, UNITS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """δ of UNITS queries as Σ a g·v, if a score is steep: where one key has all weight it is g·v to the bit."""
    first, head, batch, group = _program(heads, SEEN, UNITS)
    rows = first + tl.arange(0, UNITS)
    exist = rows < num_queries
    at = group * num_queries + rows
    sigma = tl.load(reference + at, mask=exist, other=0.0)
    if tl.max(sigma, 0) > STEEP:
        q = _points(
            query + head * query_head + batch * query_batch, first, num_queries, QUERY_STEP, DIM, D, UNITS, True
        )  # fmt: skip
        g = _points(grad + group * num_queries * VALUE, first, num_queries, VALUE, VALUE, V, UNITS, True)
        row_square = tl.load(query_square + at, mask=exist, other=1.0)
        z = tl.load(total + at, mask=exist, other=1.0)
        z = tl.where(z == 0, 1.0, z)
        key += head * key_head + batch * key_batch
        value += head * value_head + batch * value_batch
        key_square += group * num_keys
        mass += tl.where(mass_batch > 1, batch, 0) * num_keys
        softening = tl.load(epsilon).to(tl.float32) * _unit(0.0)
        limit, _clear, stop = _limits(seen, rows, exist, num_queries, num_keys, batch, seen_batch, SEEN, N)
        drop = tl.zeros([UNITS], tl.float32)
        for start in range(0, stop, N):
            columns = start + tl.arange(0, N)
            k = _points(key, start, num_keys, KEY_STEP, DIM, D, N, True)
            squares = row_square[:, None] + _numbers(key_square, columns, num_keys, 1.0, True)[None, :]
            dot = tl.dot(q, tl.trans(k), input_precision=PRECISION)
            v = _points(value, start, num_keys, VALUE_STEP, VALUE, V, N, True)
            by_density = tl.dot(g, tl.trans(v), input_precision=PRECISION)
            visible = (columns < num_keys)[None, :]
            if MASS:
                weight = _numbers(mass, columns, num_keys, 0.0, True)[None, :]
                visible = weight > 0
            if SEEN:
                visible = visible & (columns[None, :] < limit[:, None])
            score, _ratio = _score(dot, squares, softening, visible, True, 0.0)
            share = exp2(smaller(score - sigma[:, None], 0.0))
            if MASS:
                share *= weight
            drop += tl.sum(tl.div_rn(share, tl.broadcast_to(z[:, None], share.shape)) * by_density, 1)
        tl.store(delta + at, drop, mask=exist)


# two kernels, because further sums would cost registers


@triton.jit
def _pull_queries(
    sums, squares, q, g, row_square, sigma, over, drop, softening, limit, key, value, key_square, mass, first, stop,
    num_keys,
    CHECKED: tl.constexpr, MASS: tl.constexpr, SEEN: tl.constexpr, POWER: tl.constexpr, PRECISION: tl.constexpr,
    KEY_STEP: tl.constexpr, VALUE_STEP: tl.constexpr, DIM: tl.constexpr, VALUE: tl.constexpr, D: tl.constexpr,
    V: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Σ G r (1 + c r) k and Σ G r² with the keys from `first` to `stop`."""
    sums = settled(sums)
    if first < stop:
        for start in range(first, stop, N):
            columns = start + tl.arange(0, N)
            k = _points(key, start, num_keys, KEY_STEP, DIM, D, N, CHECKED)
            both = row_square[:, None] + _numbers(key_square, columns, num_keys, 1.0, CHECKED)[None, :]
            dot = tl.dot(q, tl.trans(k), input_precision=PRECISION)
            v = _points(value, start, num_keys, VALUE_STEP, VALUE, V, N, CHECKED)
            by_density = tl.dot(g, tl.trans(v), input_precision=PRECISION)
            visible = (columns < num_keys)[None, :]
            if MASS:
                # hidden pairs may have an infinite density
                weight = _numbers(mass, columns, num_keys, 0.0, CHECKED)[None, :]
                visible = weight > 0
            if CHECKED and SEEN:
                visible = visible & (columns[None, :] < limit[:, None])
            # a key beyond the last is 0, and so is its r
            score, ratio = _score(dot, both, softening, visible, (CHECKED and SEEN) or MASS, POWER)
            _, slope = _density(score, sigma[:, None], over[:, None], MASS, POWER)
            by_dot = (by_density - drop[:, None]) * slope * ratio
            if MASS:
                by_dot *= weight
            by_distance = by_dot * ratio
            squares += tl.sum(by_distance, 1)
            by_product = by_dot + _unit(POWER) * by_distance
            sums = tl.dot(by_product.to(k.dtype), k, sums, input_precision=PRECISION)
    return sums, squares


@triton.jit(do_not_specialize=["num_queries", "num_keys"])
def yat_query_kernel(
    query, key, value, query_square, key_square, epsilon, mass, seen, grad, reference, level, delta, by_query,
    by_square, num_queries, num_keys, heads, query_head, query_batch, key_head, key_batch, value_head, value_batch,
    mass_batch, seen_batch,
    MASS: tl.constexpr, SEEN: tl.constexpr, POWER: tl.constexpr, PRECISION: tl.constexpr,
    QUERY_STEP: tl.constexpr, KEY_STEP: tl.constexpr, VALUE_STEP: tl.constexpr, DIM: tl.constexpr,
    VALUE: tl.constexpr, D: tl.constexpr, V: tl.constexpr, UNITS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """The gradient of UNITS queries, and Σ_j G r², which is that of -‖q‖²."""
    first, head, batch, group = _program(heads, SEEN, UNITS)
    rows = first + tl.arange(0, UNITS)
    exist = rows < num_queries
    q = _points(query + head * query_head + batch * query_batch, first, num_queries, QUERY_STEP, DIM, D, UNITS, True)
    g = _points(grad + group * num_queries * VALUE, first, num_queries, VALUE, VALUE, V, UNITS, True)
    at = group * num_queries + rows
    row_square = tl.load(query_square + at, mask=exist, other=1.0)
    sigma = tl.load(reference + at, mask=exist, other=1.0)
    over = tl.load(level + at, mask=exist, other=0.0)
    drop = tl.load(delta + at, mask=exist, other=0.0)
    key += head * key_head + batch * key_batch
    value += head * value_head + batch * value_batch
    key_square += group * num_keys
    mass += tl.where(mass_batch > 1, batch, 0) * num_keys
    softening = tl.load(epsilon).to(tl.float32) * _unit(POWER)
    squares = tl.zeros([UNITS], tl.float32)
    sums = tl.zeros([UNITS, D], tl.float32)
    limit, clear, stop = _limits(seen, rows, exist, num_queries, num_keys, batch, seen_batch, SEEN, N)
    sums, squares = _pull_queries(
        sums, squares, q, g, row_square, sigma, over, drop, softening, limit, key, value, key_square, mass, 0, clear,
        num_keys, False, MASS, SEEN, POWER, PRECISION, KEY_STEP, VALUE_STEP, DIM, VALUE, D, V, N
    )  # fmt: skip
    sums, squares = _pull_queries(
        sums, squares, q, g, row_square, sigma, over, drop, softening, limit, key, value, key_square, mass, clear,
        stop, num_keys, True, MASS, SEEN, POWER, PRECISION, KEY_STEP, VALUE_STEP, DIM, VALUE, D, V, N
    )  # fmt: skip
    # loaded again, so that it occupies no registers meanwhile
    q = _points(query + head * query_head + batch * query_batch, first, num_queries, QUERY_STEP, DIM, D, UNITS, True)
    squares *= _unit(POWER)
    found = (2 * _unit(POWER)) * (sums - q.to(tl.float32) * squares[:, None])
    _write(by_query + group * num_queries * DIM, found, rows, exist, DIM, DIM, D)
    tl.store(by_square + at, squares * _unit(POWER), mask=exist)


@triton.jit
def _pull_keys(
    keys, values, squares, masses, k, v, row_square, softening, rows, query, grad, query_square, reference, level,
    delta, seen, first, stop, gap, shift, num_queries,
    CHECKED: tl.constexpr, MASS: tl.constexpr, SEEN: tl.constexpr, POWER: tl.constexpr, PRECISION: tl.constexpr,
    QUERY_STEP: tl.constexpr, DIM: tl.constexpr, VALUE: tl.constexpr, D: tl.constexpr, V: tl.constexpr,
    N: tl.constexpr,
):  # fmt: skip
    """Σ G r (1 + c r) q, Σ a g, Σ G r², Σ (g·v - δ) a over queries from `first` on; at `gap`, `shift` are left out."""
    keys, values = settled(keys), settled(values)
    if first < stop:
        for start in range(first, stop, N):
            if CHECKED:
                start += tl.where(start < gap, 0, shift)
            columns = start + tl.arange(0, N)
            q = _points(query, start, num_queries, QUERY_STEP, DIM, D, N, CHECKED)
            both = row_square[:, None] + _numbers(query_square, columns, num_queries, 1.0, CHECKED)[None, :]
            dot = tl.dot(k, tl.trans(q), input_precision=PRECISION)
            g = _points(grad, start, num_queries, VALUE, VALUE, V, N, CHECKED)
            by_density = tl.dot(v, tl.trans(g), input_precision=PRECISION)
            visible = rows[:, None] < columns[None, :]
            if CHECKED and SEEN:
                visible = rows[:, None] < _numbers(seen, columns, num_queries, 0, True)[None, :]
            score, ratio = _score(dot, both, softening, visible, CHECKED and SEEN, POWER)
            # a query beyond the last is 0, and so are its r and g
            over = _numbers(level, columns, num_queries, 0.0, CHECKED)[None, :]
            sigma = over
            if MASS and POWER == 0.0:
                sigma = _numbers(reference, columns, num_queries, 1.0, CHECKED)[None, :]
            density, slope = _density(score, sigma, over, MASS, POWER)
            values = tl.dot(density.to(g.dtype), g, values, input_precision=PRECISION)
            by_density -= _numbers(delta, columns, num_queries, 0.0, CHECKED)[None, :]
            if MASS:
                masses += tl.sum(by_density * density, 1)
            by_dot = by_density * slope * ratio
            by_distance = by_dot * ratio
            squares += tl.sum(by_distance, 1)
            by_product = by_dot + _unit(POWER) * by_distance
            keys = tl.dot(by_product.to(q.dtype), q, keys, input_precision=PRECISION)
    return keys, values, squares, masses


@triton.jit
def _scan(seen, first, stop, num_queries, N: tl.constexpr):
    """Tiles of queries before `begin` see none of the keys in [first, stop), those from `clear` on see all."""
    begin, clear = num_queries, 0
    for start in range(0, num_queries, SCANNED):
        columns = start + tl.arange(0, SCANNED)
        limit = tl.load(seen + columns, mask=columns < num_queries, other=0)
        begin = tl.minimum(begin, tl.min(tl.where((columns < num_queries) & (limit > first), columns, num_queries), 0))
        clear = tl.maximum(clear, tl.max(tl.where((columns < num_queries) & (limit < stop), columns + 1, 0), 0))
    return begin // N * N, (clear + N - 1) // N * N


@triton.jit(do_not_specialize=["num_queries", "num_keys"])
def yat_key_kernel(
    query, key, value, query_square, key_square, epsilon, mass, seen, grad, reference, level, delta, by_key, by_value,
    by_mass, num_queries, num_keys, heads, query_head, query_batch, key_head, key_batch, value_head, value_batch,
    mass_batch, seen_batch,
    MASS: tl.constexpr, SEEN: tl.constexpr, POWER: tl.constexpr, PRECISION: tl.constexpr,
    QUERY_STEP: tl.constexpr, KEY_STEP: tl.constexpr, VALUE_STEP: tl.constexpr, DIM: tl.constexpr,
    VALUE: tl.constexpr, D: tl.constexpr, V: tl.constexpr, UNITS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """The gradients of UNITS keys, their values and, with MASS, their masses in this head."""
    first, head, batch, group = _program(heads, False, UNITS)
    rows = first + tl.arange(0, UNITS)
    exist = rows < num_keys
    k = _points(key + head * key_head + batch * key_batch, first, num_keys, KEY_STEP, DIM, D, UNITS, True)
    v = _points(value + head * value_head + batch * value_batch, first, num_keys, VALUE_STEP, VALUE, V, UNITS, True)
    at = group * num_keys + rows
    row_square = tl.load(key_square + at, mask=exist, other=1.0)
    query += head * query_head + batch * query_batch
    grad += group * num_queries * VALUE
    query_square += group * num_queries
    reference += group * num_queries
    level += group * num_queries
    delta += group * num_queries
    seen += tl.where(seen_batch > 1, batch, 0) * num_queries
    softening = tl.load(epsilon).to(tl.float32) * _unit(POWER)
    squares = tl.zeros([UNITS], tl.float32)
    masses = tl.zeros([UNITS], tl.float32)
    keys = tl.zeros([UNITS, D], tl.float32)
    values = tl.zeros([UNITS, V], tl.float32)
    full = num_queries // N * N
    begin, clear = 0, 0
    if SEEN:
        begin, clear = _scan(seen, first, tl.minimum(first + UNITS, num_keys), num_queries, N)
        begin, clear = tl.minimum(begin, full), tl.minimum(clear, full)
    clear = tl.maximum(begin, clear)
    keys, values, squares, masses = _pull_keys(
        keys, values, squares, masses, k, v, row_square, softening, rows, query, grad, query_square, reference, level,
        delta, seen, clear, full, full, 0, num_queries, False, MASS, SEEN, POWER, PRECISION, QUERY_STEP, DIM, VALUE, D,
        V, N
    )  # fmt: skip
    keys, values, squares, masses = _pull_keys(
        keys, values, squares, masses, k, v, row_square, softening, rows, query, grad, query_square, reference, level,
        delta, seen, begin, num_queries - (full - clear), clear, full - clear, num_queries, True, MASS, SEEN, POWER,
        PRECISION, QUERY_STEP, DIM, VALUE, D, V, N
    )  # fmt: skip
    k = _points(key + head * key_head + batch * key_batch, first, num_keys, KEY_STEP, DIM, D, UNITS, True)
    keys = (2 * _unit(POWER)) * (keys - k.to(tl.float32) * (squares * _unit(POWER))[:, None])
    if MASS:
        weight = tl.load(mass + tl.where(mass_batch > 1, batch, 0) * num_keys + rows, mask=exist, other=0.0)
        there = weight > 0
        keys = tl.where(there[:, None], keys * weight[:, None], 0.0)
        values = tl.where(there[:, None], values * weight[:, None], 0.0)
        tl.store(by_mass + at, tl.where(there, masses, 0.0), mask=exist)
    _write(by_key + group * num_keys * DIM, keys, rows, exist, DIM, DIM, D)
    _write(by_value + group * num_keys * VALUE, values, rows, exist, VALUE, VALUE, V)
