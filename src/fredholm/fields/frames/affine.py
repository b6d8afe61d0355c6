"""The frame of centroid, covariance and fourth moments.

Legend
    C      Σ p_i (x_i - μ)(x_i - μ)ᵀ = L Lᵀ, L lower triangular        y_i    L⁻¹ (x_i - μ): whitened samples
    T      Σ p_i ‖y_i‖² y_i y_iᵀ = V diag(τ) Vᵀ, τ_1 < ... < τ_n

    μ = Σ p_i x_i,   M = L V,   with signs of its columns as in `rotational.py`, from the skewness of Vᵀ y

Why not the square root of C, as the paper says (theorem 7): for C' = A C Aᵀ the root is A C^(1/2) Q with a rotation Q
that depends on A, so that M' = A M fails unless A and C commute; whitened samples are known up to a rotation. Their
fourth moments turn with them, T' = Q T Qᵀ, and its axes undo Q.

Source: Neural Fields Meet Attention, theorem 7; axes from two scatter matrices: Tyler et al. 2009.
"""

import dataclasses
from typing import final

import torch

from fredholm.domains import Domain
from fredholm.fields.frames.axes import AMBIGUOUS_SIGNS, AxesFrame, principal_axes
from fredholm.fields.frames.coordinates import Coordinates
from fredholm.fields.frames.moments import moments, warn


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
        told = {
            "samples at one place (no frame taken)": found.is_point,
            "samples in a line or plane (only their size taken)": is_flat & ~found.is_point,
            "ambiguous axes, equal fourth moments (triangular whitening taken)": axes.is_ambiguous & ~is_flat,
        }
        signs, told[AMBIGUOUS_SIGNS] = self._signs(axes, whitened @ axes.vectors, found.shares)
        warn("Affine", told)
        V = axes.vectors[:, None] * signs[..., None, :]
        size, L = size[:, None], L[:, None]
        inverse = torch.linalg.solve_triangular(L, identity.expand_as(L), upper=False)
        return Coordinates(found.mean[:, None].expand(-1, V.shape[1], -1), size * (L @ V), V.mT @ inverse / size)
