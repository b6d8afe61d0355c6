"""The diagonal recurrence and its gradient as an operator: parallel over time within windows of points.

Legend
    a_t = keep_t exp(Δ_t A),   w_t = φ_t ⊙ b_t x_t,   h_t = a_t ⊙ h_{t-1} + w_t,   y_t = Re Σ_n c_t ⊙ h_t
    g_t = conj(c_t) ẏ_t + conj(a_{t+1}) ⊙ g_{t+1}     gradient of h_t, from that of y

Only a window of states exists at one time. Its points form chunks: a first pass runs all chunks at once from zero, the
chunks' final states are combined in order (with the decay of a whole chunk, exp(A Σ Δ)), and a second pass runs all
chunks at once from their initial states. The backward runs the windows in reverse from the states that the forward
kept, one per window. In the scan all arrays have time first, states are `(…, B, n, d)`.
"""

from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm.evaluation.custom_op import Operator
from fredholm.evaluation.recurrence.matrix import Block, blocks, chunk_size


class DiagonalInputs(NamedTuple):
    """Inputs of the recurrence."""

    rates: Tensor  # A: (n, d)
    steps: Tensor  # Δ: (B, T, d), or (d,)
    values: Tensor  # x: (B, T, d)
    read_in: Tensor  # b: (B, T, n), or (n, d)
    read_out: Tensor  # c: (B, T, n), or (n, d)
    start: Tensor  # h before the first point: (B, n, d)
    keep: Tensor | None = None  # (B, T), 0 where the state is cleared before the point, else 1; None: never cleared


class DiagonalOutputs(NamedTuple):
    """Outputs of the recurrence."""

    out: Tensor  # y: (B, T, d)
    final: Tensor  # h after the last point: (B, n, d)
    starts: Tensor  # h before each window: (windows, B, n, d)


class _Window(NamedTuple):
    """Decays a and states h of a window of m points, with the state before the window first."""

    decay: Tensor  # (m, B, n, d)
    states: Tensor  # (m + 1, B, n, d)


