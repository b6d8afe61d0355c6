"""Coordinates of a set: between where its samples lie and a place without location, size or direction.

Legend
    x          a position, s coordinates                 μ, M       origin and matrix of a set's frame
    z          the same place in the frame

    z = M⁻¹ (x - μ),   and on a torus   z = [cos 2π(x - μ), sin 2π(x - μ)]
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fredholm.domains.checks import values_can_be_read
from fredholm.fields.jet import Jet

FURTHEST = 1e12
"""|z| that is computed: sines of more have no digits in any precision here, and squares may overflow."""


def require_digits(name: str, z: Tensor, exists: Tensor | None = None) -> None:
    """Raises a `ValueError` where a place in a frame lies beyond `FURTHEST`.

    Args:
        name: of who asks, and what lies there, for the error.
        z: `(..., c)`.
        exists: `(...)` bool; None: all do.
    """
    if not z.numel() or not values_can_be_read(z, exists):
        return
    lengths = z.detach().abs().amax(-1)
    furthest = (lengths if exists is None else torch.where(exists, lengths, 0.0)).amax()
    if furthest > FURTHEST:
        raise ValueError(
            f"{name} {furthest.item():.1e} sizes from the origin of their frame; beyond {FURTHEST:.0e} "
            "the sines of a field have no digits; use other units, or a frame with the samples' own size, such as "
            "fields.Isotropic"
        )


class Coordinates(NamedTuple):
    """μ and M of B sets, F frames each (one, unless a frame is averaged over its signs); float64."""

    origin: Tensor
    """μ, `(B, F, s)`."""
    matrix: Tensor
    """M, `(B, F, s, s)`: x = μ + M z."""
    inverse: Tensor
    """M⁻¹, `(B, F, s, s)`."""
    is_periodic: bool = False
    """Whether z is a place on a torus."""

    def normalise(self, x: Tensor) -> Tensor:
        """z of positions `(B, N, s)`, or `(1, N, s)` for all sets: `(B, F, N, s)`, on a torus `(B, F, N, 2s)`."""
        z = (x.to(self.origin.dtype)[:, None] - self.origin[:, :, None]) @ self.inverse.mT
        if not self.is_periodic:
            return z
        phase = 2 * math.pi * z
        return torch.cat([phase.cos(), phase.sin()], dim=-1)

    def jet(self, x: Tensor) -> Jet:
        """z with its derivatives by x."""
        z = self.normalise(x)
        if not self.is_periodic:
            slope = self.inverse.mT[:, :, None].expand(*z.shape[:-1], -1, -1)
            return Jet(z, slope, torch.zeros_like(z))
        cosine, sine = (2 * math.pi * part for part in z.chunk(2, dim=-1))
        slope = torch.cat([torch.diag_embed(-sine), torch.diag_embed(cosine)], dim=-1)
        return Jet(z, slope, -((2 * math.pi) ** 2) * z)

    def denormalise(self, z: Tensor) -> Tensor:
        """x of places in the frames, `(B, F, N, s)` to `(B, F, N, s)`.

        Raises:
            ValueError: on a torus, where a place has no single x.
        """
        if self.is_periodic:
            raise ValueError("Coordinates.denormalise: a place on a torus has no single position")
        return self.origin[:, :, None] + z.to(self.origin.dtype) @ self.matrix.mT

    def waves(self, frequencies: Tensor, phases: Tensor) -> tuple[Tensor, Tensor]:
        """(w, b) with w·x + b = w̃·z + b̃: M⁻ᵀ w̃ and b̃ - w·μ, from `(B, F, K, s)` and `(B, F, K)`.

        Raises:
            ValueError: on a torus, where z is not linear in x.
        """
        if self.is_periodic:
            raise ValueError("Coordinates.waves: on a torus z is not linear in x, so that waves in z are none in x")
        w = frequencies.to(self.origin.dtype) @ self.inverse
        return w, phases.to(self.origin.dtype) - (w @ self.origin[..., None])[..., 0]
