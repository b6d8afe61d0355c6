"""Kernels with central queries: pooled sums, and one context for all queries."""

import dataclasses
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import linear

from fredholm._precision import without_autocast
from fredholm.domains import Domain
from fredholm.evaluation.evaluation import Route
from fredholm.evaluation.integral import Integral
from fredholm.evaluation.recomputed import blocks_of
from fredholm.kernels.kernel import divided
from fredholm.kernels.neumann.linear_infinite_attention import CentralForm, CentralQueries, measured_energies


@final
@dataclasses.dataclass(frozen=True)
class CentralPooling(Route[CentralQueries]):
    """For `CentralQueries` kernels: one pass over the points for energies and one per power step, O(N) time.

    Only energies need the queries of all points. Scores are (W_qᵀ q̄)·u(y) + q̄·b_q, and a context is W_V ∫ a u dμ + b_V,
    so that keys and values are never formed. Sums are kept in at least float32.

    Args:
        block, kept: points at a time, and the largest size of a signal whose queries and scores are kept for the
            backward pass; see `blocks_of`.
    """

    marker = CentralQueries
    spans_processes = True
    block: int | None = None
    kept: int = 1 << 24

    def refusals(self, integral: Integral[CentralQueries]) -> list[str]:
        """Refuses nothing; see `Route.refusals`."""
        return []

    def compute(self, integral: Integral[CentralQueries]) -> Tensor:
        """See `Route.compute`; the result is one row, expanded."""
        kernel, u = integral.kernel, integral.u
        dtype = integral.working_dtype
        wide = torch.promote_types(dtype, torch.float32)
        mass = kernel.given_mass(integral.domain, wide).expand(u.shape[:2])
        context = self._context(kernel, u, mass, integral.domain).flatten(1)
        return context.to(dtype)[:, None].expand(-1, integral.num_queries, -1)

    def _context(self, kernel: CentralQueries, u: Tensor, mass: Tensor, domain: Domain) -> Tensor:
        """γ ∫ a V ũ dμ, `(B, H, d)`, in the dtype of the masses."""
        form = kernel.central_form()
        centre, energy = self._sum(_energies(form, u.shape[-1]), u, mass, domain)
        with without_autocast(u):
            weight, value = form.weight.to(mass.dtype), kernel.value_matrices().to(mass.dtype)
            central = divided(centre, energy[..., None])  # q̄: (B, H, c, d)
            mean = self._mean(central @ weight, u, mass, domain)
            for _ in range(form.power_steps - 1):
                mean = self._mean(mean @ weight.mT @ weight, u, mass, domain)
            share = divided(energy, energy.sum(-1, keepdim=True))
            context = (share[:, :, None] @ mean @ value.mT)[:, :, 0]
            gamma = kernel.scale()
            return context if gamma is None else context * gamma.to(mass.dtype)[:, None]

    def _sum(
        self, part: Callable[[Tensor, Tensor], tuple[Tensor, ...]], u: Tensor, mass: Tensor, domain: Domain
    ) -> list[Tensor]:
        blocks = blocks_of(u, self.block, self.kept)
        return [domain.total(sums) for sums in blocks.sum(part, blocks.cut(u), blocks.cut(mass))]

    def _mean(self, direction: Tensor, u: Tensor, mass: Tensor, domain: Domain) -> Tensor:
        """∫ a ũ dμ from [W_q, b_q]ᵀ q̄, both `(B, H, c, C)`, or with C + 1 columns."""
        channels = u.shape[-1]
        toward = direction.flatten(1, 2)

        def part(u: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
            with without_autocast(u):
                u = u.to(mass.dtype)
                score = u @ toward[..., :channels].mT
                if toward.shape[-1] > channels:
                    score = score + toward[:, None, :, channels]
                score = torch.relu(score) * mass[..., None]  # (B, n, H·c)
                return score.mT @ u, score.sum(1)

        pooled, total = self._sum(part, u, mass, domain)
        sums = pooled if toward.shape[-1] == channels else torch.cat([pooled, total[..., None]], dim=-1)
        return divided(sums, total[..., None]).unflatten(1, direction.shape[1:3])


def _energies(form: CentralForm, channels: int) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """∫ p_m e q dμ `(B, H, c, d)` and ∫ p_m e dμ `(B, H, c)` over a block."""
    heads = form.weight.shape[0]
    weight = form.weight.flatten(0, 1)
    bias = weight[:, channels] if weight.shape[-1] > channels else None

    def part(u: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
        q = linear(u, weight[:, :channels], bias)
        with without_autocast(u):
            q = q.to(mass.dtype).unflatten(-1, (heads, -1)).transpose(1, 2)
            measured = measured_energies(q, mass[:, None], form.groups)  # (B, H, n, c)
            return measured.mT @ q, measured.sum(2)

    return part
