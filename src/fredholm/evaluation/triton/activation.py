"""φ and φ' on a tile, in float32 registers."""

import triton
import triton.language as tl


@triton.jit
def activate(p, ACTIVATION: tl.constexpr):
    """φ(p)."""
    if ACTIVATION == "relu":
        return tl.maximum(p, 0.0)
    elif ACTIVATION == "gelu_tanh":
        return p * _tanh_gate(p)
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
        cdf = _normal_cdf(p)
        return p * cdf, cdf + p * 0.3989422804014327 * tl.exp(-0.5 * p * p)


@triton.jit
def _normal_cdf(p):
    """(1 + erf(p / √2)) / 2."""
    return 0.5 + 0.5 * tl.erf(p * 0.7071067811865476)


@triton.jit
def _tanh_gate(p):
    """(1 + tanh z) / 2 = 1 / (1 + exp(-2z)), z = √(2/π) (p + 0.044715 p³)."""
    twice_z = 1.5957691216057308 * p * (1.0 + 0.044715 * p * p)
    return 1.0 / (1.0 + tl.exp(tl.minimum(-twice_z, 80.0)))
