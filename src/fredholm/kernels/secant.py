"""Secant forms: a nonlinear map with φ(0) = 0 as multiplication by a slope, φ(z) = (φ(z)/z) z."""

import torch
from torch import Tensor

# 1 - z²/3 + 2z⁴/15 - 17z⁶/315 + 62z⁸/2835, the remainder below 1e-22 within the radius
_RADIUS = 0.01
_TAYLOR = (62 / 2835, -17 / 315, 2 / 15, -1 / 3, 1.0)


def tanh_secant(z: Tensor) -> Tensor:
    """tanh(z)/z, 1 at z = 0, with the right derivative everywhere; any shape."""
    near = z.abs() < _RADIUS
    squared = torch.where(near, z, 0.0).square()
    series = torch.full_like(z, _TAYLOR[0])
    for coefficient in _TAYLOR[1:]:
        series = series * squared + coefficient
    away = torch.where(near, 1.0, z)
    return torch.where(near, series, torch.tanh(away) / away)


def unit_response(v: Tensor) -> Tensor:
    """v/‖v‖², the least vector whose product with v is 1, for v of `(..., d)` other than 0."""
    # a scale taken out first, so that the square of a large signal does not overflow
    scale = v.detach().abs().amax(dim=-1, keepdim=True)
    scaled = v / scale
    return scaled / (scaled.square().sum(dim=-1, keepdim=True) * scale)
