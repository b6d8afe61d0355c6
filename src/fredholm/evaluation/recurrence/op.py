"""The diagonal recurrence as a PyTorch operator with a gradient, opaque to the compiler."""

from typing import Any

import torch
from torch import Tensor

from fredholm.evaluation.custom_op import differentiable, pullback
from fredholm.evaluation.recurrence.diagonal import DiagonalInputs, DiagonalScan


@torch.library.custom_op("fredholm::diagonal_scan", mutates_args=())
def diagonal_scan(
    tensors: list[Tensor], holds_input: bool, window: int, max_chunks: int, chunk: int
) -> tuple[Tensor, Tensor, Tensor]:
    """y, the state after the last point, and the states before each window.

    Args:
        tensors: the fields of `DiagonalInputs`, but with the batch before time.
        holds_input: whether φ is (exp(Δ A) - 1) / A, else 1.
        window: points whose states exist at one time.
        max_chunks: chunks that may run at once.
        chunk: points a chunk; 0: as `max_chunks` says.
    """
    with torch.autocast(tensors[0].device.type, enabled=False):
        scan = DiagonalScan(_time_first(tensors), holds_input, window, max_chunks, chunk)
        out, final, starts = scan.forward()
        return _swapped(out), final, starts


@torch.library.custom_op("fredholm::diagonal_scan_backward", mutates_args=())
def diagonal_scan_backward(
    grad_out: Tensor,
    grad_final: Tensor,
    starts: Tensor,
    tensors: list[Tensor],
    holds_input: bool,
    window: int,
    max_chunks: int,
    chunk: int,
) -> list[Tensor]:
    """Gradients of all tensors but `keep`."""
    with torch.autocast(grad_out.device.type, enabled=False):
        scan = DiagonalScan(_time_first(tensors), holds_input, window, max_chunks, chunk)
        *grads, to_start = scan.backward(_swapped(grad_out), grad_final, starts)
        return [*(_swapped(grad) if grad.ndim == 3 else grad for grad in grads), to_start]


@diagonal_scan.register_fake
def _(
    tensors: list[Tensor], holds_input: bool, window: int, max_chunks: int, chunk: int
) -> tuple[Tensor, Tensor, Tensor]:
    t = DiagonalInputs(*tensors)
    windows = (t.values.shape[1] + window - 1) // window
    final = t.start.new_empty(t.start.shape)
    return t.values.new_empty(t.values.shape), final, t.start.new_empty(windows, *t.start.shape)


@diagonal_scan_backward.register_fake
def _(
    grad_out: Tensor,
    grad_final: Tensor,
    starts: Tensor,
    tensors: list[Tensor],
    holds_input: bool,
    window: int,
    max_chunks: int,
    chunk: int,
) -> list[Tensor]:
    t = DiagonalInputs(*tensors)
    return [g.new_empty(g.shape) for g in (t.rates, t.steps, t.values, t.read_in, t.read_out, t.start)]


def _setup_context(ctx: Any, inputs: tuple[list[Tensor], bool, int, int, int], output: tuple[Tensor, ...]) -> None:
    tensors, *ctx.options = inputs
    ctx.save_for_backward(output[2], *tensors)


def _backward(
    ctx: Any, grad_out: Tensor, grad_final: Tensor, _: Tensor
) -> tuple[list[Tensor | None], None, None, None, None]:
    starts, *tensors = ctx.saved_tensors
    grad_out, grad_final = grad_out.contiguous(), grad_final.contiguous()
    *grads, to_start = diagonal_scan_backward(grad_out, grad_final, starts, list(tensors), *ctx.options)
    return [*grads, None, to_start], None, None, None, None


def _plain(
    tensors: list[Tensor], holds_input: bool, window: int, max_chunks: int, chunk: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The recurrence a point after the other, in differentiable operations."""
    with torch.autocast(tensors[0].device.type, enabled=False):
        rates, steps, values, read_in, read_out, keep, h = DiagonalInputs(*tensors)
        out, states = [], [h]
        for t in range(values.shape[1]):
            step = (steps[:, t] if steps.ndim == 3 else steps)[..., None, :]
            b, c = (part[:, t, :, None] if part.ndim == 3 else part for part in (read_in, read_out))
            driven = b * values[:, t, None]
            if holds_input:
                driven = torch.special.expm1(step * rates) / rates * driven
            decay = (step * rates).exp()
            h = (decay * keep[:, t, None, None] if keep.numel() else decay) * h + driven
            read = (c * h).sum(-2)
            out.append(read.real if read.is_complex() else read)
            states.append(h)
        starts = states[:-1:window]
        return (
            torch.stack(out, dim=1) if out else torch.zeros_like(values),
            h.clone(),
            torch.stack(starts) if starts else h.new_empty(0, *h.shape),
        )


def _plain_backward(
    grad_out: Tensor, grad_final: Tensor, starts: Tensor, tensors: list[Tensor], *options: Any
) -> list[Tensor]:
    # the states before windows follow from the tensors
    found = pullback(lambda moved: _plain(moved, *options)[:2], [grad_out, grad_final], tensors)
    return [grad for name, grad in zip(DiagonalInputs._fields, found, strict=True) if name != "keep"]


differentiable(diagonal_scan, _backward, setup_context=_setup_context, plain=_plain)
differentiable(diagonal_scan_backward, plain=_plain_backward)


def _time_first(tensors: list[Tensor]) -> DiagonalInputs:
    t = DiagonalInputs(*tensors)
    steps, values, read_in, read_out = (
        _swapped(part) if part.ndim == 3 else part.contiguous() for part in (t.steps, t.values, t.read_in, t.read_out)
    )
    keep = _swapped(t.keep) if t.keep.numel() else t.keep
    return DiagonalInputs(t.rates.contiguous(), steps, values, read_in, read_out, keep, t.start.contiguous())


def _swapped(value: Tensor) -> Tensor:
    return value.transpose(0, 1).contiguous()
