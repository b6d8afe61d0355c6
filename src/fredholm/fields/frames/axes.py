"""Frames with axes: the orientation of a set of samples, including the signs of the axes.

Legend: `frame.py`, and
    T      symmetric (s, s)        V      its orthonormal eigenvectors, columns in the order of rising eigenvalues
    z      samples along V                 γ_k    Σ p_i z_ik³ / (Σ p_i z_ik²)^(3/2), the skewness along axis k
    C      Σ p_i (x_i - μ)(x_i - μ)ᵀ = L Lᵀ, L lower triangular           y_i    L⁻¹ (x_i - μ): whitened samples

    Rotational    M = s V,   T = C
    Affine        M = L V,   T = Σ p_i ‖y_i‖² y_i y_iᵀ

Signs of the columns of V: the skewness of the samples along each is made positive, with Affine that of Vᵀ y; or all of
them are averaged over.

Affine does not take the square root of C, unlike the paper (theorem 7): for C' = A C Aᵀ the root is A C^(1/2) Q
with a rotation Q that depends on A, so that M' = A M fails unless A and C commute; whitened samples are known up to a
rotation. Their fourth moments turn with them, T' = Q T Qᵀ, and its axes undo Q.

Source: Neural Fields Meet Attention, theorem 7; Rotational is a frame that the paper needs for its rotations and lacks.
Axes from two scatter matrices: Tyler et al. 2009; averaging: Puny et al. 2022, "Frame averaging".
"""

import dataclasses
import itertools
from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm.domains import Domain
from fredholm.fields.frames.frame import Coordinates, Frame, moments, warn


class Axes(NamedTuple):
    """V of B matrices; V = I for a matrix with two eigenvalues too close to determine its axes."""

    vectors: Tensor
    """`(B, s, s)`."""
    is_ambiguous: Tensor
    """`(B)` bool."""


def principal_axes(T: Tensor, hopeless: Tensor, tolerance: float) -> Axes:
    """Eigenvectors with finite gradients: a matrix without determined axes is replaced before it is decomposed.

    Args:
        T: `(B, s, s)`, symmetric and >= 0.
        hopeless: `(B)` bool, True = ignore T.
        tolerance: gap of neighbouring eigenvalues, as a share of their sum, up to which they count as equal.
    """
    dim = T.shape[-1]
    values = torch.linalg.eigvalsh(T.detach())
    closest = values.diff(dim=-1).amin(-1) if dim > 1 else values.new_full(values.shape[:-1], torch.inf)
    is_ambiguous = hopeless | (closest <= tolerance * values.sum(-1))
    # its own eigenvectors are the identity's columns, in this order
    ladder = torch.diag(torch.arange(1, dim + 1, dtype=T.dtype, device=T.device))
    vectors = torch.linalg.eigh(torch.where(is_ambiguous[:, None, None], ladder, T)).eigenvectors
    identity = torch.eye(dim, dtype=T.dtype, device=T.device)
    return Axes(torch.where(is_ambiguous[:, None, None], identity, vectors), is_ambiguous)


class Signs(NamedTuple):
    """A sign for each axis of B sets, `(B, s)`, or in F frames `(B, F, s)`; `(B)` bool, True = a sign is ambiguous."""

    signs: Tensor
    is_ambiguous: Tensor


def skewed_signs(vectors: Tensor, z: Tensor, shares: Tensor, *, proper: bool, tolerance: float) -> Signs:
    """Signs that make the skewness along each axis positive.

    With `proper` the first axis instead gets the sign that makes V a rotation. Signs that skewness leaves open: the
    largest component of the axis is made positive, and the first of them is then turned so that V is a rotation.

    Args:
        vectors: V, `(B, s, s)`.
        z: `(B, N, s)`.
        shares: p, `(B, N)`.
        proper: whether V diag(signs) must have determinant 1.
        tolerance: of |γ_k|, up to which it counts as 0.
    """
    vectors, z, weights = vectors.detach(), z.detach(), shares.detach()[..., None]
    spread = (weights * z.square()).sum(-2).pow(1.5)
    third = (weights * z.pow(3)).sum(-2)
    known = third.abs() > tolerance * spread
    first = torch.arange(vectors.shape[-1], device=z.device) == 0
    known = known & ~first if proper else known
    largest = vectors.gather(-2, vectors.abs().argmax(-2, keepdim=True))[..., 0, :]
    signs = torch.where(torch.where(known, third, largest) < 0, -1.0, 1.0).to(vectors.dtype)
    turned = torch.linalg.det(vectors * signs[..., None, :]) < 0
    first_open = (~known) & ((~known).cumsum(-1) == 1)
    signs = torch.where(first_open & turned[..., None], -signs, signs)
    open_ones = (~known & ~first) if proper else ~known
    return Signs(signs, open_ones.any(-1))


def all_signs(vectors: Tensor, *, proper: bool) -> Tensor:
    """Every choice of signs, `(B, F, s)`: F = 2^s, or with `proper` the 2^(s - 1) that make V a rotation."""
    dim = vectors.shape[-1]
    free = dim - 1 if proper else dim
    choices = torch.tensor(list(itertools.product((1.0, -1.0), repeat=free)), dtype=vectors.dtype)
    choices = choices.reshape(2**free, free).to(vectors.device).expand(vectors.shape[0], -1, -1)
    if not proper:
        return choices
    handed = torch.sign(torch.linalg.det(vectors.detach()))[:, None]
    return torch.cat([(handed * choices.prod(-1))[..., None], choices], dim=-1)


