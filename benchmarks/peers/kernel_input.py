"""The concatenated kernel input z of the ITNet paper, Eq. (218), built for every pair."""

import math

import torch
from torch import Tensor


def fourier_features(pos: Tensor, frequencies: Tensor) -> Tensor:
    """``gamma(x) = [sin(2 pi B x); cos(2 pi B x)]``, Eq. (199): ``(..., s)`` to ``(..., 2 L)``."""
    phase = 2 * math.pi * (pos @ frequencies.T)
    return torch.cat([phase.sin(), phase.cos()], dim=-1)


def kernel_input(x: Tensor, y: Tensor, u_x: Tensor, u_y: Tensor, frequencies: Tensor) -> Tensor:
    """``z = [gamma(x); gamma(y); gamma(x - y); |x - y|; u(x); u(y); u(x) * u(y)]`` for query x and key y.

    The positions ``(..., s)`` broadcast against each other, the signals ``(..., d_h)`` against each other and
    against the positions; the result is ``(..., 6 L + 1 + 3 d_h)`` over the common leading shape.
    """
    difference = x - y
    groups = [
        fourier_features(x, frequencies),
        fourier_features(y, frequencies),
        fourier_features(difference, frequencies),
        torch.linalg.vector_norm(difference, dim=-1, keepdim=True),
        u_x,
        u_y,
        u_x * u_y,
    ]
    pairs = torch.broadcast_shapes(*(group.shape[:-1] for group in groups))
    return torch.cat([group.expand(*pairs, -1) for group in groups], dim=-1)
