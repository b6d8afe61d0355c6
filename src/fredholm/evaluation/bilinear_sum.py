"""Dot products of features without a normaliser: the sum over keys first, then the query; causally, by chunks."""

import dataclasses
from typing import final

import torch
from torch import Tensor

from fredholm.evaluation.causal_sums import causal_sums, order_refusals, reset_refusals
from fredholm.evaluation.evaluation import StatefulRoute
from fredholm.evaluation.integral import Integral
from fredholm.kernels import Bilinear, State


@final
@dataclasses.dataclass(frozen=True)
class BilinearSum(StatefulRoute[Bilinear]):
    """For `Bilinear` kernels: O(N) time and memory, Σ_j ω_j ψ_j ⊗ v_j being formed once, or chunk by chunk.

    Sums are kept in at least float32.

    Args:
        chunk: points that a causal kernel treats pair by pair at a time.
    """

    marker = Bilinear
    chunk: int = 64

    def refusals(self, integral: Integral[Bilinear]) -> list[str]:
        """Refuses causal kernels whose i-th query does not see just the first i points."""
        return order_refusals(integral) if integral.kernel.is_causal else []

    def compute(self, integral: Integral[Bilinear]) -> Tensor:
        """See `Route.compute`."""
        if integral.kernel.is_causal:
            return self.advance(integral)[0]
        phi, psi, weighed, dtype = _pieces(integral)
        with torch.autocast(phi.device.type, enabled=False):
            return _by_channel(phi @ (psi.mT @ weighed)).to(dtype)

    def run_refusals(self, integral: Integral[Bilinear], state: State | None, reset: Tensor | None) -> list[str]:
        """Refuses a reset, which a sum by chunks does not see."""
        return reset_refusals(reset)

    def advance(
        self, integral: Integral[Bilinear], state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """See `StatefulRoute.advance`."""
        phi, psi, weighed, dtype = _pieces(integral)
        with torch.autocast(phi.device.type, enabled=False):
            before = None if state is None else state[0].to(psi.dtype)
            out, total = causal_sums(phi[:, :, None], psi, weighed, before, self.chunk)
            return _by_channel(out[:, :, 0]).to(dtype), (total,)


def _pieces(integral: Integral[Bilinear]) -> tuple[Tensor, Tensor, Tensor, torch.dtype]:
    """φ `(B, H, Nq, r)`, ψ `(B, H, N, r)`, ω v `(B, H, N, d)`, in the dtype of sums; and the dtype of the result."""
    kernel = integral.kernel
    form = kernel.bilinear_form(integral.u, integral.query)
    dtype = torch.promote_types(form.value.dtype, torch.float32)
    phi, psi, value = (part.to(dtype) for part in form)
    mass, domain = kernel.mass(integral.domain).to(dtype).mT, integral.domain
    if domain.mask is not None or domain.uniform_parts is None:
        psi = torch.where(mass > 0, psi, 0.0)  # a point without mass is hidden
    return phi, psi, value * mass, form.value.dtype


def _by_channel(heads: Tensor) -> Tensor:
    """`(B, H, Nq, d)` to `(B, Nq, H·d)`."""
    return heads.transpose(1, 2).flatten(2)