@final
class DiagonalScan:
    """One recurrence; holds `window` points at a time, in chunks of `chunk` points (0: at most about `max_chunks`)."""

    def __init__(self, inputs: DiagonalInputs, holds_input: bool, window: int, max_chunks: int, chunk: int) -> None:
        self.inputs, self.holds_input = _time_first(inputs), holds_input
        length = self.inputs.values.shape[0]
        self.chunk = chunk or chunk_size(min(window, length), max_chunks)
        self.windows = [slice(i, min(i + window, length)) for i in range(0, length, window)]
        self.varies = inputs.steps.ndim == 3

    def forward(self) -> DiagonalOutputs:
        """y and the states."""
        h = self.inputs.start
        out, starts = torch.empty_like(self.inputs.values), h.new_empty(len(self.windows), *h.shape)
        for start, at in zip(starts, self.windows, strict=True):
            start.copy_(h)
            states = self._window(at, start).states
            out[at] = _contract(self._at(self.inputs.read_out, at), states[1:])
            h = states[-1]
        return DiagonalOutputs(_swapped(out), h.clone(), starts)

    def backward(self, starts: Tensor, grads: DiagonalOutputs) -> dict[str, Tensor]:
        """Gradients of all inputs but `keep`."""
        names, grad_out = self.inputs._fields[:5], _swapped(grads.out)
        found = [torch.zeros_like(getattr(self.inputs, name)) for name in names]
        pending = grads.final  # gradient of the state before the windows done so far
        for start, at in zip(reversed(starts), reversed(self.windows), strict=True):
            pending = self._window_gradients(at, start, grad_out[at], pending, found)
        swapped = (_swapped(grad) if grad.ndim == 3 else grad for grad in found)
        return {**dict(zip(names, swapped, strict=True)), "start": pending}

    def _window(self, at: slice, start: Tensor) -> _Window:
        size = at.stop - at.start
        states = start.new_empty(size + 1, *start.shape)
        states[0] = start
        self._write_inputs(at, states[1:])
        decay = self._decay(at)
        for block in blocks(size, self.chunk):
            a, w = (part[block.points].unflatten(0, (block.chunks, block.length)) for part in (decay, states[1:]))
            h = states[block.start][None]
            if block.chunks > 1:
                ends = torch.zeros_like(w[:-1, 0])
                for a_k, w_k in zip(a[:-1].unbind(1), w[:-1].unbind(1), strict=True):
                    torch.addcmul(w_k, a_k, ends, out=ends)
                total = self._total(at, block)
                begins = [h[0]]
                for end, decayed in zip(ends, total, strict=False):
                    begins.append(torch.addcmul(end, decayed, begins[-1]))
                h = torch.stack(begins)
            for a_k, w_k in zip(a.unbind(1), w.unbind(1), strict=True):
                h = torch.addcmul(w_k, a_k, h, out=w_k)
        return _Window(decay, states)

    def _window_gradients(
        self, at: slice, start: Tensor, grad_out: Tensor, pending: Tensor, grads: list[Tensor]
    ) -> Tensor:
        """Adds a window's contributions to all gradients; returns the gradient of the state before it."""
        inputs = self.inputs
        to_rates, to_steps, to_values, to_read_in, to_read_out = grads
        decay, states = self._window(at, start)
        decay, past, values = _conjugate(decay), _conjugate(states), inputs.values[at]
        _collect(to_read_out, at, past[1:], grad_out)
        g = _spread(_conjugate(self._at(inputs.read_out, at)), grad_out, torch.empty_like(past[1:]))
        for block in reversed(blocks(g.shape[0], self.chunk)):
            pending = self._adjoint(at, block, decay, g, pending)
        read_in, rates, steps = (_conjugate(t) for t in (self._at(inputs.read_in, at), inputs.rates, self._steps(at)))
        driven = g
        if self.holds_input:
            gain = _conjugate(self._gain(at))
            response, unheld = gain * rates + 1, g * (read_in * values[:, :, None])
            self._add_step_gradient(to_steps, at, _real(unheld * response).sum(-2))
            to_rates += (unheld * ((steps * response - gain) / rates)).sum((0, 1))
            driven = g * gain
        _collect(to_read_in, at, driven, values)
        to_values[at] += _contract(read_in, driven)
        z = torch.mul(g, decay, out=g).mul_(past[:-1])  # gradient of Δ_t A
        self._add_step_gradient(to_steps, at, _real(z * rates).sum(-2))
        to_rates += z.mul_(steps).sum((0, 1))
        return pending

    def _adjoint(self, at: slice, block: Block, decay: Tensor, v: Tensor, pending: Tensor) -> Tensor:
        """Turns v = conj(c) ẏ into g in place, from the gradient after the window; returns the one before it."""
        a, v = (part[block.points].unflatten(0, (block.chunks, block.length)) for part in (decay, v))
        behind = pending[None]
        if block.chunks > 1:
            g = v[1:, -1].clone()
            for a_next, v_k in zip(a[1:].unbind(1)[:0:-1], v[1:].unbind(1)[-2::-1], strict=True):
                torch.addcmul(v_k, a_next, g, out=g)
            g *= a[1:, 0]
            arrivals = [pending]
            for part, decayed in zip(reversed(g), reversed(_conjugate(self._total(at, block))), strict=False):
                arrivals.append(torch.addcmul(part, decayed, arrivals[-1]))
            behind = torch.stack(arrivals[::-1])
        g = v[:, -1].add_(behind)
        for a_next, v_k in zip(a.unbind(1)[:0:-1], v.unbind(1)[-2::-1], strict=True):
            g = torch.addcmul(v_k, a_next, g, out=v_k)
        return a[0, 0] * v[0, 0]

    def _steps(self, at: slice) -> Tensor:
        return self.inputs.steps[at][:, :, None] if self.varies else self.inputs.steps

    def _decay(self, at: slice) -> Tensor:
        decay = (self._steps(at) * self.inputs.rates).exp_()
        if self.inputs.keep is not None:
            return decay * self.inputs.keep[at][:, :, None, None]
        return decay.expand(at.stop - at.start, *self.inputs.start.shape)

    def _total(self, at: slice, block: Block) -> Tensor:
        """Decay over a whole chunk, `(chunks, B, n, d)`."""
        inputs, shape = self.inputs, (block.chunks, block.length)
        if self.varies:
            total = inputs.steps[at][block.points].unflatten(0, shape).sum(1)[:, :, None] * inputs.rates
        else:
            total = (block.length * inputs.steps * inputs.rates).expand(block.chunks, *inputs.start.shape)
        total = total.exp()
        if inputs.keep is not None:
            total = total * inputs.keep[at][block.points].unflatten(0, shape).amin(1)[..., None, None]
        return total

    def _gain(self, at: slice) -> Tensor:
        return torch.special.expm1(self._steps(at) * self.inputs.rates) / self.inputs.rates

    def _write_inputs(self, at: slice, out: Tensor) -> None:
        _spread(self._at(self.inputs.read_in, at), self.inputs.values[at], out)
        if self.holds_input:
            out *= self._gain(at)

    def _at(self, weights: Tensor, at: slice) -> Tensor:
        """b or c on a window, expanded to the dimensions `(m, B, n, d)`."""
        return weights[at][..., None] if weights.ndim == 3 else weights

    def _add_step_gradient(self, into: Tensor, at: slice, gradient: Tensor) -> None:
        if self.varies:
            into[at] += gradient
        else:
            into += gradient.sum((0, 1))