AMBIGUOUS_SIGNS = "ambiguous signs, no skewness along an axis (average=True needs none)"
"""Warning of a frame for sets that do not determine the signs of their axes."""


@dataclasses.dataclass(frozen=True)
class AxesFrame(Frame):
    """A frame with axes and a rule for their signs.

    Args:
        proper: whether det M > 0.
        average: whether all signs are averaged over.
        tolerance: of a skewness.
    """

    proper: bool = False
    average: bool = False
    tolerance: float = 1e-6

    @final
    def _signs(self, axes: Axes, z: Tensor, shares: Tensor) -> Signs:
        """The signs to use, `(B, F, s)`: all of them with `average`, else those of `skewed_signs`.

        Axes that are ambiguous themselves keep the signs that they have. Arguments: see `skewed_signs`.
        """
        if self.average:
            return Signs(all_signs(axes.vectors, proper=self.proper), torch.zeros_like(axes.is_ambiguous))
        chosen = skewed_signs(axes.vectors, z, shares, proper=self.proper, tolerance=self.tolerance)
        fixed = torch.where(axes.is_ambiguous[:, None], 1.0, chosen.signs)
        return Signs(fixed[:, None], chosen.is_ambiguous & ~axes.is_ambiguous)


@final
@dataclasses.dataclass(frozen=True)
class Rotational(AxesFrame):
    """Principal axes: covers similarities, x -> a R x + b with a > 0 and R in O(n), or in SO(n) with `proper`.

    Skewness needs sets that are not symmetric. For those that are, `average=True` evaluates a field in every one of the
    2^n frames that differ by signs (with `proper` the 2^(n-1) rotations among them) and takes the mean, at as many
    times the cost. Near the `tolerance` precision is lost, and a set that moves across it jumps: no continuous choice
    exists.

    Fallbacks: samples that coincide get s = 1; equal principal variances leave axes open, and R = I is taken, so that
    translations and scalings remain covered; signs that skewness leaves open are taken so that an axis' largest
    component is positive, the first of them so that R is a rotation, which still covers SO(n) where it is the only one.

    Args:
        proper: whether R is a rotation, so that mirrored sets need not get mirrored fields.
        average: whether all signs are averaged over.
        tolerance: of a gap between principal variances as a share of their sum, and of a skewness.
    """

    def coordinates(self, domain: Domain) -> Coordinates:
        """See `Frame.coordinates`."""
        found = moments(domain)
        size = found.variance.sqrt()[:, None, None]
        unit = found.centred / size
        axes = principal_axes((found.shares[..., None] * unit).mT @ unit, found.is_point, self.tolerance)
        ambiguities = {
            "samples at one place (size 1 and no rotation taken)": found.is_point,
            "ambiguous axes, equal principal variances (no rotation taken)": axes.is_ambiguous & ~found.is_point,
        }
        signs, ambiguities[AMBIGUOUS_SIGNS] = self._signs(axes, unit @ axes.vectors, found.shares)
        warn("Rotational", ambiguities)
        R = axes.vectors[:, None] * signs[..., None, :]
        size = size[:, None]
        return Coordinates(found.mean[:, None].expand(-1, R.shape[1], -1), size * R, R.mT / size)


@final
@dataclasses.dataclass(frozen=True)
class Affine(AxesFrame):
    """Whitening with its rotation fixed: covers x -> A x + b with A invertible, or with det A > 0 if `proper`.

    `average` and signs: see `Rotational`.

    Fallbacks: samples that coincide get M = I; those that lie in a line or plane (the least principal variance below
    `tolerance` of their sum) get M = s I / √n as whitening without directions; equal fourth moments leave the rotation
    open, and M = L is taken, which covers the A that are lower triangular with a positive diagonal; signs as in
    `Rotational`.

    Args:
        proper: whether det M > 0.
        average: whether all signs are averaged over.
        tolerance: of variances and gaps as a share of their sum, and of a skewness.
    """

    def coordinates(self, domain: Domain) -> Coordinates:
        """See `Frame.coordinates`."""
        found = moments(domain)
        dim = domain.pos_dim
        size = found.variance.sqrt()[:, None, None]
        unit = found.centred / size
        C = (found.shares[..., None] * unit).mT @ unit
        least = torch.linalg.eigvalsh(C.detach())[..., 0]
        is_flat = found.is_point | (least <= self.tolerance)  # the trace of C is 1
        identity = torch.eye(dim, dtype=C.dtype, device=C.device)
        even = torch.where(found.is_point[:, None, None], identity, identity / dim)
        L = torch.linalg.cholesky(torch.where(is_flat[:, None, None], even, C))
        whitened = torch.linalg.solve_triangular(L, unit.mT, upper=False).mT
        fourth = (found.shares * whitened.square().sum(-1))[..., None] * whitened
        axes = principal_axes(fourth.mT @ whitened, is_flat, self.tolerance)
        ambiguities = {
            "samples at one place (no frame taken)": found.is_point,
            "samples in a line or plane (only their size taken)": is_flat & ~found.is_point,
            "ambiguous axes, equal fourth moments (triangular whitening taken)": axes.is_ambiguous & ~is_flat,
        }
        signs, ambiguities[AMBIGUOUS_SIGNS] = self._signs(axes, whitened @ axes.vectors, found.shares)
        warn("Affine", ambiguities)
        V = axes.vectors[:, None] * signs[..., None, :]
        size, L = size[:, None], L[:, None]
        inverse = torch.linalg.solve_triangular(L, identity.expand_as(L), upper=False)
        return Coordinates(found.mean[:, None].expand(-1, V.shape[1], -1), size * (L @ V), V.mT @ inverse / size)
