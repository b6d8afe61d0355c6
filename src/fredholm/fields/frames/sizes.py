"""Frames without axes of their own: the location and size of a set of samples.

Legend: `frame.py`; all but Periodic have μ = Σ p_i x_i.

    Isotropic     M = s I,   s² = Σ p_i ‖x_i - μ‖²
    Diagonal      M = diag(s_1, ..., s_n),   s_k² = Σ p_i (x_ik - μ_k)²
    Periodic      c_k = Σ p_i exp(2πi x_ik),   μ_k = arg(c_k) / 2π,   M = I,   z = [cos 2π(x - μ), sin 2π(x - μ)]

Source: Neural Fields Meet Attention, 3.3 (A3a) and A.2, with samples that weigh the same, for Isotropic, which does not
cover rotations, though the paper's table 1 tests them with it; theorem 7 and remark 8 for Diagonal. The paper has no
frame of a torus.
"""

import dataclasses
import math
from typing import ClassVar, final

import torch

from fredholm.domains import Domain
from fredholm.fields.frames.frame import Coordinates, Frame, moments, warn


@final
@dataclasses.dataclass(frozen=True)
class Identity(Frame):
    """μ = 0, M = I: covers no group. The baseline of ablations."""

    def coordinates(self, domain: Domain) -> Coordinates:
        """See `Frame.coordinates`."""
        batch = domain.batch_size or 1
        pos = domain.pos.double()
        identity = torch.eye(domain.pos_dim, dtype=pos.dtype, device=pos.device).expand(batch, 1, -1, -1)
        return Coordinates(pos.new_zeros(batch, 1, domain.pos_dim), identity, identity)


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


@final
@dataclasses.dataclass(frozen=True)
class Periodic(Frame):
    """Circular mean of each coordinate: covers translations of the torus of the unit box.

    z is smooth where x wraps round, so that every field of z is a field on the torus; it has two entries a coordinate.

    Fallback: along an axis whose samples are spread evenly (``|c_k|`` up to `tolerance`, as on a regular grid) μ_k = 0.
    Unequal weights, such as the values at the samples, break that tie.

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
