"""The frame of centroid, size and principal axes.

    μ = Σ p_i x_i,   M = s R,   s² = Σ p_i ‖x_i - μ‖²,   R diag(λ) Rᵀ = Σ p_i (x_i - μ)(x_i - μ)ᵀ,   λ_1 < ... < λ_n

Signs of the columns of R: the skewness of the samples along each is made positive; or all of them are averaged over.

Source: the frame that Neural Fields Meet Attention needs for its rotations and does not have; averaging: Puny et al.
2022, "Frame averaging".
"""

import dataclasses
from typing import final

from fredholm.domains import Domain
from fredholm.fields.frames.axes import AMBIGUOUS_SIGNS, AxesFrame, principal_axes
from fredholm.fields.frames.coordinates import Coordinates
from fredholm.fields.frames.moments import moments, warn


@final
@dataclasses.dataclass(frozen=True)
class Rotational(AxesFrame):
    """Principal axes: covers similarities, x -> a R x + b with a > 0 and R in O(n), or in SO(n) with `proper`.

    Skewness needs sets that are not symmetric. For those that are, `average=True` evaluates a field in every one of
    the 2^n frames that differ by signs (with `proper` the 2^(n-1) rotations among them) and takes the mean, at as many
    times the cost. Near the edge of what is told apart by `tolerance` digits are lost, and a set that is moved across
    it jumps: no continuous choice of axes exists.

    Fallbacks: samples that coincide get s = 1; equal principal variances leave axes open, and R = I is taken, so that
    translations and scalings remain covered; signs that skewness leaves open are taken so that an axis' largest
    component is positive, the first of them so that R is a rotation, which still covers SO(n) where it is the only one.

    Args:
        proper: whether mirrored sets get mirrored fields only if the operator says so: R is a rotation.
        average: whether all signs are averaged over.
        tolerance: of a gap between principal variances as a share of their sum, and of a skewness.
    """

    def coordinates(self, domain: Domain) -> Coordinates:
        """See `Frame.coordinates`."""
        found = moments(domain)
        size = found.variance.sqrt()[:, None, None]
        unit = found.centred / size
        axes = principal_axes((found.shares[..., None] * unit).mT @ unit, found.is_point, self.tolerance)
        told = {
            "samples at one place (size 1 and no rotation taken)": found.is_point,
            "ambiguous axes, equal principal variances (no rotation taken)": axes.is_ambiguous & ~found.is_point,
        }
        signs, told[AMBIGUOUS_SIGNS] = self._signs(axes, unit @ axes.vectors, found.shares)
        warn("Rotational", told)
        R = axes.vectors[:, None] * signs[..., None, :]
        size = size[:, None]
        return Coordinates(found.mean[:, None].expand(-1, R.shape[1], -1), size * R, R.mT / size)
