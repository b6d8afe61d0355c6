"""The oracle of recurrences: point by point."""

import dataclasses
from typing import final

import torch
from torch import Tensor

from fredholm.domains import is_ordered_by_index
from fredholm.evaluation.evaluation import Queries, StatefulRoute
from fredholm.evaluation.integral import Integral
from fredholm.kernels import State, Stateful


@final
@dataclasses.dataclass(frozen=True)
class StepLoop(StatefulRoute[Stateful]):
    """Calls the kernel's `step` along the sequence: the reference for all faster routes of stateful kernels.

    At a point that does not exist the result is exactly 0.
    """

    marker = Stateful
    needs_fixed_sizes = True
    queries = Queries.OWN

    def refusals(self, integral: Integral[Stateful]) -> list[str]:
        """Refuses kernels that look ahead, other queries, and measures that do not count each point once."""
        kernel, domain = integral.kernel, integral.domain
        reasons = [] if kernel.is_causal else ["the kernel looks ahead (is_causal is off)"]
        if kernel.has_growing_state and domain.mask is not None:
            reasons.append("a growing state cannot skip points that do not exist")
        if kernel.sees_simultaneous and not is_ordered_by_index(domain):
            reasons.append("points that share a time see each other")
        if kernel.reads_order and not domain.is_ordered:
            reasons.append("the kernel reads times or indices, and the domain has no order")
        if kernel.reads_time and domain.times is None:
            reasons.append("a step needs the time of its point, and the domain has no times")
        if domain.pos_dim != 1:
            reasons.append("the domain does not order its points")
        if not domain.is_uniform:
            reasons.append("a step does not weigh its point, and the measure was given")
        return reasons + kernel.unsteppable(domain)

    def compute(self, integral: Integral[Stateful]) -> Tensor:
        """See `Route.compute`."""
        return self.advance(integral)[0]

    def run_refusals(self, integral: Integral[Stateful], state: State | None, reset: Tensor | None) -> list[str]:
        """Refuses nothing; see `StatefulRoute.run_refusals`."""
        return []

    def advance(
        self, integral: Integral[Stateful], state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """See `StatefulRoute.advance`."""
        kernel, u, domain = integral.kernel, integral.u, integral.domain
        batch, length = u.shape[:2]
        fresh = kernel.initial_state(batch)
        state = fresh if state is None else state
        rows = []
        for t in range(length):
            if reset is not None:
                state = _where(reset[:, t], fresh, state)
            time = None if domain.times is None else domain.times[..., t].expand(batch)
            out, following = kernel.step(u[:, t], state, time)
            if domain.mask is None:
                state = following
            else:
                exists = domain.mask[..., t].expand(batch)
                out, state = torch.where(exists[:, None], out, 0.0), _where(exists, following, state)
            rows.append(out)
        return (torch.stack(rows, dim=1) if rows else u.new_zeros(batch, 0, kernel.out_dim)), state


def _where(condition: Tensor, one: State, other: State) -> State:
    return tuple(
        torch.where(condition.reshape(-1, *(1,) * (a.ndim - 1)), a, b) for a, b in zip(one, other, strict=True)
    )
