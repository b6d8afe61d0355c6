"""Series of hops that split over the two points of a pair: all of it by sums over the points, and one small solve."""

import dataclasses
import functools
from typing import final

import torch
from torch import Tensor

from fredholm._precision import autocast_dtype, under_autocast, without_autocast
from fredholm.domains import Domain
from fredholm.evaluation.evaluation import Route
from fredholm.evaluation.integral import Integral
from fredholm.evaluation.recomputed import blocks_of
from fredholm.kernels import RowNorm
from fredholm.kernels.heads import each_query_head
from fredholm.kernels.kernel import divided
from fredholm.kernels.linear_algebra import solve
from fredholm.kernels.neumann.factorised_infinite_attention import FactorisedNeumann, over_row_norms
from fredholm.kernels.neumann.infinite_attention import block_norm


@final
@dataclasses.dataclass(frozen=True)
class Woodbury(Route[FactorisedNeumann]):
    """For `FactorisedNeumann` kernels that are not causal: O(N r²) time, no N x N matrices, an r x r solve per head.

    Values are not formed either, since Σ ω ψ ⊗ v is Σ ω ψ ⊗ [u, 1] times [W_V, b_V]ᵀ. Sums over the points are in at
    least float32, or under row norms in float64, and everything after them in float64.

    Args:
        block, kept: points at a time, and the largest size of a signal whose features are kept for the backward pass;
            see `blocks_of`.
    """

    marker = FactorisedNeumann
    spans_processes = True
    block: int | None = None
    kept: int = 1 << 25

    def refusals(self, integral: Integral[FactorisedNeumann]) -> list[str]:
        """Refuses causal kernels; see `Route.refusals`."""
        return ["the kernel is causal, and a sum over all points is not"] if integral.kernel.is_causal else []

    def compute(self, integral: Integral[FactorisedNeumann]) -> Tensor:
        """See `Route.compute`."""
        kernel, u, domain = integral.kernel, integral.u, integral.domain
        blocks, dtype = blocks_of(u, self.block, self.kept, kernel), integral.working_dtype
        # with row norms all features of a row may be tiny
        least = torch.float64 if isinstance(kernel.norm, RowNorm) else torch.float32
        points = _Points(kernel, domain, torch.promote_types(dtype, least))
        mass = torch.atleast_2d(kernel.measure(domain)).to(points.dtype).expand(u.shape[:2])
        signal, mass = blocks.cut(u), blocks.cut(mass)
        own = list(blocks.each(points.queries, signal))
        queries = own if integral.own_queries else list(blocks.each(points.queries, blocks.cut(integral.query)))
        with without_autocast(u):
            total = None
            if isinstance(kernel.norm, RowNorm):
                total = domain.total(blocks.sum(points.key_totals, signal, mass)[0].double())
                total = each_query_head(total, kernel.num_heads)
            # features are in float64 where exponentials need it, not in every block
            sums = blocks.sum(functools.partial(points.products, total), signal, mass, own)
            sums = [domain.total(each.double()) for each in sums]
            table = _table(kernel, sums, total)

            def read(phi: Tensor) -> Tensor:
                phi = _over_rows(phi, total)
                return (phi @ table.to(phi.dtype)).transpose(1, 2).flatten(2).to(dtype)

            out = list(blocks.each(read, queries))
        return out[0] if len(out) == 1 else torch.cat(out, dim=1)


def _table(kernel: FactorisedNeumann, sums: list[Tensor], total: Tensor | None) -> Tensor:
    """s (I - s M)⁻¹ Σ ω ψ ⊗ v, `(B, H, r, d)`, in float64, from `_Points.products`."""
    moments, carried, *grams = sums
    assert kernel.discount is not None
    scale = kernel.discount().double()[:, None, None]
    if grams:
        squares = (grams[0] * grams[1]).sum((-2, -1), keepdim=True)  # c²
        scale = divided(scale, block_norm(squares))
    size = _balance(grams, total)
    moments, carried = moments * size.mT / size, carried / size
    identity = torch.eye(moments.shape[-1], dtype=moments.dtype, device=moments.device)
    return size * solve(identity - scale * moments, scale * carried @ kernel.value_matrices().double().mT)