def _spread(weights: Tensor, values: Tensor, out: Tensor) -> Tensor:
    """b x: one number per channel, for all its state variables."""
    return torch.mul(weights, values[:, :, None], out=out)


def _contract(weights: Tensor, states: Tensor) -> Tensor:
    """Re Σ_n c h, `(m, B, d)`."""
    return _real(weights * states).sum(-2)


def _collect(into: Tensor, at: slice, states: Tensor, values: Tensor) -> None:
    """Adds a window's contribution to the gradient of b or c: states times one number per channel, summed."""
    products = states * values[:, :, None]
    if into.ndim == 3:
        into[at] += products.sum(-1)
    else:
        into += products.sum((0, 1))


def _conjugate(value: Tensor) -> Tensor:
    return value.conj_physical() if value.is_complex() else value


def _real(value: Tensor) -> Tensor:
    return value.real if value.is_complex() else value


def _time_first(inputs: DiagonalInputs) -> DiagonalInputs:
    steps, values, read_in, read_out = (
        _swapped(part) if part.ndim == 3 else part.contiguous()
        for part in (inputs.steps, inputs.values, inputs.read_in, inputs.read_out)
    )
    keep = None if inputs.keep is None else _swapped(inputs.keep)
    return DiagonalInputs(inputs.rates.contiguous(), steps, values, read_in, read_out, inputs.start.contiguous(), keep)


def _swapped(value: Tensor) -> Tensor:
    return value.transpose(0, 1).contiguous()


def _forward(inputs: DiagonalInputs, holds_input: bool, window: int, max_chunks: int, chunk: int) -> DiagonalOutputs:
    return DiagonalScan(inputs, holds_input, window, max_chunks, chunk).forward()


def _like(inputs: DiagonalInputs, holds_input: bool, window: int, max_chunks: int, chunk: int) -> DiagonalOutputs:
    values, start = inputs.values, inputs.start
    windows = (values.shape[1] + window - 1) // window
    return DiagonalOutputs(
        values.new_empty(values.shape), start.new_empty(start.shape), start.new_empty(windows, *start.shape)
    )


def _backward(
    inputs: DiagonalInputs,
    outputs: DiagonalOutputs,
    grads: DiagonalOutputs,
    wanted: frozenset[str],
    holds_input: bool,
    window: int,
    max_chunks: int,
    chunk: int,
) -> dict[str, Tensor]:
    return DiagonalScan(inputs, holds_input, window, max_chunks, chunk).backward(outputs.starts, grads)


def _plain(
    inputs: DiagonalInputs, holds_input: bool, window: int, max_chunks: int, chunk: int
) -> tuple[Tensor, Tensor]:
    """The recurrence point by point, in differentiable operations."""
    rates, steps, values, read_in, read_out, h, keep = inputs
    out = []
    for t in range(values.shape[1]):
        step = (steps[:, t] if steps.ndim == 3 else steps)[..., None, :]
        b, c = (part[:, t, :, None] if part.ndim == 3 else part for part in (read_in, read_out))
        driven = b * values[:, t, None]
        if holds_input:
            driven = torch.special.expm1(step * rates) / rates * driven
        decay = (step * rates).exp()
        h = (decay if keep is None else decay * keep[:, t, None, None]) * h + driven
        out.append(_real(c * h).sum(-2))
    return torch.stack(out, dim=1) if out else torch.zeros_like(values), h.clone()


diagonal_scan = Operator(
    "diagonal_scan",
    DiagonalInputs,
    DiagonalOutputs,
    _forward,
    _like,
    _backward,
    results=("out", "final"),
    keeps=("starts",),
    plain=_plain,
)
"""The recurrence. Options: whether φ is (exp(Δ A) - 1) / A, else 1; and those of `DiagonalScan`."""
