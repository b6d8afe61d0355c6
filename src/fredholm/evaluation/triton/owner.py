"""What an owner's program builds before it meets other points. Legend: `launch.py`."""

# pyright: reportGeneralTypeIssues=false
import triton
import triton.language as tl

from fredholm.evaluation.triton.tile import unit_rows


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