def _balance(grams: list[Tensor], total: Tensor | None) -> Tensor:
    """Scales d, `(B, H, r, 1)`, such that ψ / d and d φ give the same integral, and no entry of s M exceeds γ.

    Otherwise a feature that is tiny in all keys and large in a query makes M so ill-scaled that the solve loses all
    accuracy. Under row norms, d = Σ ω ψ, and the rows of s M sum to γ; else d⁴ = Σ ω ψ² / Σ ω φ².
    """
    if total is None:
        of_phi, of_psi = (gram.detach().diagonal(dim1=-2, dim2=-1) for gram in grams)
        size = (of_psi / of_phi) ** 0.25
    else:
        size = total.detach().double()
    return torch.where((size > 0) & size.isfinite(), size, 1.0)[..., None]


def _over_rows(phi: Tensor, total: Tensor | None) -> Tensor:
    """φ `(B, H, n, r)`, divided by the norms of its rows, φ·Σ ω ψ, if that sum is given."""
    return phi if total is None else over_row_norms(phi, total)


def _at_least(dtype: torch.dtype, part: Tensor) -> Tensor:
    return part.to(torch.promote_types(dtype, part.dtype))


@final
class _Points:
    """Features of a block of points, and their contributions to sums.

    Args:
        kernel: the kernel with the features.
        domain: the points.
        dtype: least precision of features and sums.
    """

    def __init__(self, kernel: FactorisedNeumann, domain: Domain, dtype: torch.dtype) -> None:
        self.kernel, self.dtype, self.autocast = kernel, dtype, autocast_dtype(domain.pos)
        self.hides = domain.mask is not None or domain.uniform_parts is None

    def queries(self, u: Tensor) -> Tensor:
        """φ, `(B, H, n, r)`."""
        return _at_least(self.dtype, self.kernel.query_features(u))

    def keys(self, u: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
        """ψ and ω ψ, `(B, H', n, r)`, 0 at points without mass."""
        with under_autocast(self.autocast, u):
            psi = _at_least(self.dtype, self.kernel.key_features(u))
        mass = mass[:, None, :, None]
        psi = torch.where(mass > 0, psi, 0.0) if self.hides else psi
        return psi, psi * mass

    def key_totals(self, u: Tensor, mass: Tensor) -> tuple[Tensor]:
        """Σ ω ψ, `(B, H', r)`."""
        return (self.keys(u, mass)[1].sum(2),)

    def products(self, total: Tensor | None, u: Tensor, mass: Tensor, phi: Tensor) -> tuple[Tensor, ...]:
        """M = Σ ω ψ ⊗ φ, Σ ω ψ ⊗ [u, 1], and for the norm of the hop Σ ω φ ⊗ φ and Σ ω ψ ⊗ ψ; all `(B, H, r, …)`."""
        phi, (psi, weighed) = _over_rows(phi, total), self.keys(u, mass)
        phi, psi, weighed = (_at_least(torch.promote_types(phi.dtype, psi.dtype), part) for part in (phi, psi, weighed))
        heads, side_by_side = phi.shape[1], weighed.transpose(1, 2).flatten(2)  # the memory layout of projections
        carried = (u.to(weighed.dtype).mT @ side_by_side).unflatten(2, weighed.shape[1::2]).permute(0, 2, 3, 1)
        if self.kernel.is_affine:
            carried = torch.cat([carried, weighed.sum(2)[..., None]], dim=-1)
        carried, moments = each_query_head(carried, heads), each_query_head(weighed, heads).mT @ phi
        if total is not None:
            return moments, carried
        return moments, carried, (mass[:, None, :, None] * phi).mT @ phi, each_query_head(weighed.mT @ psi, heads)
