"""Causal low-rank kernels: running sums of a few numbers a point."""

import dataclasses
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import pad

from fredholm.domains import Domain, preceding_counts
from fredholm.evaluation.evaluation import StatefulRoute
from fredholm.evaluation.features.maps import MapInputs, feature_maps
from fredholm.evaluation.features.sides import chunk_elements, feature_inputs, working_dtype
from fredholm.evaluation.integral import Integral
from fredholm.evaluation.running_sums import reset_refusals, state_refusals
from fredholm.kernels import State
from fredholm.kernels.arithmetic import divided
from fredholm.kernels.perceptron.factorised import LowRank


@final
@dataclasses.dataclass(frozen=True)
class LowRankScan(StatefulRoute[LowRank]):
    """For causal `LowRank` kernels: the running sums of Ψ_j u_j and u_j, then Φ_iᵀ and B at every query.

    O(N·r·w·d) time, r the rank: every query has a sum of its own, so that Φ and Ψ are needed point by point; they are
    computed chunk by chunk, and again in the backward pass, so that memory is O(N·(r·H + C)). Sums and the mass of the
    past are kept in at least float32. Queries may lie anywhere.

    Args:
        chunk_elements: entries of Φ or Ψ that exist at one time; None: 2^19 on a CPU, 2^26 elsewhere.
    """

    marker = LowRank
    chunk_elements: int | None = None

    def refusals(self, integral: Integral[LowRank]) -> list[str]:
        """Refuses kernels that look ahead; see `Route.refusals`."""
        return [] if integral.kernel.is_causal else ["the kernel looks ahead (is_causal is off)"]

    def compute(self, integral: Integral[LowRank]) -> Tensor:
        """See `Route.compute`."""
        return self.advance(integral)[0]

    def run_refusals(self, integral: Integral[LowRank], state: State | None, reset: Tensor | None) -> list[str]:
        """Refuses a reset, and a state with positions that start anew with every chunk."""
        return reset_refusals(reset) + state_refusals(integral, state)

    def advance(
        self, integral: Integral[LowRank], state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """See `StatefulRoute.advance`."""
        kernel, u, domain, query_domain = integral.kernel, integral.u, integral.domain, integral.query_domain
        lifted = kernel.features.lift(domain)
        sums, mass = self._sums(kernel, u, domain, lifted)
        if state is not None:
            sums, mass = sums + state[0][:, None].to(sums.dtype), mass + state[1][:, None].to(mass.dtype)
        end = sums[:, -1], mass[:, -1].expand(len(u))
        if integral.at_points and domain.times is None:
            sums, mass = sums[:, 1:], mass[:, 1:]
        else:
            counts = preceding_counts(query_domain, domain)
            sums, mass = _at(sums, counts), _at(mass, counts)
        lifted = lifted if integral.own_positions else kernel.features.lift(query_domain)
        if query_domain.given_past_mass is not None and (share := kernel.past_share(domain, query_domain)) is not None:
            return self._read(kernel, integral.query, lifted, sums * share[..., None, None].to(sums.dtype)), end
        return self._read(kernel, integral.query, lifted, divided(sums, mass[..., None, None])), end

    def _sums(self, kernel: LowRank, u: Tensor, domain: Domain, lifted: Tensor) -> tuple[Tensor, Tensor]:
        """Σ_{l < j} ω_l [Ψ_l u_l; u_l] `(B, N + 1, H, r + d)`, without B only r, and Σ_{l < j} ω_l `(B', N + 1)`."""
        own, dtype, form = kernel.features, working_dtype(u), kernel.low_rank_form()
        mass = torch.atleast_2d(kernel.measure(domain)).to(torch.promote_types(dtype, torch.float32))
        value = u.unflatten(-1, (kernel.num_heads, -1)).to(mass.dtype) * mass[..., None, None]
        side = feature_inputs(own, own.key, u, lifted, dtype)
        inputs = MapInputs(*side, form.key.transpose(1, 2).to(dtype), value)
        (read,) = feature_maps(inputs, own.key.activation, self.chunk_elements or chunk_elements(u))
        carried = read if form.constant is None else torch.cat([read, value], dim=-1)
        return pad(carried.cumsum(1), (0, 0, 0, 0, 1, 0)), pad(mass.cumsum(1), (1, 0))

    def _read(self, kernel: LowRank, query: Tensor, lifted: Tensor, mean: Tensor) -> Tensor:
        """Φᵀ and B at the mean that each query sees."""
        own, dtype, form = kernel.features, working_dtype(query), kernel.low_rank_form()
        rank = form.query.shape[1]
        matrices = form.query.permute(0, 2, 3, 1).to(dtype)
        side = feature_inputs(own, own.query, query, lifted, dtype)
        inputs = MapInputs(*side, matrices, mean[..., :rank].contiguous())
        (out,) = feature_maps(inputs, own.query.activation, self.chunk_elements or chunk_elements(query))
        if form.constant is not None:
            with torch.autocast(query.device.type, enabled=False):
                through = mean[..., rank:].transpose(1, 2) @ form.constant.mT.to(mean.dtype)
                out = out + through.transpose(1, 2)
        return out.to(dtype).flatten(2)


def _at(running: Tensor, counts: Tensor) -> Tensor:
    """Running sums `(B', N + 1, …)` where each query stands, `(B', Nq, …)`; counts are `(1 or B, Nq)`."""
    batch = max(len(running), len(counts))
    running, counts = running.expand(batch, *running.shape[1:]), counts.expand(batch, -1)
    index = counts.reshape(*counts.shape, *(1,) * (running.ndim - 2)).expand(-1, -1, *running.shape[2:])
    return running.gather(1, index)
