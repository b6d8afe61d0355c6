"""Series of hops that split over the two points of a pair: all of it by sums over the points, and one small solve."""

import dataclasses
import functools
from typing import final

import torch
from torch import Tensor

from fredholm.domains import Domain
from fredholm.evaluation.evaluation import Evaluation
from fredholm.evaluation.factors import working_dtype
from fredholm.evaluation.point_blocks import map_over_blocks, sum_over_blocks
from fredholm.kernels import FactorisedNeumann, Kernel, RowNorm
from fredholm.kernels.head_blocks import each_query_head
from fredholm.kernels.hop_norms import divided


@final
@dataclasses.dataclass(frozen=True)
class Woodbury(Evaluation):
    """For `FactorisedNeumann` kernels that are not causal: O(N r²) time, N x N never formed, an r x r solve a head.

    Values are never formed either: Σ ω ψ ⊗ v is Σ ω ψ ⊗ [u, 1] times [W_V, b_V]ᵀ. Sums over the points are kept in at
    least float32, all that is made of them in float64.

    Args:
        block: points at a time, whose features are in memory together; where there are more, the backward pass
            computes them anew.
    """

    marker = FactorisedNeumann
    block: int = 8192

    def refusals(
        self, kernel: Kernel, u: Tensor, domain: Domain, query: Tensor | None, query_domain: Domain | None
    ) -> list[str]:
        """Refuses causal kernels; see `Evaluation.unsupported_reasons`."""
        return ["the kernel is causal, and a sum over all points is not"] if kernel.is_causal else []

    def integrate(
        self, kernel: Kernel, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        """See `Evaluation.integrate`."""
        assert isinstance(kernel, FactorisedNeumann)
        dtype = working_dtype(u)
        sides = _Sides(kernel, domain, torch.promote_types(dtype, torch.float32))
        points = u, torch.atleast_2d(kernel.measure(domain)).to(sides.dtype).expand(u.shape[:2])
        total = None
        if isinstance(kernel.norm, RowNorm):
            (total,) = sum_over_blocks(sides.key_totals, points, self.block)
        sums = sum_over_blocks(functools.partial(sides.products, total), points, self.block)
        with torch.autocast(u.device.type, enabled=False):
            table = _table(kernel, sums).to(sides.dtype)

        def read(query: Tensor) -> Tensor:
            phi = sides.queries(query, total)
            with torch.autocast(query.device.type, enabled=False):
                return (phi @ table).transpose(1, 2).flatten(2).to(dtype)

        return map_over_blocks(read, (u if query is None else query,), self.block)


def _table(kernel: FactorisedNeumann, sums: list[Tensor]) -> Tensor:
    """s (I - s M)⁻¹ Σ ω ψ ⊗ v, `(B, H, r, d)`, in float64, from what `_Sides.products` gives."""
    moments, carried, *grams = (part.double() for part in sums)
    assert kernel.discount is not None
    scale = kernel.discount().double()[:, None, None]
    if grams:
        squares = (grams[0] * grams[1]).sum((-2, -1), keepdim=True)  # c²
        root = torch.where(squares == 0, 1.0, squares).sqrt()
        scale = torch.where(squares == 0, 0.0, scale / root)
    identity = torch.eye(moments.shape[-1], dtype=moments.dtype, device=moments.device)
    return torch.linalg.solve(identity - scale * moments, scale * carried @ kernel.value_matrices().double().mT)


@final
class _Sides:
    """Features of a block of points, and what they contribute to sums.

    Args:
        kernel: gives the features.
        domain: where the points are.
        dtype: of sums.
    """

    def __init__(self, kernel: FactorisedNeumann, domain: Domain, dtype: torch.dtype) -> None:
        self.kernel, self.dtype = kernel, dtype
        self.hides = domain.mask is not None or domain.uniform_parts is None

    def queries(self, u: Tensor, total: Tensor | None) -> Tensor:
        """φ `(B, H, n, r)`, over the norm of its row where Σ ω ψ is given."""
        phi = self.kernel.query_features(u).to(self.dtype)
        if total is None:
            return phi
        with torch.autocast(u.device.type, enabled=False):
            return divided(phi, phi @ each_query_head(total, phi.shape[1])[..., None])

    def keys(self, u: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
        """ψ and ω ψ, `(B, H', n, r)`, 0 where no mass is."""
        psi = self.kernel.key_features(u).to(self.dtype)
        mass = mass[:, None, :, None]
        psi = torch.where(mass > 0, psi, 0.0) if self.hides else psi
        return psi, psi * mass

    def key_totals(self, u: Tensor, mass: Tensor) -> tuple[Tensor]:
        """Σ ω ψ, `(B, H', r)`."""
        return (self.keys(u, mass)[1].sum(2),)

    def products(self, total: Tensor | None, u: Tensor, mass: Tensor) -> tuple[Tensor, ...]:
        """M = Σ ω ψ ⊗ φ, Σ ω ψ ⊗ [u, 1], and for the norm of the hop Σ ω φ ⊗ φ and Σ ω ψ ⊗ ψ; all `(B, H, r, …)`."""
        phi, (psi, weighed) = self.queries(u, total), self.keys(u, mass)
        with torch.autocast(u.device.type, enabled=False):
            heads = phi.shape[1]
            carried = weighed.transpose(2, 3).flatten(1, 2) @ self.kernel.multiplicand(u).to(self.dtype)
            carried = each_query_head(carried.unflatten(1, weighed.shape[1::2]), heads)
            moments = each_query_head(weighed, heads).mT @ phi
            if total is not None:
                return moments, carried
            return moments, carried, (mass[:, None, :, None] * phi).mT @ phi, each_query_head(weighed.mT @ psi, heads)
