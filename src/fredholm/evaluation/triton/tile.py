"""A tile in float32 registers: rows of units or points, and φ and φ' on them.

All tensors are contiguous. Offsets that grow with the data are int64; numbers of points, and offsets within one
kernel's parameters, are int32.

"gelu_short" and "gelu_tanh_short" are GELUs for results that are rounded to 16 bits. Exact ones would need more
instructions than all other operations. They use the processor's own tanh: one instruction, with relative error 2^-11
(PTX ISA, `tanh.approx`), and five more. Erf is replaced by the tanh of an odd cubic, fitted for the smallest maximal
error: 1.3e-4 times max(1, |p|), and 2.2e-4 in the slope. Both errors together, 4e-4 and 5e-4, are a quarter of the
rounding error of bfloat16, and about that of a float16 p, which is not rounded here. Their argument is p / 2, which
saves one of six instructions: the first layer is multiplied, exactly, by `scale_for` before a kernel is called, and the
gradients of its parameters afterwards.
"""

import triton
import triton.language as tl

from fredholm.evaluation.triton.processor import exp2, larger, tanh


@triton.constexpr_function
def tail_of(tile):
    """Number of points of the smaller tiles for the remainder of a loop."""
    return max(16, tile // 4)


@triton.constexpr_function
def fills(size, tile):
    """Whether tiles divide the extent exactly."""
    return size % tile == 0


@triton.jit
def unit_rows(base, units, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """A parameter or workspace by unit, `(units, BLOCK)`; 0 beyond its WIDTH rows and COLUMNS columns."""
    columns = tl.arange(0, BLOCK)
    at = base + units[:, None] * COLUMNS + columns[None, :]
    if fills(WIDTH, units.shape[0]) and COLUMNS == BLOCK:
        rows = tl.load(at)
    else:
        rows = tl.load(at, mask=(units[:, None] < WIDTH) & (columns[None, :] < COLUMNS), other=0.0)
    return rows


@triton.jit
def write_unit_rows(base, value, units, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """Writes `(units, BLOCK)` in the layout of `unit_rows`."""
    columns = tl.arange(0, BLOCK)
    at = base + units[:, None] * COLUMNS + columns[None, :]
    value = value.to(base.dtype.element_ty)
    if fills(WIDTH, units.shape[0]) and COLUMNS == BLOCK:
        tl.store(at, value)
    else:
        tl.store(at, value, mask=(units[:, None] < WIDTH) & (columns[None, :] < COLUMNS))


@triton.jit
def point_rows(
    base,
    points,
    exist,
    STRIDE: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    MASKED: tl.constexpr,
):
    """A row of data for each point, `(points, BLOCK)`; 0 beyond COLUMNS and, MASKED, where no point exists."""
    columns = tl.arange(0, BLOCK)
    at = base + points.to(tl.int64)[:, None] * STRIDE + columns[None, :]
    if MASKED:
        rows = tl.load(at, mask=exist[:, None] & (columns[None, :] < COLUMNS), other=0.0)
    elif COLUMNS == BLOCK:
        rows = tl.load(at)
    else:
        rows = tl.load(at, mask=columns[None, :] < COLUMNS, other=0.0)
    return rows


@triton.jit
def of_units(base, points, exist, units, WIDTH: tl.constexpr, MASKED: tl.constexpr):
    """Loads some units of `(points, WIDTH)` as `(points, units)`; MASKED: 0 where no point exists."""
    at = base + points.to(tl.int64)[:, None] * WIDTH + units[None, :]
    if MASKED or not fills(WIDTH, units.shape[0]):
        rows = tl.load(at, mask=exist[:, None] & (units[None, :] < WIDTH), other=0.0)
    else:
        rows = tl.load(at)
    return rows


@triton.jit
def by_unit(base, points, exist, units, WIDTH: tl.constexpr, MASKED: tl.constexpr):
    """Loads some units of `(points, WIDTH)` transposed, `(units, points)`; MASKED: 0 where no point exists."""
    at = base + points.to(tl.int64)[None, :] * WIDTH + units[:, None]
    if MASKED or not fills(WIDTH, units.shape[0]):
        columns = tl.load(at, mask=(units[:, None] < WIDTH) & exist[None, :], other=0.0)
    else:
        columns = tl.load(at)
    return columns


@triton.jit
def steps_to(own_pos, pos, points, exist, DIMENSIONS: tl.constexpr, S: tl.constexpr):
    """x_o - x_x, `(points, S)`."""
    axes = tl.arange(0, S)
    own = tl.load(own_pos + axes, mask=axes < DIMENSIONS, other=0.0).to(tl.float32)
    return own[None, :] - point_rows(pos, points, exist, DIMENSIONS, DIMENSIONS, S, True).to(tl.float32)


@triton.jit
def length_of(steps):
    """‖x_o - x_x‖, `(points,)`."""
    return tl.sqrt(tl.sum(steps * steps, 1))


@triton.constexpr_function
def scale_of(activation):
    """`scale_for`, which Triton kernels cannot call."""
    return 0.5 if activation.endswith("_short") else 1.0


@triton.jit
def activate(p, ACTIVATION: tl.constexpr):
    """φ(p); for the short activations φ(2p)."""
    if ACTIVATION == "relu":
        return larger(p, 0.0)
    elif ACTIVATION == "gelu_tanh":
        return p * _tanh_gate(p)
    elif ACTIVATION == "gelu":
        return p * _normal_cdf(p)
    else:
        return p * tanh(p * (_linear(ACTIVATION) + _cubic(ACTIVATION) * p * p)) + p


@triton.jit
def activate_with_slope(p, ACTIVATION: tl.constexpr):
    """The result of `activate`, and its derivative by p."""
    if ACTIVATION == "relu":
        return larger(p, 0.0), tl.where(p > 0.0, 1.0, 0.0)
    elif ACTIVATION == "gelu_tanh":
        gate = _tanh_gate(p)
        inner = 1.5957691216057308 * (1.0 + 0.134145 * p * p)
        return p * gate, gate + p * gate * (1.0 - gate) * inner
    elif ACTIVATION == "gelu_tanh_short":
        # 1 - tanh² near 0 needs more accuracy than the short tanh
        gate = _tanh_gate(2.0 * p)
        inner = 1.5957691216057308 * (1.0 + 0.53658 * p * p)
        return 2.0 * p * gate, 2.0 * gate + 4.0 * p * gate * (1.0 - gate) * inner
    elif ACTIVATION == "gelu":
        cdf = _normal_cdf(p)
        return p * cdf, cdf + p * 0.3989422804014327 * tl.exp(-0.5 * p * p)
    else:
        square = p * p
        twice_cdf = 1.0 + tanh(p * (_linear(ACTIVATION) + _cubic(ACTIVATION) * square))
        # exp(-2p²)
        return p * twice_cdf, twice_cdf + p * 1.5957691216057308 * exp2(-2.8853900817779268 * square)


@triton.jit
def _normal_cdf(p):
    """(1 + erf(p / √2)) / 2."""
    return 0.5 + 0.5 * tl.erf(p * 0.7071067811865476)


@triton.constexpr_function
def _linear(activation):
    """2a of the GELU p (1 + tanh(a p + b p³)) / 2."""
    return 2 * (0.7978845608028654 if activation == "gelu_tanh_short" else 0.7991705405512505)


@triton.constexpr_function
def _cubic(activation):
    """8b of the GELU of `_linear`."""
    return 8 * (0.035677408136300125 if activation == "gelu_tanh_short" else 0.03514652427162717)


@triton.jit
def _tanh_gate(p):
    """(1 + tanh z) / 2 = 1 / (1 + exp(-2z)), z = √(2/π) (p + 0.044715 p³)."""
    twice_z = 1.5957691216057308 * p * (1.0 + 0.044715 * p * p)
    return 1.0 / (1.0 + tl.exp(tl.minimum(-twice_z, 80.0)))
