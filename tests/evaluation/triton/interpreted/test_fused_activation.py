"""φ and φ' as the kernels compute them."""

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch.nn import functional as F

from fredholm.evaluation.triton.machine import scale_for
from fredholm.evaluation.triton.tile import activate, activate_with_slope


@triton.jit
def both(p, value, same, slope, ACTIVATION: tl.constexpr, N: tl.constexpr):
    """φ twice, and φ', of N numbers."""
    place = tl.arange(0, N)
    tl.store(value + place, activate(tl.load(p + place), ACTIVATION))
    h, derivative = activate_with_slope(tl.load(p + place), ACTIVATION)
    tl.store(same + place, h)
    tl.store(slope + place, derivative)


@pytest.mark.parametrize(
    ("activation", "function", "tolerance", "of_slope"),
    [
        ("gelu", F.gelu, 1e-6, 1e-6),
        ("gelu_short", F.gelu, 1.3e-4, 2.2e-4),
        ("gelu_tanh_short", lambda p: F.gelu(p, approximate="tanh"), 1e-6, 1e-6),
        ("gelu_tanh", lambda p: F.gelu(p, approximate="tanh"), 1e-6, 1e-6),
        ("relu", F.relu, 0.0, 0.0),
    ],
)
def test_value_and_slope(activation, function, tolerance, of_slope):
    p, scale = torch.cat([torch.linspace(-12, 12, 4093), torch.tensor([0.0, -1e4, 1e4])]), scale_for(activation)
    value, same, slope = (torch.full_like(p, torch.nan) for _ in range(3))
    kernel: Any = both
    kernel[1,](p * scale, value, same, slope, ACTIVATION=activation, N=len(p))
    exact = p.double().requires_grad_()
    expected = function(exact)
    (expected_slope,) = torch.autograd.grad(expected.sum(), exact)
    size = p.abs().clamp_min(1).double()
    assert ((value - expected).abs() <= tolerance * size).all()
    assert ((same - expected).abs() <= tolerance * size).all()
    assert ((slope * scale - expected_slope).abs() <= of_slope * size).all()
