"""Causal kernels of one number a pair: by chunks."""

import dataclasses
from typing import final

import torch
from torch import Tensor

from fredholm.domains import Domain, is_ordered_by_index
from fredholm.evaluation.causal_sums import causal_sums
from fredholm.evaluation.evaluation import StatefulEvaluation
from fredholm.evaluation.factors import working_dtype
from fredholm.evaluation.past import check_state_fits, mean_of
from fredholm.kernels import FeatureProduct, Kernel, State


@final
@dataclasses.dataclass(frozen=True)
class FeatureProductScan(StatefulEvaluation):
    """For causal `FeatureProduct` kernels: O(N) time and memory, Σ_j ω_j ψ_j ⊗ u_j being handed on from chunk to chunk.

    Sums are kept in at least float32.

    Args:
        chunk: points that are treated pair by pair at a time.
    """

    marker = FeatureProduct
    chunk: int = 64

    def refusals(
        self, kernel: Kernel, u: Tensor, domain: Domain, query: Tensor | None, query_domain: Domain | None
    ) -> list[str]:
        """Refuses kernels that look ahead, other queries, and points that share a time."""
        reasons = [] if kernel.is_causal else ["the kernel looks ahead (is_causal is off)"]
        if query_domain is not None and query_domain is not domain:
            reasons.append("the queries are not the points of the signal")
        if not is_ordered_by_index(domain):
            reasons.append("points that share a time see each other")
        return reasons

    def integrate(
        self, kernel: Kernel, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        """See `Evaluation.integrate`."""
        assert isinstance(kernel, FeatureProduct)
        return self._run(kernel, u, domain, None, u if query is None else query)[0]

    def run(
        self, kernel: Kernel, u: Tensor, domain: Domain, state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """See `StatefulEvaluation.run`.

        Raises:
            ValueError: on a reset or points that share a time, which a sum by chunks does not see; on a state and
                positions without times.
        """
        assert isinstance(kernel, FeatureProduct)
        check_state_fits(kernel, domain, state, reset)
        if not is_ordered_by_index(domain):
            raise ValueError("FeatureProductScan: points that share a time see each other; a sum by chunks does not")
        return self._run(kernel, u, domain, state, u)

    def _run(
        self, kernel: FeatureProduct, u: Tensor, domain: Domain, state: State | None, query: Tensor
    ) -> tuple[Tensor, State]:
        own, form, dtype = kernel.features, kernel.product_form(), working_dtype(u)
        lifted = own.lift(domain)
        phi = own.query(*own.inputs(own.query, query, lifted)) @ form.scores
        psi = own.key(*own.inputs(own.key, u, lifted))
        with torch.autocast(u.device.type, enabled=False):
            mass = torch.atleast_2d(kernel.measure(domain)).to(torch.promote_types(dtype, torch.float32))
            value = u.unflatten(-1, (kernel.num_heads, -1)).transpose(1, 2).to(mass.dtype)
            weighed = value * mass[:, None, :, None]
            before, count = (None, None) if state is None else (state[0].to(mass.dtype), state[1].to(mass.dtype))
            phi, psi = phi.to(mass.dtype), psi.to(mass.dtype)
            out, total = causal_sums(phi[:, :, None], psi, weighed, before, self.chunk)
            past = mass.cumsum(1) if count is None else mass.cumsum(1) + count[:, None]
            mean = mean_of(out[:, :, 0], past[:, None, :, None]) @ form.value.mT.to(mass.dtype)
        end = past[:, -1] if u.shape[1] else (mass.new_zeros(1) if count is None else count)
        return mean.transpose(1, 2).flatten(2).to(dtype), (total, end.expand(len(u)))
