"""Radial functions φ(r) of the distance r of two points, the terms of an interpolation.

Legend
    ℓ          length, > 0;   t = r / ℓ

    cubic          r³                                                has no length, and is smooth at any scale
    exponential    exp(-t)                                           values are continuous, without slopes
    matern32       (1 + √3 t) exp(-√3 t)                             has slopes
    matern52       (1 + √5 t + 5 t² / 3) exp(-√5 t)                  has curvatures
    gaussian       exp(-t² / 2)                                      is smooth

Source: Duchon (1977) for the cubic; Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), chapter 4,
for the others, covariances of random functions that are similar over the length ℓ.
"""

import math
from dataclasses import dataclass
from typing import Literal, final, get_args

import torch
from torch import Tensor

RadialName = Literal["cubic", "exponential", "matern32", "matern52", "gaussian"]


@final
@dataclass(frozen=True, kw_only=True)
class Radial:
    """A radial function φ; see the top of the file.

    Args:
        name: name of the function.
        length: ℓ, in the unit of the points; None for the cubic, which has none.

    Raises:
        ValueError: an unknown name, a length that is missing or not above 0, or a length for the cubic.
    """

    name: RadialName = "cubic"
    length: float | None = None

    def __post_init__(self) -> None:
        if self.name not in get_args(RadialName):
            raise ValueError(f"fields.Radial: name is {self.name!r}; expected one of {', '.join(get_args(RadialName))}")
        if self.name == "cubic" and self.length is not None:
            raise ValueError(f"fields.Radial: length is {self.length}, and name 'cubic', which has none; leave it out")
        if self.name != "cubic" and not 0 < (self.length or 0.0) < math.inf:
            raise ValueError(
                f"fields.Radial: length is {self.length}, and name {self.name!r}; expected a finite length above 0"
            )

    @property
    def is_bounded(self) -> bool:
        """Whether φ(0) = 1 is the largest value; the cubic grows without bound."""
        return self.name != "cubic"

    def values(self, apart: Tensor) -> Tensor:
        """Returns φ of differences of points `(..., s)`, `(...)`."""
        if self.name == "cubic":
            return apart.square().sum(-1) * lengths(apart)
        if self.name == "gaussian":
            return (-0.5 * (apart / self._length).square().sum(-1)).exp()
        rate = self._rate
        r = rate * lengths(apart)
        if self.name == "exponential":
            return (-r).exp()
        return (1 + r + (0.0 if self.name == "matern32" else r.square() / 3)) * (-r).exp()

    def slopes(self, r: Tensor) -> tuple[Tensor, Tensor]:
        """Returns φ'(r) / r and φ''(r) - φ'(r) / r at distances; of the exponential both are taken as 0 at 0."""
        if self.name == "cubic":
            return 3 * r, 3 * r
        if self.name == "gaussian":
            found = (-0.5 * (r / self._length).square()).exp() / self._length**2
            return -found, found * (r / self._length).square()
        a = self._rate
        decay = (-a * r).exp()
        if self.name == "exponential":
            along = torch.where(r > 0, -a * decay / torch.where(r > 0, r, 1.0), 0.0)
            return along, torch.where(r > 0, a**2 * decay - along, 0.0)
        if self.name == "matern32":
            return -(a**2) * decay, a**3 * r * decay
        return -(a**2) / 3 * (1 + a * r) * decay, a**4 / 3 * r.square() * decay

    @property
    def _length(self) -> float:
        assert self.length is not None
        return self.length

    @property
    def _rate(self) -> float:
        """The factor of r in the exponential."""
        squared = {"exponential": 1, "matern32": 3, "matern52": 5}[self.name]
        return squared**0.5 / self._length


def lengths(apart: Tensor) -> Tensor:
    """|z| of `(..., s)`, whose derivatives at 0 are taken as 0, as the first two of |z|³ are."""
    squared = apart.square().sum(-1)
    return torch.where(squared > 0, squared, 1.0).sqrt() * (squared > 0)
