"""The activations φ and φ' of the fused kernels."""

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch.nn import functional as F

from fredholm.domains import Grid, Points, Union
from fredholm.evaluation import Integral, TritonFeatureSum, TritonTiled
from fredholm.evaluation.triton import features, perceptron
from fredholm.evaluation.triton.machine import scale_for
from fredholm.evaluation.triton.tile import activate, activate_with_slope
from fredholm.kernels import SeparableMLP
from tests.contracts.routes import check_route, randomise
from tests.evaluation.triton.interpreted.problems import make


@triton.jit
def both(p, value, same, slope, ACTIVATION: tl.constexpr, N: tl.constexpr):
    """Computes φ by both functions, and φ', of N numbers."""
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


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
@pytest.mark.parametrize("name", ["points", "token and grid", "features"])
def test_the_short_activations_take_half_a_pre_activation(name, activation, monkeypatch):
    """The settings of 16-bit kernels, run in float32: the first layer and its gradients have the same scale."""
    for module in (perceptron, features):
        monkeypatch.setattr(module, "activation_for", lambda activation, dtype: f"{activation}_short")
    if name == "features":
        kernel = randomise(SeparableMLP(4, 2, 2, width=5, num_frequencies=3, sigma=1.0, activation=activation))
        problem = Integral(kernel, torch.randn(1, 6, 4), Points(torch.rand(6, 2)))
    else:
        where = Points(torch.rand(4, 2)) if name == "points" else Union(Points(torch.full((1, 2), 0.5)), Grid(2, 2))
        problem = make(where, batch=2, activation=activation)
    check_route(TritonFeatureSum() if name == "features" else TritonTiled(), problem, tolerance=3e-3)
