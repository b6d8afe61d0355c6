"""Recurrences with a cell of torch.nn by torch's own fused code."""

import dataclasses
from typing import final

import torch
from torch import Tensor

from fredholm.domains.checks import values_can_be_read
from fredholm.evaluation.evaluation import Queries, StatefulRoute
from fredholm.evaluation.integral import Integral
from fredholm.evaluation.recurrence.cells.fused import fused_recurrence
from fredholm.evaluation.recurrence.cells.op import CellInputs, fused_recurrence_op
from fredholm.evaluation.recurrence.cells.runs import Runs
from fredholm.kernels import State
from fredholm.kernels.recurrence.cell_recurrence import CellRecurrence


@final
@dataclasses.dataclass(frozen=True)
class NativeRecurrence(StatefulRoute[CellRecurrence]):
    """Calls torch's fused RNN, LSTM or GRU: cuDNN, oneDNN or ATen's loop, as torch.nn does.

    Points that do not exist are left out, and at resets sequences are cut: what remains runs packed, as a
    `PackedSequence` does. There the result is exactly 0. It runs in the parameters' dtype, outside autocast. Under
    `torch.compile` it is one opaque operator with a backward pass of its own, since torch's would unroll.
    """

    marker = CellRecurrence
    queries = Queries.AT_POINTS

    def refusals(self, integral: Integral[CellRecurrence]) -> list[str]:
        """Refuses other queries, and measures that do not count each point once."""
        domain, reasons = integral.domain, []
        if domain.pos_dim != 1:
            reasons.append("the domain does not order its points")
        if domain.uniform_parts is None or len(domain.uniform_parts) > 1:
            reasons.append("a cell does not weigh its point, and the measure was given")
        return reasons

    def compute(self, integral: Integral[CellRecurrence]) -> Tensor:
        """See `Route.compute`."""
        return self.advance(integral)[0]

    def run_refusals(self, integral: Integral[CellRecurrence], state: State | None, reset: Tensor | None) -> list[str]:
        """Refuses nothing; see `StatefulRoute.run_refusals`."""
        return []

    def advance(
        self, integral: Integral[CellRecurrence], state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """See `StatefulRoute.advance`."""
        kernel, u, domain = integral.kernel, integral.u, integral.domain
        batch, length, _ = u.shape
        if state is None:
            state = kernel.initial_state(batch)
        else:
            kernel.check_state(state, batch)
        u = u.to(kernel.weight_ih.dtype)
        mask = None if domain.mask is None else domain.mask.expand(batch, length)
        if not values_can_be_read(mask, reset):
            inputs = CellInputs.of(u, state, kernel.weights, mask, reset)
            out, *ended = fused_recurrence_op(inputs, kernel.mode)
            return out, tuple(part for part in ended if part is not None)
        with torch.autocast(u.device.type, enabled=False):
            return fused_recurrence(u, state, kernel.weights, kernel.mode, Runs.of(mask, reset))
