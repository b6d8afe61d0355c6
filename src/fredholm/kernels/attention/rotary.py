"""Rotary positions: queries and keys turned by angles that grow with their place.

Legend
    t          place of a point: its time, or its index           θ_m = base^(-2m/d), m = 0 … d/2 - 1

    (x_m, x_{m + d/2}) -> (x_m cos tθ_m - x_{m+d/2} sin tθ_m,  x_m sin tθ_m + x_{m+d/2} cos tθ_m)

The turn keeps ‖x‖, and q·k then depends on places through their difference alone; so do ‖q - k‖² and every Yat score.

Source: Su et al. 2021 (RoFormer), eq. 34; channels are paired by halves, not as neighbours.
"""

import torch
from torch import Tensor

from fredholm.kernels.kernel import wide_dtype


def rotate(x: Tensor, place: Tensor, base: float) -> Tensor:
    """x `(B, H, N, d)`, d even, turned at the places `(B', N)`; angles in float32, or float64 for float64 signals."""
    dim = x.shape[-1]
    wide = wide_dtype(x)
    # places are compared with one another, so they keep the precision that they come in
    exponents = torch.arange(0, dim, 2, device=x.device, dtype=torch.float64) / dim
    angle = place.to(torch.float64)[:, None, :, None] * base**-exponents
    cos, sin = angle.cos().to(wide), angle.sin().to(wide)
    first, second = x.to(wide).chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1).to(x.dtype)


def check_rotary(name: str, base: float | None, head_dim: int) -> None:
    """Raises ValueError, in the name of a kernel, unless a base fits heads of `head_dim` channels."""
    if base is None:
        return
    if not 1 < base < float("inf"):
        raise ValueError(f"{name}: rotary_base must be above 1 and finite, or None for no positions; got {base}")
    if head_dim % 2:
        raise ValueError(f"{name}: rotary positions turn pairs of channels; got heads of {head_dim} channels")
