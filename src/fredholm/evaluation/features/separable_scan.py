"""Causal separable kernels, by chunks."""

import dataclasses
from typing import final

import torch
from torch import Tensor

from fredholm._precision import without_autocast
from fredholm.evaluation.evaluation import StatefulRoute
from fredholm.evaluation.integral import Integral
from fredholm.evaluation.running_sums import causal_sums, order_refusals, reset_refusals, state_refusals
from fredholm.kernels import State
from fredholm.kernels.kernel import divided
from fredholm.kernels.perceptron.factorised import Separable


@final
@dataclasses.dataclass(frozen=True)
class SeparableScan(StatefulRoute[Separable]):
    """For causal `Separable` kernels: O(N) time and memory, with Σ_j ω_j ψ_j ⊗ u_j carried from chunk to chunk.

    Sums are kept in at least float32.

    Args:
        chunk: number of points that are treated pair by pair at a time.
    """

    marker = Separable
    chunk: int = 64

    def refusals(self, integral: Integral[Separable]) -> list[str]:
        """Refuses kernels that look ahead, other queries, and points that share a time."""
        reasons = [] if integral.kernel.is_causal else ["the kernel looks ahead (is_causal is off)"]
        return reasons + order_refusals(integral)

    def compute(self, integral: Integral[Separable]) -> Tensor:
        """See `Route.compute`."""
        return self.advance(integral)[0]

    def run_refusals(self, integral: Integral[Separable], state: State | None, reset: Tensor | None) -> list[str]:
        """Refuses a reset, and a state where positions restart with every chunk."""
        return reset_refusals(reset) + state_refusals(integral, state)

    def advance(
        self, integral: Integral[Separable], state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """See `StatefulRoute.advance`."""
        kernel, u, domain = integral.kernel, integral.u, integral.domain
        own, form, dtype = kernel.features, kernel.separable_form(), integral.working_dtype
        lifted = own.lift(domain)
        psi = own.key(*own.inputs(own.key, u, lifted))
        lifted = lifted if integral.own_positions else own.lift(integral.query_domain)
        phi = own.query(*own.inputs(own.query, integral.query, lifted)) @ form.scores
        with without_autocast(u):
            mass = torch.atleast_2d(kernel.measure(domain)).to(torch.promote_types(dtype, torch.float32))
            value = u.unflatten(-1, (kernel.num_heads, -1)).transpose(1, 2).to(mass.dtype)
            weighed = value * mass[:, None, :, None]
            before, count = (None, None) if state is None else (state[0].to(mass.dtype), state[1].to(mass.dtype))
            phi, psi = phi.to(mass.dtype), psi.to(mass.dtype)
            out, total = causal_sums(phi[:, :, None], psi, weighed, before, self.chunk)
            past = mass.cumsum(1) if count is None else mass.cumsum(1) + count[:, None]
            mean = divided(out[:, :, 0], past[:, None, :, None]) @ form.value.mT.to(mass.dtype)
        end = past[:, -1] if u.shape[1] else (mass.new_zeros(1) if count is None else count)
        return mean.transpose(1, 2).flatten(2).to(dtype), (total, end.expand(u.shape[0]))
