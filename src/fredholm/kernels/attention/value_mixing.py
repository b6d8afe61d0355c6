"""Kernels that mix values: a number for each pair and head, times a value matrix.

Legend
    a_ij         density of head h at a pair, 0 where the pair is hidden
    ω_j, m_ij    mass of a point, and its pair weight (`Domain.weigh_pairs`)
    V_h          value matrix, (d, d_in), or (d, d_in + 1) for affine kernels

    κ_ij = a_ij V_h,   so that the integral is Σ_j ω_j m_ij a_ij V ũ_j; without m where a has it (`holds_pair_weights`)


Normalised kernels: weighted means of values, with the measure in the numerator and in the partition function.

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
from fredholm.kernels.arithmetic import divided
from fredholm.kernels.kernel import Kernel


class ValueMixing(Kernel):
    """Marker: in each of `num_heads` heads, κ is a number times a value matrix. A point without mass is hidden."""

    num_heads: int
    counts_points = True

    @abc.abstractmethod
    def density(self, u: Tensor, domain: Domain, query: Tensor | None, query_domain: Domain | None) -> Tensor:
        """a at every pair, `(B, H, Nq, N)`, 0 where not `visible`; arguments as in `matrix`."""

    @abc.abstractmethod
    def value_matrices(self) -> Tensor:
        """V, `(H, d, d_in)`, or with d_in + 1 columns from an affine kernel."""

    @final
    def visible(self, domain: Domain, query_domain: Domain) -> Tensor:
        """Which pairs the measure, the masks and causality leave, `(B', H', Nq or 1, N)` bool."""
        seen = self.mass(domain) > 0
        if domain.pair_bias is not None:
            self.check_pair_weights(domain)
            bias = domain.pair_bias
            seen = seen & (bias if bias.dtype == torch.bool else bias > -torch.inf)
        if self.is_causal:
            counts = preceding_counts(query_domain, domain)[:, None, :, None]
            seen = seen & (torch.arange(domain.num_points, device=domain.device) < counts)
        return seen

    @final
    def check_pair_weights(self, domain: Domain) -> None:
        """Raises a ValueError unless pair weights, where there are some, are for one head or for all."""
        if domain.pair_bias is not None and domain.pair_bias.shape[1] not in (1, self.num_heads):
            raise ValueError(
                f"{type(self).__name__}: pair weights must be for 1 or {self.num_heads} heads; "
                f"the domain has them for {domain.pair_bias.shape[1]}"
            )

    @final
    def mass(self, domain: Domain) -> Tensor:
        """ω, as it applies to pairs, `(B', 1, 1, N)`."""
        mass = self.measure(domain)
        return (mass if mass.ndim == 2 else mass[None])[:, None, None]

    @final
    def pair_mass(self, domain: Domain, dtype: torch.dtype) -> Tensor:
        """ω_j m_ij, `(B', H', Nq or 1, N)`."""
        mass = self.mass(domain).to(dtype)
        return mass if domain.pair_weights is None else mass * domain.pair_weights.to(dtype)

    @final
    def matrix(
        self, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        """κ, `(B, Nq, N, H·d, d_in)`; see `Kernel.matrix`."""
        density = self.density(u, domain, query, query_domain)
        kappa = torch.einsum("bhqk,hoi->bqkhoi", density, self.value_matrices().to(density.dtype))
        return kappa.flatten(-3, -2)

    @final
    def coefficients(
        self, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        """ω_j m_ij a_ij, what each point contributes to a head's integral, `(B, H, Nq, N)`; m as in the legend."""
        density = self.density(u, domain, query, query_domain)
        if self.holds_pair_weights:
            return density * self.mass(domain).to(density.dtype)
        return density * self.pair_mass(domain, density.dtype)


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
        return divided(numerator, partition).to(u.dtype)
