"""torch's own recurrences on the parameters of one layer and direction."""

import torch
from torch import Tensor

from fredholm.evaluation.recurrence.cells.runs import Runs
from fredholm.kernels import State

_SINGLE_STATE = {"rnn_tanh": torch.rnn_tanh, "rnn_relu": torch.rnn_relu, "gru": torch.gru}


def fused_recurrence(
    u: Tensor, state: State, weights: list[Tensor], mode: str, runs: Runs | None
) -> tuple[Tensor, State]:
    """The output of a cell at every point, 0 at those that do not exist, and the state at the end.

    Args:
        u: `(B, T, d)`, in the dtype of the weights.
        state: before the first point, `(B, n)` each.
        weights: `CellRecurrence.weights`.
        mode: `CellRecurrence.mode`.
        runs: where points are missing or the state is cleared; None = nowhere.
    """
    batch, length, _ = u.shape
    if u.numel() == 0:
        return _nothing(u, weights), state
    if runs is None:
        return _call(u, None, state, weights, mode)
    begun = tuple(runs.begin(part) for part in state)
    if len(runs.batch_sizes) == 0:
        return _nothing(u, weights), tuple(runs.end(part, part[:0]) for part in begun)
    running = int(runs.batch_sizes[0])
    packed, ended = _call(runs.pack(u), runs.batch_sizes, tuple(part[:running] for part in begun), weights, mode)
    ends = tuple(runs.end(*pair) for pair in zip(begun, ended, strict=True))
    return runs.unpack(packed, batch, length), ends


def _nothing(u: Tensor, weights: list[Tensor]) -> Tensor:
    """Zeros in place of the output, with zero gradients."""
    never = torch.zeros((), dtype=torch.bool, device=u.device)
    return torch.where(never, torch.nn.functional.linear(u, weights[0][: weights[1].shape[-1]]), 0.0)


def _call(
    u: Tensor, batch_sizes: Tensor | None, state: State, weights: list[Tensor], mode: str
) -> tuple[Tensor, State]:
    """One layer, forwards, without dropout, of signals `(B, T, d)` or packed ones `(points, d)`."""
    hidden = [part[None] for part in state]
    # cuDNN and oneDNN keep what a backward pass reads only in training mode
    settings = (weights, len(weights) == 4, 1, 0.0, torch.is_grad_enabled(), False)
    if mode == "lstm":
        out, *ended = (
            torch.lstm(u, hidden, *settings, True)
            if batch_sizes is None
            else torch.lstm(u, batch_sizes, hidden, *settings)
        )
    else:
        function = _SINGLE_STATE[mode]
        out, *ended = (
            function(u, hidden[0], *settings, True)
            if batch_sizes is None
            else function(u, batch_sizes, hidden[0], *settings)
        )
    return out, tuple(part[0] for part in ended)
