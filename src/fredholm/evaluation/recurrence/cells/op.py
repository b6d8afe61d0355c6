"""The fused recurrence as one operator that the compiler does not look into.

Traced, torch's own functions unroll into nodes for every point, which takes seconds to compile for each hundred points.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

from torch import Tensor

from fredholm.evaluation.custom_op import Operator
from fredholm.evaluation.recurrence.cells.backward import recurrence_gradients
from fredholm.evaluation.recurrence.cells.fused import fused_recurrence
from fredholm.evaluation.recurrence.cells.runs import Runs
from fredholm.kernels import State


class CellInputs(NamedTuple):
    """What the recurrence is computed from; see `fused_recurrence` and `Runs.of`."""

    u: Tensor
    hidden: Tensor
    cell: Tensor | None
    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor | None
    bias_hh: Tensor | None
    mask: Tensor | None
    reset: Tensor | None

    @classmethod
    def of(cls, u: Tensor, state: State, weights: Sequence[Tensor], mask: Tensor | None, reset: Tensor | None) -> Self:
        """From the parts of a state and the weights of a cell."""
        hidden, cell = state if len(state) == 2 else (*state, None)
        weight_ih, weight_hh, bias_ih, bias_hh = weights if len(weights) == 4 else (*weights, None, None)
        return cls(u, hidden, cell, weight_ih, weight_hh, bias_ih, bias_hh, mask, reset)

    @property
    def state(self) -> State:
        """The parts of the state before the first point."""
        return (self.hidden,) if self.cell is None else (self.hidden, self.cell)

    @property
    def weights(self) -> list[Tensor]:
        """`CellRecurrence.weights`."""
        return [w for w in (self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh) if w is not None]


class CellOutputs(NamedTuple):
    """The output at every point, `(B, T, n)`, and the parts of the state at the end, `(B, n)`."""

    out: Tensor
    hidden: Tensor
    cell: Tensor | None


def _forward(inputs: CellInputs, mode: str) -> CellOutputs:
    runs = Runs.of(inputs.mask, inputs.reset)
    out, state = fused_recurrence(inputs.u, inputs.state, inputs.weights, mode, runs)
    out, hidden, *cell = (part.contiguous() for part in (out, *state))
    return CellOutputs(out, hidden, cell[0] if cell else None)


def _like(inputs: CellInputs, mode: str) -> CellOutputs:
    (batch, length, _), hidden, cell = inputs.u.shape, inputs.hidden, inputs.cell
    return CellOutputs(
        inputs.u.new_empty(batch, length, hidden.shape[-1]),
        hidden.new_empty(hidden.shape),
        None if cell is None else cell.new_empty(cell.shape),
    )


def _backward(
    inputs: CellInputs, outputs: CellOutputs, grads: CellOutputs, wanted: frozenset[str], mode: str
) -> dict[str, Tensor]:
    by_end = [grad for grad in (grads.hidden, grads.cell) if grad is not None]
    if outputs.out.numel() == 0:
        return dict(zip(("hidden", "cell"), by_end, strict=False))
    (u, *_, mask, reset), state, weights = inputs, inputs.state, inputs.weights
    found = recurrence_gradients([grads.out, *by_end], outputs.out, u, state, weights, mode, mask, reset)
    there = (name for name, t in zip(CellInputs._fields, inputs, strict=True) if t is not None)
    return dict(zip(there, found, strict=False))


fused_recurrence_op = Operator(
    "fused_recurrence",
    CellInputs,
    CellOutputs,
    _forward,
    _like,
    _backward,
    keeps=("out",),
    instead="IntegralOperator(kernel, evaluation=StepLoop()) has all derivatives",
)
"""The output and the state at the end; its option is `CellRecurrence.mode`."""
