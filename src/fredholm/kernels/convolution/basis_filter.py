"""Stationary kernels that are a sum of a few basis functions of the displacement.

Legend
    x, y       query and key position, s coordinates        φ_k    w scalar functions of x - y
    M_k        one d_out x d_in matrix each, block-diagonal in g groups of channels

    κ(x, y) = Σ_k φ_k(x - y) M_k                 so that ∫ κ(x, y) u(y) dμ(y) = Σ_k M_k ∫ φ_k(x - y) u(y) dμ(y)

A small network whose last layer is linear is such a kernel: its last hidden layer is φ, its output weights are M.
"""

import abc
import math
from typing import final

import torch
from torch import Tensor

from fredholm._precision import without_autocast
from fredholm.domains import Domain, GridBlock, whole_grid
from fredholm.kernels.convolution.stationary import LATTICE_TOLERANCE, DisplacementFilter


class BasisFilter(DisplacementFilter):
    """Marker: κ(x, y) = Σ_k φ_k(x - y) M_k in `groups` groups of channels, at any two points.

    Causality is by position: a query sees points that do not lie after it, whatever their order. On a
    torus displacements are the shortest ones, and a causal kernel sees half of it.

    Attributes:
        horizon: κ = 0 where a coordinate of x - y is at least this; None: κ covers the whole input.
        num_basis: w.
    """

    horizon: float | None
    num_basis: int
    reads_query = False
    reads_past_by_position = True
    counts_points = True

    @abc.abstractmethod
    def basis(self, displacement: Tensor) -> Tensor:
        """φ at displacements x - y, `(..., s)`: `(..., w)`, in at least float32.

        0 where κ vanishes: beyond the horizon, and where y comes after x for a causal kernel (two points at one time
        see each other).
        """

    @abc.abstractmethod
    def basis_weight(self) -> Tensor:
        """M, `(w, d_out, d_in / groups)`; a kernel with weight dropout draws its mask here, once per call."""

    def basis_on(self, displacement: Tensor, keys: GridBlock | None) -> Tensor:
        """φ at displacements from keys that all lie on one regular grid, `keys`; None: they lie on no grid.

        Equals `basis` unless overridden by a kernel that smooths itself on grids finer than those of its training.
        """
        return self.basis(displacement)

    @final
    def lattice_basis(self, keys: GridBlock, queries: GridBlock) -> Tensor:
        """φ at the taps of `filter_geometry`, `(*size, w)`.

        Raises:
            ValueError: where there is no filter between the two grids.
        """
        return self.basis_on(self.tap_displacements(keys, queries), keys)

    @final
    def unfiltered(self, keys: GridBlock, queries: GridBlock) -> str | None:
        """See `DisplacementFilter.unfiltered`."""
        return "on a torus the filter does not end" if keys.periodic or queries.periodic else None

    @final
    def tap_range(self, back: int, first: float, n: int, h: float) -> tuple[int, int]:
        """See `DisplacementFilter.tap_range`: the taps within the horizon."""
        least, most = super().tap_range(back, first, n, h)
        if self.horizon is not None:
            reach = self.horizon / h
            least = max(least, math.ceil(first + back - reach - LATTICE_TOLERANCE))
            most = min(most, math.floor(first + back + reach + LATTICE_TOLERANCE))
        return least, most

    @final
    def filter_weight(self, keys: GridBlock, queries: GridBlock) -> Tensor:
        """See `Stationary.filter_weight`."""
        return self._weigh(self.lattice_basis(keys, queries)).movedim((-2, -1), (0, 1))

    @final
    def values(self, displacement: Tensor) -> Tensor:
        """κ at displacements `(..., s)`, without the zeros between groups: `(..., d_out, d_in / groups)`."""
        return self._weigh(self.basis(displacement))

    def _weigh(self, basis: Tensor) -> Tensor:
        """Σ_k φ_k M_k, `(..., d_out, d_in / groups)`, in the parameters' dtype."""
        weight = self.basis_weight()
        like = next(self.parameters(), weight)
        with without_autocast(basis):
            dtype = torch.promote_types(basis.dtype, weight.dtype)
            return torch.tensordot(basis.to(dtype), weight.to(dtype), dims=1).to(like.dtype)

    @final
    def matrix(
        self, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        """κ, `(B, Nq, N, d_out, d_in)`: the basis at the displacement times M, pair by pair; see `Kernel.matrix`."""
        at = domain if query_domain is None else query_domain
        blocks = self._weigh(self.basis_on(domain.displacement(at.pos), whole_grid(domain))).to(u.dtype)
        blocks = blocks.unflatten(-2, (self.groups, -1))  # (..., g, d_out / g, d_in / g)
        same = torch.eye(self.groups, dtype=blocks.dtype, device=blocks.device)
        kappa = torch.einsum("...goi,gf->...gofi", blocks, same).flatten(-2, -1).flatten(-3, -2)
        kappa = kappa if kappa.ndim == 5 else kappa[None]
        return kappa.expand(u.shape[0], *kappa.shape[1:])
