"""Normalised kernels: weighted means of values, with the measure in the numerator and in the partition function.

Legend
    n_ij ≥ 0     numerator of head h, up to a positive factor a query
    ω_j, m_ij    mass of a point, and its pair weight (`Domain.weigh_pairs`)
    V_h          value matrix, (d, d_in), or (d, d_in + 1) for affine kernels

    κ_ij = n_ij / Z_i · V_h,   Z_i = ∫ n m_i dμ = Σ_l ω_l m_il n_il,   so that Σ_j ω_j m_ij κ_ij ũ_j is a mean of V ũ

Source: ITNet (arXiv 2606.19538), eq. 57-64 and 91-93; there m is the causal mask alone.
"""

import abc
from typing import final

import torch
from torch import Tensor

from fredholm.domains import Domain
from fredholm.kernels.value_mixing import ValueMixing


class Normalised(ValueMixing):
    """Marker: in each of `num_heads` heads, κ is a numerator over its integral, times a value matrix.

    Multiplying the measure by a constant changes nothing, so that a sum over the points so far may be carried along a
    sequence of unknown length. A query that sees no mass gets κ = 0; else `coefficients` sum to 1 in every row.
    """

    @abc.abstractmethod
    def numerator(self, u: Tensor, query: Tensor, visible: Tensor) -> Tensor:
        """n at every pair, `(B, H, Nq, N)`, 0 where not `visible`; a positive factor a row is free.

        Args:
            u: `(B, N, d_in)`.
            query: `(B, Nq, query_dim)`.
            visible: bool, broadcastable to `(B, H, Nq, N)`.
        """

    @final
    def density(self, u: Tensor, domain: Domain, query: Tensor | None, query_domain: Domain | None) -> Tensor:
        """n / Z; see `ValueMixing.density`."""
        query, query_domain = (u if query is None else query), (domain if query_domain is None else query_domain)
        numerator = self.numerator(u, query, self.visible(domain, query_domain))
        partition = (self.pair_mass(domain, numerator.dtype) * numerator).sum(-1, keepdim=True)
        # not `partition > 0`: NaN stays NaN
        density = torch.where(partition == 0, 0.0, numerator / torch.where(partition == 0, 1.0, partition))
        return density.to(u.dtype)
