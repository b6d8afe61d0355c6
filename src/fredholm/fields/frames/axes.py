"""Axes of symmetric matrices, and the signs that these leave open, which a frame must choose.

Legend
    T        symmetric (s, s)        V      its orthonormal eigenvectors, columns in the order of rising eigenvalues
    z        samples along V         γ_k    Σ p_i z_ik³ / (Σ p_i z_ik²)^(3/2), the skewness along axis k
"""

import dataclasses
import itertools
from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm.fields.frames.frame import Frame


class Axes(NamedTuple):
    """V of B matrices, and where two eigenvalues are too close for V to be determined: there V = I."""

    vectors: Tensor
    """`(B, s, s)`."""
    is_ambiguous: Tensor
    """`(B)` bool."""


def principal_axes(T: Tensor, hopeless: Tensor, tolerance: float) -> Axes:
    """Eigenvectors with finite gradients: a matrix without determined axes is replaced before it is decomposed.

    Args:
        T: `(B, s, s)`, symmetric and >= 0.
        hopeless: `(B)` bool, where T is not to be read.
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
    """A sign for each axis of B sets, `(B, s)`, or in F frames `(B, F, s)`; where some are open, `(B)` bool."""

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
"""What a frame says of sets whose axes have no signs."""


@dataclasses.dataclass(frozen=True)
class AxesFrame(Frame):
    """A frame with axes, whose signs are to be chosen.

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
        """The signs that are taken, `(B, F, s)`: all of them with `average`, else those of `skewed_signs`.

        Axes that are ambiguous themselves keep the signs that they have. Arguments: see `skewed_signs`.
        """
        if self.average:
            return Signs(all_signs(axes.vectors, proper=self.proper), torch.zeros_like(axes.is_ambiguous))
        chosen = skewed_signs(axes.vectors, z, shares, proper=self.proper, tolerance=self.tolerance)
        fixed = torch.where(axes.is_ambiguous[:, None], 1.0, chosen.signs)
        return Signs(fixed[:, None], chosen.is_ambiguous & ~axes.is_ambiguous)
