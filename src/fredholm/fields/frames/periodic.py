"""The frame of a torus: the circular mean.

    c_k = Σ p_i exp(2πi x_ik),   μ_k = arg(c_k) / 2π,   M = I,   z = [cos 2π(x - μ), sin 2π(x - μ)]

It covers translations of the unit box that wraps round; a torus has no scalings. The paper has no such frame.
"""

import dataclasses
import math
from typing import ClassVar, final

import torch

from fredholm.domains import Domain
from fredholm.fields.frames.coordinates import Coordinates
from fredholm.fields.frames.frame import Frame
from fredholm.fields.frames.moments import moments, warn


@final
@dataclasses.dataclass(frozen=True)
class Periodic(Frame):
    """Circular mean of each coordinate: covers translations of the torus of the unit box.

    z is smooth where x wraps round, so that every field of z is a field on the torus; it has two entries a coordinate.

    Fallback: along an axis whose samples are spread evenly (``|c_k|`` up to `tolerance`, as on a regular grid) μ_k = 0.
    Weights that differ, such as what the samples show, break that tie.

    Args:
        tolerance: of ``|c_k|``, which is 1 where samples coincide.
    """

    tolerance: float = 1e-6
    coordinates_per_axis: ClassVar[int] = 2

    def coordinates(self, domain: Domain) -> Coordinates:
        """See `Frame.coordinates`."""
        shares = moments(domain).shares
        pos = (domain.pos if domain.pos.ndim == 3 else domain.pos[None]).double()
        phase = 2 * math.pi * pos
        real, imaginary = ((shares[..., None] * part).sum(-2) for part in (phase.cos(), phase.sin()))
        is_even = real.detach().square() + imaginary.detach().square() <= self.tolerance**2
        warn("Periodic", {"samples spread evenly along an axis (origin 0 taken)": is_even.any(-1)})
        angle = torch.atan2(torch.where(is_even, 0.0, imaginary), torch.where(is_even, 1.0, real))
        origin = (angle / (2 * math.pi))[:, None]
        identity = torch.eye(domain.pos_dim, dtype=pos.dtype, device=pos.device).expand(origin.shape[0], 1, -1, -1)
        return Coordinates(origin, identity, identity, is_periodic=True)
