"""A tile: some units of one owner's kernel, against a run of the points that the owner is paired with.

Legend: `launch.py`. All tensors are contiguous. Indices that grow with the data are int64; those within one kernel's
parameters are int32.
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
