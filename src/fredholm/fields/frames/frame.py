"""The abstract frame: coordinates of a set of samples, and the moments that frames compute from it.

Coordinates map the samples to a space without location, size or direction.

Legend
    x          a position, s coordinates                  μ, M     origin and matrix of a set's frame
    z          the same place in the frame                p_i      share of sample i in the weight of its set
    s²         Σ p_i ‖x_i - μ‖²

    z = M⁻¹ (x - μ),   and on a torus   z = [cos 2π(x - μ), sin 2π(x - μ)]
"""

import abc
import math
import warnings
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fredholm.domains import Domain
from fredholm.domains.checks import values_can_be_read
from fredholm.fields.jet import Jet

FURTHEST = 1e12
"""Largest |z| allowed: sines of more have no correct digits in any precision here, and squares may overflow."""


def require_digits(name: str, z: Tensor, exists: Tensor | None = None) -> None:
    """Raises a `ValueError` for positions in a frame beyond `FURTHEST`.

    Args:
        name: prefix of the message: the caller and the positions.
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
    """Whether z is a point on a torus."""

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
        """x of points z in the frames, `(B, F, N, s)` to `(B, F, N, s)`.

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


class Frame(abc.ABC):
    """A rule that derives coordinates from a set of samples; a frozen value without parameters.

    Its defining property: for every g of the group that it covers, M⁻¹(x - μ) of the samples g·x is that of x, so that
    anything computed from these coordinates moves with the samples. Nothing depends on the order of the samples; a
    sample counts by its weight, and a masked one not at all. Computed in float64, since a set far from the origin
    loses precision otherwise. Gradients are finite everywhere.

    Samples that do not determine a frame get a documented fallback, and one warning per call with the reason and the
    number of sets. There are no warnings inside `torch.compile`.
    """

    coordinates_per_axis: ClassVar[int] = 1
    """Entries of z for each coordinate of a position."""

    @abc.abstractmethod
    def coordinates(self, domain: Domain) -> Coordinates:
        """The frames of sets of samples.

        Args:
            domain: positions `(B, N, s)`, or `(N, s)` of one set, with their weights and masks.

        Returns:
            Coordinates of B sets; B = 1 where the domain has no batch.
        """


class Moments(NamedTuple):
    """Moments of B sets in R^s, float64."""

    shares: Tensor
    """p, `(B, N)`; sums to 1, or is all 0 in an empty set."""
    mean: Tensor
    """μ, `(B, s)`."""
    centred: Tensor
    """x - μ, `(B, N, s)`; 0 where a sample has no weight."""
    variance: Tensor
    """s², `(B)`; 1 where all samples coincide."""
    is_point: Tensor
    """Whether samples coincide up to rounding, `(B)` bool; true for one sample and for none."""


def moments(domain: Domain) -> Moments:
    """The moments of each set."""
    pos = (domain.pos if domain.pos.ndim == 3 else domain.pos[None]).double()
    weights = (domain.weights if domain.weights.ndim == 2 else domain.weights[None]).double()
    total = weights.sum(-1, keepdim=True)
    shares = weights / torch.where(total > 0, total, 1.0)
    batch = max(pos.shape[0], shares.shape[0])
    pos, shares = pos.expand(batch, -1, -1), shares.expand(batch, -1)
    mean = (shares[..., None] * pos).sum(-2)
    counts = (shares > 0)[..., None]
    centred = torch.where(counts, pos - mean[:, None], 0.0)
    variance = (shares * centred.square().sum(-1)).sum(-1)
    size = torch.where(counts, pos, 0.0).detach().abs().flatten(1)
    largest = size.amax(-1) if size.shape[-1] else size.new_zeros(batch)
    rounding = 64 * torch.finfo(pos.dtype).eps * largest
    is_point = variance.detach() <= rounding.square()
    return Moments(shares, mean, centred, torch.where(is_point, 1.0, variance), is_point)


def warn(name: str, found: dict[str, Tensor]) -> None:
    """Warns with the number of sets in which each of `found` is true, in the name of a frame; silent if in none."""
    if not values_can_be_read(*found.values()):
        return
    warned = [
        f"{what} in {int(where.sum())} of {where.shape[0]} sets" for what, where in found.items() if bool(where.any())
    ]
    if warned:
        warnings.warn(f"fields.{name}: {'; '.join(warned)}", RuntimeWarning, stacklevel=4)
