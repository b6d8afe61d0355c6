"""Points drawn by their probabilities, a mixture of a proposal and the measure. Legend: `quadrature.py`."""

import math
from typing import Literal

import torch
from torch import Tensor

Draw = Literal["independent", "stratified", "quasi_random"]


def log_mixture(logits: Tensor, mass: Tensor, uniform_share: float) -> Tensor:
    """log p with p = (1 - ε) softmax(ℓ + log ω) + ε ω / Σω, in at least float32, along the last axis.

    However far the logits go, ω / p <= Σω / ε. Points of mass 0 get a log p that is very low, and finite, so that its
    gradient is 0 and not NaN.
    """
    dtype = torch.promote_types(logits.dtype, torch.float32)
    floor = torch.finfo(dtype).min / 8
    log_mass = torch.where(mass > 0, mass, 1.0).log().to(dtype)
    log_mass = torch.where(mass > 0, log_mass, floor)
    measure = torch.log_softmax(log_mass, dim=-1) + math.log(uniform_share)
    proposed = torch.log_softmax((logits.to(dtype) + log_mass).clamp_min(floor), dim=-1) + math.log1p(-uniform_share)
    return torch.logaddexp(proposed, measure)


def levels(*rows: int, num_samples: int, draw: Draw, device: torch.device) -> Tensor:
    """M ascending numbers in [0, 1) a row, `(*rows, M)` float64, whose mean density is uniform whatever the draw.

    "independent" ones; "stratified", one in each of M equal intervals; or "quasi_random", the lattice (m + U) / M with
    one random shift U a row.
    """
    if draw == "independent":
        return torch.rand(*rows, num_samples, dtype=torch.float64, device=device).sort(dim=-1).values
    jitter = torch.rand(*rows, num_samples if draw == "stratified" else 1, dtype=torch.float64, device=device)
    return (torch.arange(num_samples, dtype=torch.float64, device=device) + jitter) / num_samples


def invert(running: Tensor, level: Tensor, total: Tensor) -> Tensor:
    """The points at which a running sum of masses passes `level` times `total`; ascending where the levels are.

    Args:
        running: `(*rows, N)` float64, a cumulative sum of masses >= 0.
        level: `(*rows, *sets, M)` in [0, 1).
        total: what a level of 1 stands for, `(*rows, *sets, 1)`: the running sum at the last point wanted.

    Returns:
        int64, of the shape of `level`; never a point of mass 0, or beyond the last wanted, where the total is positive.
    """
    # the largest number below the total, so that rounding never passes the last point of positive mass
    below = torch.nextafter(total, torch.zeros_like(total))
    at = torch.minimum(level * total, below).flatten(running.ndim - 1)
    index = torch.searchsorted(running.contiguous(), at.contiguous(), right=True)
    return index.clamp_max(running.shape[-1] - 1).view(level.shape)


def curve_order(pos: Tensor) -> Tensor:
    """The order of points `(B, N, s)` along a Morton curve through their bounding box: `(B, N)` int64.

    Neighbours on the curve are near in space, so that runs of it are strata.
    """
    dims = pos.shape[-1]
    bits = max(1, min(16, 62 // dims))
    low, high = pos.amin(-2, keepdim=True), pos.amax(-2, keepdim=True)
    extent = torch.where(high > low, high - low, 1.0)
    cell = ((pos - low) / extent * (2**bits - 1)).round().long()
    code = torch.zeros_like(cell[..., 0])
    for bit in range(bits):
        # beyond 62 coordinates the rest has no bit left to order by
        for axis in range(min(dims, 62)):
            code |= ((cell[..., axis] >> bit) & 1) << (bit * min(dims, 62) + axis)
    return code.argsort(dim=-1, stable=True)
