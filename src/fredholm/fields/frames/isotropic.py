"""The frame of centroid and size.

    μ = Σ p_i x_i,   M = s I,   s² = Σ p_i ‖x_i - μ‖²

Source: Neural Fields Meet Attention, 3.3 (A3a) and A.2, with samples that weigh the same. It covers x -> a x + b with
a > 0. It does not cover rotations, though the paper's table 1 tests them with it.
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
class Isotropic(Frame):
    """Centroid and root mean square distance from it: covers translations and scalings by one number > 0.

    Fallback: samples that coincide (one sample, or none) get s = 1.
    """

    def coordinates(self, domain: Domain) -> Coordinates:
        """See `Frame.coordinates`."""
        found = moments(domain)
        warn("Isotropic", {"samples at one place (size 1 taken)": found.is_point})
        size = found.variance.sqrt()[:, None, None, None]
        identity = torch.eye(domain.pos_dim, dtype=size.dtype, device=size.device)
        return Coordinates(found.mean[:, None], size * identity, identity / size)
