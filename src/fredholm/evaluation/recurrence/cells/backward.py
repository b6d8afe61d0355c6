"""Back-propagation through time of the cells of torch.nn, from their inputs and outputs alone.

The outputs are the states, so that all gates come from one matrix product a sequence, and only what is carried from
point to point is a loop. Gates are named as in the kernels' files; d_x is the derivative of the loss by x.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from fredholm.kernels import State


class Slopes(NamedTuple):
    """Derivatives of the cell at every point; g gates, or 1 where all are driven alike."""

    by_input: Tensor  # of h, or of c for all gates of an LSTM but o, by W u + b: (B, T, g, n)
    by_state: Tensor  # the same by R h + b'
    carry: Tensor | None  # of h by h before it, past R: (B, T, n)
    cell_carry: Tensor | None  # of c by c before it
    cell_to_h: Tensor | None  # of h by c


def recurrence_gradients(
    grads: list[Tensor],
    out: Tensor,
    u: Tensor,
    state: State,
    weights: list[Tensor],
    mode: str,
    mask: Tensor | None,
    reset: Tensor | None,
) -> list[Tensor]:
    """Gradients by the signal, the parts of the state before the first point, and the weights.

    Args:
        grads: derivatives by the output, `(B, T, n)`, and by the parts of the state at the end, `(B, n)`.
        out: what the recurrence gave, `(B, T, n)`.
        u, state, weights, mode: what it was given; see `fused_recurrence`.
        mask: `(B, T)` bool, True = this point exists; None = all exist.
        reset: `(B, T)` bool, True = the state is cleared before this point; None = nowhere.
    """
    exists = u.new_ones(u.shape[:2], dtype=torch.bool) if mask is None else mask
    keep = torch.ones_like(exists) if reset is None else ~reset
    absent = (~exists[..., None]).to(out.dtype)
    before = _carried(state[0], absent, out * exists[..., None], keep)
    slopes = _slopes(mode, out, u, before, state, weights, exists, keep)
    d_out = torch.where(exists[..., None], grads[0], 0.0)
    d_h, d_c, drives = grads[1], grads[2] if len(grads) > 2 else None, []
    for t in range(u.shape[1] - 1, -1, -1):
        d_h = d_h + d_out[:, t]
        drive = d_h[:, None]
        if d_c is not None and slopes.cell_to_h is not None and slopes.cell_carry is not None:
            d_c = d_c + d_h * slopes.cell_to_h[:, t]
            drive = torch.stack([d_c, d_c, d_c, d_h], dim=1)
            d_c = d_c * slopes.cell_carry[:, t] * keep[:, t, None]
        drives.append(drive)
        past = d_h * slopes.carry[:, t] if slopes.carry is not None else 0.0
        d_h = ((drive * slopes.by_state[:, t]).flatten(1) @ weights[1] + past) * keep[:, t, None]
    driven = torch.stack(drives[::-1], dim=1)
    d_input, d_state = (driven * slopes.by_input).flatten(2), (driven * slopes.by_state).flatten(2)
    d_weights = [d_input.flatten(0, 1).mT @ u.flatten(0, 1), d_state.flatten(0, 1).mT @ before.flatten(0, 1)]
    if len(weights) == 4:
        d_weights += [d_input.sum((0, 1)), d_state.sum((0, 1))]
    return [d_input @ weights[0], d_h, *([] if d_c is None else [d_c]), *d_weights]


def _carried(first: Tensor, factor: Tensor, added: Tensor, keep: Tensor) -> Tensor:
    """x before each point where x after it is factor · x + added, and 0 before a reset: `(B, T, n)`."""
    rows, x = [], first
    for t in range(added.shape[1]):
        x = x * keep[:, t, None]
        rows.append(x)
        x = factor[:, t] * x + added[:, t]
    return torch.stack(rows, dim=1)


def _slopes(
    mode: str, h: Tensor, u: Tensor, before: Tensor, state: State, weights: list[Tensor], exists: Tensor, keep: Tensor
) -> Slopes:
    """The derivatives of the cell; at points that do not exist it passes on what it was given."""
    from_input = linear(u, weights[0], weights[2] if len(weights) == 4 else None)
    from_state = linear(before, weights[1], weights[3] if len(weights) == 4 else None)
    here, absent = exists[..., None], (~exists[..., None]).to(h.dtype)
    if mode == "lstm":
        i, f, g, o = (from_input + from_state).chunk(4, dim=-1)
        i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
        forget, write = torch.where(here, f, 1.0), torch.where(here, i * g, 0.0)
        c_before = _carried(state[1], forget, write, keep)
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
