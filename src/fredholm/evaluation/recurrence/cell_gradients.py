"""Back-propagation through time of the cells of torch.nn, from their inputs and outputs alone.

The outputs are the states, so that all gates follow from one matrix product per sequence, and only the recurrence of
gradients is a loop. Gates are named as in the kernels' files; d_x is the derivative of the loss by x.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.functional import linear

from fredholm.kernels import State


class CellInputs(NamedTuple):
    """Inputs of a recurrence."""

    u: Tensor  # the signal, (B, T, d), in the dtype of the weights
    hidden: Tensor  # h before the first point: (B, n)
    cell: Tensor | None  # c before it, of an LSTM
    weight_ih: Tensor  # as in `CellRecurrence`
    weight_hh: Tensor
    bias_ih: Tensor | None
    bias_hh: Tensor | None
    mask: Tensor | None  # (B, T) bool, True = this point exists; None: all exist
    reset: Tensor | None  # (B, T) bool, True = the state is cleared before this point; None: nowhere

    @classmethod
    def of(cls, u: Tensor, state: State, weights: Sequence[Tensor], mask: Tensor | None, reset: Tensor | None) -> Self:
        """Inputs from the parts of a state and `CellRecurrence.weights`."""
        hidden, cell = state if len(state) == 2 else (*state, None)
        weight_ih, weight_hh, bias_ih, bias_hh = weights if len(weights) == 4 else (*weights, None, None)
        return cls(u, hidden, cell, weight_ih, weight_hh, bias_ih, bias_hh, mask, reset)


class CellOutputs(NamedTuple):
    """Outputs of a recurrence."""

    out: Tensor  # h at every point, 0 at those that do not exist: (B, T, n)
    hidden: Tensor  # h at the end: (B, n)
    cell: Tensor | None  # c at the end, of an LSTM


class Slopes(NamedTuple):
    """Derivatives of the cell at every point; g gates, or 1 where all have the same input."""

    by_input: Tensor  # of h, or of c for all gates of an LSTM but o, by W u + b: (B, T, g, n)
    by_state: Tensor  # the same by R h + b'
    carry: Tensor | None  # of h by h before it, past R: (B, T, n)
    cell_carry: Tensor | None  # of c by c before it
    cell_to_h: Tensor | None  # of h by c


def cell_gradients(
    inputs: CellInputs, outputs: CellOutputs, grads: CellOutputs, wanted: frozenset[str], mode: str
) -> dict[str, Tensor]:
    """The gradients of all inputs, by name, from those of the outputs; `mode` as in `CellRecurrence`."""
    u, out, d_h, d_c = inputs.u, outputs.out, grads.hidden, grads.cell
    if out.numel() == 0:
        return {"hidden": d_h} if d_c is None else {"hidden": d_h, "cell": d_c}
    exists = u.new_ones(u.shape[:2], dtype=torch.bool) if inputs.mask is None else inputs.mask
    keep = torch.ones_like(exists) if inputs.reset is None else ~inputs.reset
    absent = (~exists[..., None]).to(out.dtype)
    before = _carried(inputs.hidden, absent, out * exists[..., None], keep)
    slopes = _slopes(inputs, mode, out, before, exists, keep)
    d_out, drives = torch.where(exists[..., None], grads.out, 0.0), []
    for t in range(u.shape[1] - 1, -1, -1):
        d_h = d_h + d_out[:, t]
        drive = d_h[:, None]
        if d_c is not None and slopes.cell_to_h is not None and slopes.cell_carry is not None:
            d_c = d_c + d_h * slopes.cell_to_h[:, t]
            drive = torch.stack([d_c, d_c, d_c, d_h], dim=1)
            d_c = d_c * slopes.cell_carry[:, t] * keep[:, t, None]
        drives.append(drive)
        past = d_h * slopes.carry[:, t] if slopes.carry is not None else 0.0
        d_h = ((drive * slopes.by_state[:, t]).flatten(1) @ inputs.weight_hh + past) * keep[:, t, None]
    driven = torch.stack(drives[::-1], dim=1)
    d_input, d_state = (driven * slopes.by_input).flatten(2), (driven * slopes.by_state).flatten(2)
    found = {
        "u": d_input @ inputs.weight_ih,
        "hidden": d_h,
        "weight_ih": d_input.flatten(0, 1).mT @ u.flatten(0, 1),
        "weight_hh": d_state.flatten(0, 1).mT @ before.flatten(0, 1),
        "bias_ih": d_input.sum((0, 1)),
        "bias_hh": d_state.sum((0, 1)),
    }
    return found if d_c is None else {**found, "cell": d_c}


def _carried(first: Tensor, factor: Tensor, added: Tensor, keep: Tensor) -> Tensor:
    """Backward recurrence x ← factor · x + added, cleared at resets: x before each point, `(B, T, n)`."""
    rows, x = [], first
    for t in range(added.shape[1]):
        x = x * keep[:, t, None]
        rows.append(x)
        x = factor[:, t] * x + added[:, t]
    return torch.stack(rows, dim=1)


def _slopes(inputs: CellInputs, mode: str, h: Tensor, before: Tensor, exists: Tensor, keep: Tensor) -> Slopes:
    """The derivatives of the cell; at points that do not exist it is the identity."""
    from_input = linear(inputs.u, inputs.weight_ih, inputs.bias_ih)
    from_state = linear(before, inputs.weight_hh, inputs.bias_hh)
    here, absent = exists[..., None], (~exists[..., None]).to(h.dtype)
    if inputs.cell is not None:
        i, f, g, o = (from_input + from_state).chunk(4, dim=-1)
        i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
        forget, write = torch.where(here, f, 1.0), torch.where(here, i * g, 0.0)
        c_before = _carried(inputs.cell, forget, write, keep)
        squashed = torch.tanh(forget * c_before + write)
        slope = torch.stack(
            [g * i * (1 - i), c_before * f * (1 - f), i * (1 - g.square()), squashed * o * (1 - o)], dim=2
        )
        slope = torch.where(here[..., None], slope, 0.0)
        return Slopes(slope, slope, absent, forget, torch.where(here, o * (1 - squashed.square()), 0.0))
    if mode == "gru":
        (u_r, u_z, u_n), (h_r, h_z, h_n) = from_input.chunk(3, dim=-1), from_state.chunk(3, dim=-1)
        r, z = torch.sigmoid(u_r + h_r), torch.sigmoid(u_z + h_z)
        n = torch.tanh(u_n + r * h_n)
        to_n, to_z = (1 - z) * (1 - n.square()), (before - n) * z * (1 - z)
        to_r = to_n * h_n * r * (1 - r)
        by_input, by_state = torch.stack([to_r, to_z, to_n], dim=2), torch.stack([to_r, to_z, to_n * r], dim=2)
        by_input, by_state = (torch.where(here[..., None], by, 0.0) for by in (by_input, by_state))
        return Slopes(by_input, by_state, torch.where(here, z, 1.0), None, None)
    slope = 1 - h.square() if mode == "rnn_tanh" else (h > 0).to(h.dtype)
    slope = torch.where(here, slope, 0.0)[:, :, None]
    return Slopes(slope, slope, absent, None, None)
