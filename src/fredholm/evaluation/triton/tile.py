"""A tile in float32 registers: rows of units or points, and φ and φ' on them.

All tensors are contiguous. Indices that grow with the data are int64; those within one kernel's parameters are int32.

"gelu_short" is GELU for results that are rounded to bfloat16. By the count of instructions the arithmetic on p, not the
matrix products, sets the pace there, and most of it is erf; a polynomial needs less than half as many, and its error,
below 2e-5 times max(1, |p|), is a hundred times smaller than what bfloat16 rounds off.
"""

import triton
import triton.language as tl


@triton.jit
def unit_rows(base, units, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """A parameter or workspace by unit, `(units, BLOCK)`; 0 beyond its WIDTH rows and COLUMNS columns."""
    columns = tl.arange(0, BLOCK)
    mask = (units[:, None] < WIDTH) & (columns[None, :] < COLUMNS)
    return tl.load(base + units[:, None] * COLUMNS + columns[None, :], mask=mask, other=0.0)


@triton.jit
def write_unit_rows(base, value, units, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """Writes `(units, BLOCK)` to where `unit_rows` reads."""
    columns = tl.arange(0, BLOCK)
    mask = (units[:, None] < WIDTH) & (columns[None, :] < COLUMNS)
    tl.store(base + units[:, None] * COLUMNS + columns[None, :], value.to(base.dtype.element_ty), mask=mask)


@triton.jit
def point_rows(base, points, exist, STRIDE: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """What is known of each point, `(points, BLOCK)`; 0 beyond its COLUMNS columns and for points that do not exist."""
    columns = tl.arange(0, BLOCK)
    mask = exist[:, None] & (columns[None, :] < COLUMNS)
    return tl.load(base + points[:, None] * STRIDE + columns[None, :], mask=mask, other=0.0)


@triton.jit
def by_unit(base, points, exist, units, WIDTH: tl.constexpr):
    """What lies as `(points, WIDTH)`, turned, `(units, points)`, in float32."""
    mask = (units[:, None] < WIDTH) & exist[None, :]
    return tl.load(base + points[None, :] * WIDTH + units[:, None], mask=mask, other=0.0).to(tl.float32)


@triton.jit
def run_of_points(first, stop, threshold, shift, N: tl.constexpr):
    """N of the points that a loop visits, and which of them exist: the t-th is t, or t + shift from threshold on."""
    t = first + tl.arange(0, N)
    return tl.where(t >= threshold, t + shift, t).to(tl.int64), t < stop


@triton.jit
def stop_of_visible(stop, threshold, shift, seen):
    """Where a loop over `run_of_points` may end when only points below `seen` are visible."""
    return tl.minimum(stop, tl.where(seen <= threshold, seen, tl.maximum(threshold, seen - shift)))


@triton.jit
def steps_to(own_pos, pos, points, exist, DIMENSIONS: tl.constexpr, S: tl.constexpr):
    """x_o - x_x, `(points, S)`."""
    axes = tl.arange(0, S)
    own = tl.load(own_pos + axes, mask=axes < DIMENSIONS, other=0.0).to(tl.float32)
    return own[None, :] - point_rows(pos, points, exist, DIMENSIONS, DIMENSIONS, S).to(tl.float32)


@triton.jit
def length_of(steps):
    """‖x_o - x_x‖, `(points,)`."""
    return tl.sqrt(tl.sum(steps * steps, 1))


@triton.jit
def activate(p, ACTIVATION: tl.constexpr):
    """φ(p)."""
    if ACTIVATION == "relu":
        return tl.maximum(p, 0.0)
    elif ACTIVATION == "gelu_tanh":
        return p * _tanh_gate(p)
    elif ACTIVATION == "gelu_short":
        return p * _normal_cdf_short(p)
    else:
        return p * _normal_cdf(p)


@triton.jit
def activate_with_slope(p, ACTIVATION: tl.constexpr):
    """φ(p) and φ'(p)."""
    if ACTIVATION == "relu":
        return tl.maximum(p, 0.0), tl.where(p > 0.0, 1.0, 0.0)
    elif ACTIVATION == "gelu_tanh":
        gate = _tanh_gate(p)
        inner = 1.5957691216057308 * (1.0 + 0.134145 * p * p)
        return p * gate, gate + p * gate * (1.0 - gate) * inner
    else:
        cdf = _normal_cdf_short(p) if ACTIVATION == "gelu_short" else _normal_cdf(p)
        return p * cdf, cdf + p * 0.3989422804014327 * tl.exp(-0.5 * p * p)


@triton.jit
def _normal_cdf(p):
    """(1 + erf(p / √2)) / 2."""
    return 0.5 + 0.5 * tl.erf(p * 0.7071067811865476)


@triton.jit
def _normal_cdf_short(p):
    """The same to 2e-5: an odd polynomial on [-4.25, 4.25], fitted for the least largest error, constant beyond."""
    t = tl.minimum(tl.maximum(p, -4.25), 4.25)
    q = t * t
    series = 5.564889521414429e-11 * q - 5.3277817713137665e-09
    series = series * q + 2.2554357315129892e-07
    series = series * q - 5.6264411796291824e-06
    series = series * q + 9.341882832814008e-05
    series = series * q - 0.0011085616424679756
    series = series * q + 0.009815973229706287
    series = series * q - 0.0663444921374321
    series = series * q + 0.3989023268222809
    return 0.5 + t * series


@triton.jit
def _tanh_gate(p):
    """(1 + tanh z) / 2 = 1 / (1 + exp(-2z)), z = √(2/π) (p + 0.044715 p³)."""
    twice_z = 1.5957691216057308 * p * (1.0 + 0.044715 * p * p)
    return 1.0 / (1.0 + tl.exp(tl.minimum(-twice_z, 80.0)))
