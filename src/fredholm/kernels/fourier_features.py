"""Fourier features of positions, by which kernels and encoders tell places apart.

Legend
    B    frequencies, in cycles per unit length, L of them        γ(x) = [sin 2πBx, cos 2πBx]

Source: ITNet (arXiv 2606.19538), eq. 199 and H.2.1.
"""

import math

import torch
from torch import Tensor

from fredholm._precision import wide_dtype


def sample_frequencies(num_frequencies: int, pos_dim: int, sigma: float) -> Tensor:
    """B with entries from N(0, sigma²), `(num_frequencies, pos_dim)`, in cycles per unit length (ITNet, H.2.1)."""
    return torch.randn(num_frequencies, pos_dim) * sigma


def phases(pos: Tensor, frequencies: Tensor) -> Tensor:
    """θ = 2π B x for positions `(..., s)` and frequencies `(L, s)`: `(..., L)`.

    Computed in the precision of the positions or of the frequencies, the wider of the two, and never under autocast: a
    phase of hundreds of radians has no digits left in bfloat16.
    """
    dtype = wide_dtype(pos, frequencies)
    coordinates, waves = pos.to(dtype)[..., None].unbind(-2), frequencies.to(dtype).unbind(-1)
    # products and sums, because autocast would take a matrix product to low precision
    theta = coordinates[0] * waves[0]
    for x, wave in zip(coordinates[1:], waves[1:], strict=True):
        theta = theta + x * wave
    return 2 * math.pi * theta


def fourier_features(pos: Tensor, frequencies: Tensor) -> Tensor:
    """γ(x) = [sin 2πBx, cos 2πBx] (ITNet, eq. 199): positions `(..., s)` to `(..., 2L)`, in at least float32."""
    theta = phases(pos, frequencies)
    return torch.cat([theta.sin(), theta.cos()], dim=-1)
