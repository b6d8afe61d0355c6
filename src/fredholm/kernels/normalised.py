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

from fredholm.domains import Domain, preceding_counts
from fredholm.kernels.kernel import Kernel


class Normalised(Kernel):
    """Marker: in each of `num_heads` heads, κ is a numerator over its integral, times a value matrix.

    Multiplying the measure by a constant changes nothing, so that a sum over the points so far may be carried along a
    sequence of unknown length. A point without mass is hidden; a query that sees no mass gets κ = 0.
    """

    num_heads: int
    counts_points = True

    @abc.abstractmethod
    def numerator(self, u: Tensor, query: Tensor, visible: Tensor) -> Tensor:
        """n at every pair, `(B, H, Nq, N)`, 0 where not `visible`; a positive factor a row is free.

        Args:
            u: `(B, N, d_in)`.
            query: `(B, Nq, query_dim)`.
            visible: bool, broadcastable to `(B, H, Nq, N)`.
        """

    @abc.abstractmethod
    def value_matrices(self) -> Tensor:
        """V, `(H, d, d_in)`, or with d_in + 1 columns from an affine kernel."""

    @final
    def visible(self, domain: Domain, query_domain: Domain) -> Tensor:
        """Which pairs the measure, the masks and causality leave, `(B', H', Nq or 1, N)` bool."""
        seen = self._mass(domain) > 0
        if domain.pair_bias is not None:
            bias = domain.pair_bias
            if bias.shape[1] not in (1, self.num_heads):
                raise ValueError(
                    f"{type(self).__name__}: pair weights must be for 1 or {self.num_heads} heads; "
                    f"the domain has them for {bias.shape[1]}"
                )
            seen = seen & (bias if bias.dtype == torch.bool else bias > -torch.inf)
        if self.is_causal:
            counts = preceding_counts(query_domain, domain)[:, None, :, None]
            seen = seen & (torch.arange(domain.num_points, device=domain.device) < counts)
        return seen

    @final
    def _mass(self, domain: Domain) -> Tensor:
        mass = self.measure(domain)
        return (mass if mass.ndim == 2 else mass[None])[:, None, None]  # (B', 1, 1, N)

    @final
    def matrix(
        self, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        """κ, `(B, Nq, N, H·d, d_in)`; see `Kernel.matrix`. Pair weights enter through Z alone."""
        density, _ = self._density_and_mass(u, domain, query, query_domain)
        kappa = torch.einsum("bhqk,hoi->bqkhoi", density, self.value_matrices().to(density.dtype))
        return kappa.flatten(-3, -2)

    @final
    def coefficients(
        self, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        """ω_j m_ij n_ij / Z_i, the share of each point in the mean, `(B, H, Nq, N)`: rows sum to 1, or are 0."""
        density, mass = self._density_and_mass(u, domain, query, query_domain)
        return density * mass

    def _density_and_mass(
        self, u: Tensor, domain: Domain, query: Tensor | None, query_domain: Domain | None
    ) -> tuple[Tensor, Tensor]:
        query, query_domain = (u if query is None else query), (domain if query_domain is None else query_domain)
        numerator = self.numerator(u, query, self.visible(domain, query_domain))
        mass = self._mass(domain).to(u.dtype)
        if domain.pair_weights is not None:
            mass = mass * domain.pair_weights.to(u.dtype)
        partition = (mass * numerator).sum(-1, keepdim=True)
        return torch.where(partition > 0, numerator / torch.where(partition > 0, partition, 1.0), 0.0), mass
