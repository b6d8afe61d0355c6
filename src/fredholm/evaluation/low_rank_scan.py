"""Causal low-rank kernels: running sums of a few numbers a point."""

import dataclasses
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import pad

from fredholm.domains import Domain, preceding_counts
from fredholm.evaluation.evaluation import StatefulEvaluation
from fredholm.evaluation.factors import chunk_elements, feature_maps, side_tensors, working_dtype
from fredholm.evaluation.past import check_state_fits, mean_of
from fredholm.kernels import Kernel, LowRank, State


@final
@dataclasses.dataclass(frozen=True)
class LowRankScan(StatefulEvaluation):
    """For causal `LowRank` kernels: the running sums of Ψ_j u_j and u_j, then Φ_iᵀ and B at every query.

    O(N·r·w·d) time, r the rank: every query has a sum of its own, so that Φ and Ψ are needed point by point; they are
    computed chunk by chunk, and again in the backward pass, so that memory is O(N·(r·H + C)). Sums and the mass of the
    past are kept in at least float32. Queries may lie anywhere.

    Args:
        chunk_elements: entries of Φ or Ψ that exist at one time; None: 2^19 on a CPU, 2^26 elsewhere.
    """

    marker = LowRank
    chunk_elements: int | None = None

    def refusals(
        self, kernel: Kernel, u: Tensor, domain: Domain, query: Tensor | None, query_domain: Domain | None
    ) -> list[str]:
        """Refuses kernels that look ahead; see `Evaluation.unsupported_reasons`."""
        return [] if kernel.is_causal else ["the kernel looks ahead (is_causal is off)"]

    def integrate(
        self, kernel: Kernel, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        """See `Evaluation.integrate`."""
        assert isinstance(kernel, LowRank)
        query, query_domain = (u if query is None else query), (domain if query_domain is None else query_domain)
        return self._run(kernel, u, domain, None, query, query_domain)[0]

    def run(
        self, kernel: Kernel, u: Tensor, domain: Domain, state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """See `StatefulEvaluation.run`. Points that share a time see each other if they come in one chunk.

        Raises:
            ValueError: on a reset, which a running sum does not see; on a state and positions without times.
        """
        assert isinstance(kernel, LowRank)
        check_state_fits(kernel, domain, state, reset)
        return self._run(kernel, u, domain, state, u, domain)

    def _run(
        self, kernel: LowRank, u: Tensor, domain: Domain, state: State | None, query: Tensor, query_domain: Domain
    ) -> tuple[Tensor, State]:
        lifted = kernel.features.lift(domain)
        sums, mass = self._sums(kernel, u, domain, lifted)
        if state is not None:
            sums, mass = sums + state[0][:, None].to(sums.dtype), mass + state[1][:, None].to(mass.dtype)
        end = sums[:, -1], mass[:, -1].expand(len(u))
        if query_domain is not domain or domain.times is not None:
            counts = preceding_counts(query_domain, domain)
            sums, mass = _at(sums, counts), _at(mass, counts)
            lifted = lifted if query_domain is domain else kernel.features.lift(query_domain)
        else:
            sums, mass = sums[:, 1:], mass[:, 1:]
        return self._read(kernel, query, lifted, sums, mass), end

    def _sums(self, kernel: LowRank, u: Tensor, domain: Domain, lifted: Tensor) -> tuple[Tensor, Tensor]:
        """Σ_{l < j} ω_l [Ψ_l u_l; u_l] `(B, N + 1, H, r + d)`, without B only r, and Σ_{l < j} ω_l `(B', N + 1)`."""
        own, dtype, form = kernel.features, working_dtype(u), kernel.low_rank_form()
        mass = torch.atleast_2d(kernel.measure(domain)).to(torch.promote_types(dtype, torch.float32))
        value = u.unflatten(-1, (kernel.num_heads, -1)).to(mass.dtype) * mass[..., None, None]
        tensors = [*side_tensors(own, own.key, u, lifted, dtype), form.key.transpose(1, 2).to(dtype), value]
        read = feature_maps(tensors, own.key.activation, self.chunk_elements or chunk_elements(u))
        carried = read if form.constant is None else torch.cat([read, value], dim=-1)
        return pad(carried.cumsum(1), (0, 0, 0, 0, 1, 0)), pad(mass.cumsum(1), (1, 0))

    def _read(self, kernel: LowRank, query: Tensor, lifted: Tensor, sums: Tensor, mass: Tensor) -> Tensor:
        """Φᵀ and B at the mean that each query sees."""
        own, dtype, form = kernel.features, working_dtype(query), kernel.low_rank_form()
        mean, rank = mean_of(sums, mass[..., None, None]), form.query.shape[1]
        matrices = form.query.permute(0, 2, 3, 1).to(dtype)
        tensors = [*side_tensors(own, own.query, query, lifted, dtype), matrices, mean[..., :rank].contiguous()]
        out = feature_maps(tensors, own.query.activation, self.chunk_elements or chunk_elements(query))
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
