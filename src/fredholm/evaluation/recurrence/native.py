"""Recurrences with a cell of torch.nn by torch's own fused code."""

import dataclasses
from collections.abc import Callable
from typing import Any, Self, final

import torch
from torch import Tensor

from fredholm._precision import without_autocast
from fredholm.domains.checks import has_values, is_batched, values_can_be_read
from fredholm.evaluation.custom_op import Operator
from fredholm.evaluation.evaluation import Queries, StatefulRoute
from fredholm.evaluation.integral import Integral
from fredholm.evaluation.recurrence.cell_gradients import CellInputs, CellOutputs, cell_gradients
from fredholm.kernels import State
from fredholm.kernels.recurrence.cell_recurrence import CellRecurrence

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "lstm": torch.lstm,
    "rnn_tanh": torch.rnn_tanh,
    "rnn_relu": torch.rnn_relu,
    "gru": torch.gru,
}


@final
class Runs:
    """The points that exist, as runs without gaps, each with its own initial state.

    Every sequence begins a run, and so does every reset; a run has consecutive points of one sequence, without those
    that do not exist. Packed, the first points of all runs come first, then all second points and so on, each time from
    the longest run to the shortest: the layout of `torch.nn.utils.rnn.PackedSequence`.

    Attributes:
        source: index of each packed point in the `(B * T)` points, in packed order.
        batch_sizes: number of runs that have a k-th point, for every k; on the CPU.
        order: indices of the runs, the longest run first.
        rank: index of each run in `order`.
        first, last: index of the first and last run of each sequence, `(B,)`.
    """

    source: Tensor
    batch_sizes: Tensor
    order: Tensor
    rank: Tensor
    first: Tensor
    last: Tensor

    @classmethod
    def of(cls, mask: Tensor | None, reset: Tensor | None) -> Self | None:
        """The runs of sequences; None where each sequence is one complete run.

        Args:
            mask: `(B, T)` bool, True = this point exists; None = all exist.
            reset: `(B, T)` bool, True = a run begins with this point, or the next one that exists; None = nowhere.
        """
        given = reset if mask is None else mask
        if given is None:
            return None
        exists = torch.ones_like(given) if mask is None else mask
        reset = torch.zeros_like(given) if reset is None else reset
        if not has_values(exists) or bool((exists & ~reset).all()):
            return None
        found = cls()
        batch, length = exists.shape
        begun = reset.flatten().cumsum(0).reshape(batch, length)
        run = begun + torch.arange(batch, device=exists.device)[:, None]
        found.last = run[:, -1]
        found.first = torch.cat([run.new_zeros(1), found.last[:-1] + 1])
        existing = exists.flatten().nonzero().squeeze(-1)
        run = run.flatten()[existing]
        lengths = torch.bincount(run, minlength=int(found.last[-1]) + 1)
        found.order = lengths.argsort(descending=True, stable=True)
        found.rank = torch.empty_like(found.order)
        found.rank[found.order] = torch.arange(lengths.shape[0], device=run.device)
        place = torch.arange(existing.shape[0], device=run.device) - (lengths.cumsum(0) - lengths)[run]
        sizes = torch.bincount(place)
        packed = (sizes.cumsum(0) - sizes)[place] + found.rank[run]
        found.source = torch.empty_like(existing)
        found.source[packed] = existing
        found.batch_sizes = sizes.cpu()
        return found

    def pack(self, u: Tensor) -> Tensor:
        """`(B, T, d)` to the packed points, `(points, d)`."""
        return u.flatten(0, 1).index_select(0, self.source)

    def unpack(self, packed: Tensor, batch: int, length: int) -> Tensor:
        """The packed points, `(points, d)`, to `(B, T, d)`, 0 at points that do not exist."""
        flat = packed.new_zeros(batch * length, packed.shape[-1]).index_copy(0, self.source, packed)
        return flat.reshape(batch, length, -1)

    def begin(self, state: Tensor) -> Tensor:
        """States of sequences, `(B, n)`, to the initial states of the runs, the longest first; 0 after a reset."""
        return state.new_zeros(self.order.shape[0], state.shape[-1]).index_copy(0, self.first, state)[self.order]

    def end(self, begun: Tensor, ended: Tensor) -> Tensor:
        """The final state of each sequence, from the initial states of all runs and the final ones of nonempty runs."""
        return torch.cat([ended, begun[ended.shape[0] :]])[self.rank[self.last]]


def fused_recurrence(inputs: CellInputs, mode: str) -> CellOutputs:
    """The output and the state at the end, in differentiable operations; `mode` as in `CellRecurrence`."""
    u, runs = inputs.u, Runs.of(inputs.mask, inputs.reset)
    state = tuple(part for part in (inputs.hidden, inputs.cell) if part is not None)
    if u.numel() == 0:
        return _results(_nothing(inputs), state)
    if runs is None:
        return _results(*_call(u, None, state, inputs, mode))
    begun = tuple(runs.begin(part) for part in state)
    if runs.batch_sizes.shape[0] == 0:
        return _results(_nothing(inputs), tuple(runs.end(part, part[:0]) for part in begun))
    running = int(runs.batch_sizes[0])
    packed, ended = _call(runs.pack(u), runs.batch_sizes, tuple(part[:running] for part in begun), inputs, mode)
    ends = tuple(runs.end(*pair) for pair in zip(begun, ended, strict=True))
    return _results(runs.unpack(packed, *u.shape[:2]), ends)


