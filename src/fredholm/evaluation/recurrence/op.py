"""The diagonal recurrence as a PyTorch operator with a gradient, opaque to the compiler."""

from typing import Any

import torch
from torch import Tensor

from fredholm.evaluation.recurrence.diagonal import DiagonalInputs, DiagonalScan


@torch.library.custom_op("fredholm::diagonal_scan", mutates_args=())
def diagonal_scan(tensors: list[Tensor], holds_input: bool, window: int, chunk: int) -> tuple[Tensor, Tensor, Tensor]:
    """y, the state after the last point, and the states before each window.

    Args:
        tensors: the fields of `DiagonalInputs`.
        holds_input: whether φ is (exp(Δ A) - 1) / A, else 1.
        window: points whose states exist at one time.
        chunk: points a chunk.
    """
    with torch.autocast(tensors[0].device.type, enabled=False):
        return DiagonalScan(DiagonalInputs(*tensors), holds_input, window, chunk).forward()


@torch.library.custom_op("fredholm::diagonal_scan_backward", mutates_args=())
def diagonal_scan_backward(
    grad_out: Tensor,
    grad_final: Tensor,
    starts: Tensor,
    tensors: list[Tensor],
    holds_input: bool,
    window: int,
    chunk: int,
) -> list[Tensor]:
    """Gradients of all tensors but `keep`."""
    with torch.autocast(grad_out.device.type, enabled=False):
        return DiagonalScan(DiagonalInputs(*tensors), holds_input, window, chunk).backward(grad_out, grad_final, starts)


@diagonal_scan.register_fake
def _(tensors: list[Tensor], holds_input: bool, window: int, chunk: int) -> tuple[Tensor, Tensor, Tensor]:
    t = DiagonalInputs(*tensors)
    windows = (t.values.shape[0] + window - 1) // window
    return (
        t.values.new_empty(t.values.shape),
        t.start.new_empty(t.start.shape),
        t.start.new_empty(windows, *t.start.shape),
    )


@diagonal_scan_backward.register_fake
def _(
    grad_out: Tensor,
    grad_final: Tensor,
    starts: Tensor,
    tensors: list[Tensor],
    holds_input: bool,
    window: int,
    chunk: int,
) -> list[Tensor]:
    t = DiagonalInputs(*tensors)
    return [g.new_empty(g.shape) for g in (t.rates, t.steps, t.values, t.read_in, t.read_out, t.start)]


def _setup_context(ctx: Any, inputs: tuple[list[Tensor], bool, int, int], output: tuple[Tensor, ...]) -> None:
    tensors, ctx.holds_input, ctx.window, ctx.chunk = inputs
    ctx.save_for_backward(output[2], *tensors)


def _backward(
    ctx: Any, grad_out: Tensor, grad_final: Tensor, _: Tensor
) -> tuple[list[Tensor | None], None, None, None]:
    starts, *tensors = ctx.saved_tensors
    *grads, grad_start = diagonal_scan_backward(
        grad_out.contiguous(), grad_final.contiguous(), starts, list(tensors), ctx.holds_input, ctx.window, ctx.chunk
    )
    return [*grads, None, grad_start], None, None, None


diagonal_scan.register_autograd(_backward, setup_context=_setup_context)
