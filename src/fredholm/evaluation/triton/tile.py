"""A tile in float32 registers: rows of units or points, and φ and φ' on them.

All tensors are contiguous. Indices that grow with the data are int64; those within one kernel's parameters are int32.

"gelu_short" and "gelu_tanh_short" are GELUs for results that are rounded to 16 bits. By the count of instructions the
arithmetic on p, not the matrix products, sets the pace there. They take the processor's own tanh: one instruction, to a
relative 2^-11 (PTX ISA, `tanh.approx`), and five more. Erf is replaced by the tanh of an odd cubic, fitted for the
least largest error: 1.3e-4 times max(1, |p|), and 2.2e-4 in the slope. Both errors together, 4e-4 and 5e-4, are a
quarter of what bfloat16 rounds off.
"""

import triton
import triton.language as tl

from fredholm.evaluation.triton.machine import INTERPRETING

HAS_TANH = tl.constexpr(not INTERPRETING)
"""Whether the processor has a tanh: the interpreter knows no assembly."""


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
    elif ACTIVATION == "gelu":
        return p * _normal_cdf(p)
    else:
        half = 0.5 * p
        return half * _short_tanh(p, ACTIVATION) + half


@triton.jit
def activate_with_slope(p, ACTIVATION: tl.constexpr):
    """φ(p) and φ'(p)."""
    if ACTIVATION == "relu":
        return tl.maximum(p, 0.0), tl.where(p > 0.0, 1.0, 0.0)
    elif ACTIVATION == "gelu_tanh" or ACTIVATION == "gelu_tanh_short":
        # 1 - tanh² needs more than the short tanh has where it is near 0
        gate = _tanh_gate(p)
        inner = 1.5957691216057308 * (1.0 + 0.134145 * p * p)
        return p * gate, gate + p * gate * (1.0 - gate) * inner
    else:
        cdf = 0.5 + 0.5 * _short_tanh(p, ACTIVATION) if ACTIVATION == "gelu_short" else _normal_cdf(p)
        return p * cdf, cdf + p * 0.3989422804014327 * tl.exp(-0.5 * p * p)


@triton.jit
def _normal_cdf(p):
    """(1 + erf(p / √2)) / 2."""
    return 0.5 + 0.5 * tl.erf(p * 0.7071067811865476)


@triton.constexpr_function
def _linear(activation):
    """a of the GELU p (1 + tanh(a p + b p³)) / 2."""
    return 0.7978845608028654 if activation == "gelu_tanh_short" else 0.7991705405512505


@triton.constexpr_function
def _cubic(activation):
    """b of it."""
    return 0.035677408136300125 if activation == "gelu_tanh_short" else 0.03514652427162717


@triton.jit
def _short_tanh(p, ACTIVATION: tl.constexpr):
    """tanh(a p + b p³)."""
    z = p * (_linear(ACTIVATION) + _cubic(ACTIVATION) * p * p)
    if HAS_TANH:
        return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [z], dtype=tl.float32, is_pure=True, pack=1)
    else:
        return 2.0 / (1.0 + tl.exp(tl.minimum(-2.0 * z, 80.0))) - 1.0


@triton.jit
def _tanh_gate(p):
    """(1 + tanh z) / 2 = 1 / (1 + exp(-2z)), z = √(2/π) (p + 0.044715 p³)."""
    twice_z = 1.5957691216057308 * p * (1.0 + 0.044715 * p * p)
    return 1.0 / (1.0 + tl.exp(tl.minimum(-twice_z, 80.0)))