def _results(out: Tensor, state: State) -> CellOutputs:
    return CellOutputs(out, state[0], state[1] if len(state) > 1 else None)


def _nothing(inputs: CellInputs) -> Tensor:
    """Zeros in place of the output, with zero gradients."""
    never = torch.zeros((), dtype=torch.bool, device=inputs.u.device)
    return torch.where(never, torch.nn.functional.linear(inputs.u, inputs.weight_ih[: inputs.hidden.shape[-1]]), 0.0)


def _call(
    u: Tensor, batch_sizes: Tensor | None, state: State, inputs: CellInputs, mode: str
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """One layer, forwards, without dropout, of signals `(B, T, d)` or packed ones `(points, d)`."""
    biases = [bias for bias in (inputs.bias_ih, inputs.bias_hh) if bias is not None]
    weights = [inputs.weight_ih, inputs.weight_hh, *biases]
    if u.is_cuda:
        weights = _in_one_piece(weights)
    # cuDNN and oneDNN keep tensors for the backward pass only in training mode
    settings = (weights, len(biases) > 0, 1, 0.0, torch.is_grad_enabled(), False)
    hidden = [part[None] for part in state]
    before = hidden if mode == "lstm" else hidden[0]
    if batch_sizes is None:
        out, *ended = _FUNCTIONS[mode](u, before, *settings, True)
    else:
        out, *ended = _FUNCTIONS[mode](u, batch_sizes, before, *settings)
    return out, tuple(part[0] for part in ended)


def _in_one_piece(weights: list[Tensor]) -> list[Tensor]:
    """W, R, b and b' contiguous in memory, as cuDNN needs them; otherwise it copies them itself, and warns."""
    sizes = [weight.numel() for weight in weights]
    if len(weights) == 2:  # has memory for biases even without them
        sizes.append(2 * weights[0].shape[0])
    room = [weights[0].new_zeros(size) for size in sizes[len(weights) :]]
    parts = torch.cat([*(weight.flatten() for weight in weights), *room]).split(sizes)
    return [part.view_as(weight) for part, weight in zip(parts, weights, strict=False)]


def _contiguous(inputs: CellInputs, mode: str) -> CellOutputs:
    out, hidden, cell = fused_recurrence(inputs, mode)
    return CellOutputs(out.contiguous(), hidden.contiguous(), None if cell is None else cell.contiguous())


def _like(inputs: CellInputs, mode: str) -> CellOutputs:
    (batch, length, _), hidden, cell = inputs.u.shape, inputs.hidden, inputs.cell
    return CellOutputs(
        inputs.u.new_empty(batch, length, hidden.shape[-1]),
        hidden.new_empty(hidden.shape),
        None if cell is None else cell.new_empty(cell.shape),
    )


# when traced, torch's own functions unroll into nodes for every point: seconds of compilation per hundred points
fused_recurrence_op = Operator(
    "fused_recurrence",
    CellInputs,
    CellOutputs,
    _contiguous,
    _like,
    cell_gradients,
    keeps=("out",),
    instead="IntegralOperator(kernel, evaluation=StepLoop()) has all derivatives",
)
"""The recurrence, opaque to the compiler."""


@final
@dataclasses.dataclass(frozen=True)
class NativeRecurrence(StatefulRoute[CellRecurrence]):
    """Calls torch's fused RNN, LSTM or GRU: cuDNN, oneDNN or ATen's loop, as torch.nn does.

    Points that do not exist are left out, with result exactly 0, and sequences are cut at resets; the runs are packed
    as in a `PackedSequence`. It runs in the parameters' dtype, outside autocast. For cuDNN, which needs all weights in
    one piece, each call copies them. Under `torch.compile` it is one opaque operator with its own backward pass, since
    torch's would unroll.
    """

    marker = CellRecurrence
    queries = Queries.AT_POINTS
    differentiable_twice = False

    def refusals(self, integral: Integral[CellRecurrence]) -> list[str]:
        """Refuses other queries, and measures that do not count each point once."""
        domain, reasons = integral.domain, []
        if domain.pos_dim != 1:
            reasons.append("the domain does not order its points")
        if not domain.is_uniform:
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
        inputs = CellInputs.of(u, state, kernel.weights, mask, reset)
        with without_autocast(u):
            whole = torch.compiler.is_exporting() and mask is None and reset is None
            # torch's own functions have no rule for `vmap`
            is_read = values_can_be_read(mask, reset) and not any(map(is_batched, inputs))
            run = fused_recurrence if whole or is_read else fused_recurrence_op
            out, *ended = run(inputs, kernel.mode)
        return out, tuple(part for part in ended if part is not None)
