"""φ and φ' on a tile, in float32 registers.

"gelu_short" is GELU for results that are rounded to bfloat16. By the count of instructions the arithmetic on
p, not the matrix products, sets the pace there, and most of it is erf; a polynomial needs less than half as many, and
its error, below 2e-5 times max(1, |p|), is a hundred times smaller than what bfloat16 rounds off.
"""

import triton
import triton.language as tl


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
