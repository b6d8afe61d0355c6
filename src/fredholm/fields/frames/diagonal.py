"""The frame of centroid and a size along each axis.

    μ = Σ p_i x_i,   M = diag(s_1, ..., s_n),   s_k² = Σ p_i (x_ik - μ_k)²

Source: Neural Fields Meet Attention, theorem 7 and remark 8. It covers x -> D x + b with D diagonal, all entries > 0.
"""

import dataclasses
from typing import final

import torch

from fredholm.domains import Domain
from fredholm.fields.frames.coordinates import Coordinates
from fredholm.fields.frames.frame import Frame
from fredholm.fields.frames.moments import moments, warn


@final
@dataclasses.dataclass(frozen=True)
class Diagonal(Frame):
    """Centroid and standard deviation along each axis: covers translations and scalings of each axis by its own > 0.

    Fallback: along an axis in which samples do not spread (less than `tolerance` of the whole), s_k is the root mean
    square of all axes, and 1 where samples coincide.

    Args:
        tolerance: of a standard deviation, as a share of the root mean square distance from the centroid.
    """

    tolerance: float = 1e-9

    def coordinates(self, domain: Domain) -> Coordinates:
        """See `Frame.coordinates`."""
        found = moments(domain)
        along = (found.shares[..., None] * found.centred.square()).sum(-2)  # (B, s)
        whole = (found.variance / domain.pos_dim)[:, None]
        flat = along.detach() <= self.tolerance**2 * found.variance.detach()[:, None]
        warn(
            "Diagonal",
            {
                "samples at one place (size 1 taken)": found.is_point,
                "no spread along an axis (the mean size taken)": flat.any(-1) & ~found.is_point,
            },
        )
        whole = torch.where(found.is_point[:, None], 1.0, whole)
        size = torch.where(flat | found.is_point[:, None], whole, along).sqrt()
        return Coordinates(found.mean[:, None], torch.diag_embed(size)[:, None], torch.diag_embed(1 / size)[:, None])
