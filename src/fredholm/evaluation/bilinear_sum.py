"""Dot products of features without a normaliser: the sum over keys first, then the query; causally, by chunks."""

import dataclasses
from typing import final

import torch
from torch import Tensor

from fredholm.domains import Domain, is_ordered_by_index
from fredholm.evaluation.causal_sums import causal_sums
from fredholm.evaluation.evaluation import StatefulEvaluation
from fredholm.kernels import Bilinear, Kernel, State


@final
@dataclasses.dataclass(frozen=True)
class BilinearSum(StatefulEvaluation):
    """For `Bilinear` kernels: O(N) time and memory, Σ_j ω_j ψ_j ⊗ v_j being formed once, or chunk by chunk.

    Sums are kept in at least float32.

    Args:
        chunk: points that a causal kernel treats pair by pair at a time.
    """

    marker = Bilinear
    chunk: int = 64

    def refusals(
        self, kernel: Kernel, u: Tensor, domain: Domain, query: Tensor | None, query_domain: Domain | None
    ) -> list[str]:
        """Refuses causal kernels whose i-th query does not see just the first i points."""
        if kernel.is_causal and query_domain is not None and query_domain is not domain:
            return ["the kernel is causal and the queries are not the points of the signal"]
        if kernel.is_causal and not is_ordered_by_index(domain):
            return ["points that share a time see each other"]
        return []

    def integrate(
        self, kernel: Kernel, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        """See `Evaluation.integrate`."""
        if kernel.is_causal:
            return self.run(kernel, u, domain)[0]
        phi, psi, weighed, dtype = _pieces(kernel, u, u if query is None else query, domain)
        with torch.autocast(u.device.type, enabled=False):
            return _by_channel(phi @ (psi.mT @ weighed)).to(dtype)

    def run(
        self, kernel: Kernel, u: Tensor, domain: Domain, state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """See `StatefulEvaluation.run`.

        Raises:
            ValueError: on a reset, which a sum by chunks does not see.
        """
        if reset is not None:
            raise ValueError("BilinearSum: a sum by chunks sees no reset; use evaluation=StepLoop(), or split the u")
        phi, psi, weighed, dtype = _pieces(kernel, u, u, domain)
        with torch.autocast(u.device.type, enabled=False):
            before = None if state is None else state[0].to(psi.dtype)
            out, total = causal_sums(phi[:, :, None], psi, weighed, before, self.chunk)
            return _by_channel(out[:, :, 0]).to(dtype), (total,)


def _pieces(kernel: Kernel, u: Tensor, query: Tensor, domain: Domain) -> tuple[Tensor, Tensor, Tensor, torch.dtype]:
    """φ `(B, H, Nq, r)`, ψ `(B, H, N, r)`, ω v `(B, H, N, d)`, in the dtype of sums; and the dtype of the result."""
    assert isinstance(kernel, Bilinear)
    form = kernel.bilinear_form(u, query)
    dtype = torch.promote_types(form.value.dtype, torch.float32)
    phi, psi, value = (part.to(dtype) for part in form)
    return phi, psi, value * kernel.mass(domain).to(dtype).mT, form.value.dtype


def _by_channel(heads: Tensor) -> Tensor:
    """`(B, H, Nq, d)` to `(B, Nq, H·d)`."""
    return heads.transpose(1, 2).flatten(2)
