"""The fused recurrence as one operator that the compiler does not look into.

Traced, torch's own functions unroll into nodes for every point, which takes seconds to compile for each hundred points.
"""

from typing import Any

import torch
from torch import Tensor

from fredholm.evaluation.custom_op import differentiable
from fredholm.evaluation.recurrence.cells.backward import recurrence_gradients
from fredholm.evaluation.recurrence.cells.fused import fused_recurrence
from fredholm.evaluation.recurrence.cells.runs import Runs


@torch.library.custom_op("fredholm::fused_recurrence", mutates_args=())
def fused_recurrence_op(
    tensors: list[Tensor], num_states: int, mode: str, mask: Tensor | None, reset: Tensor | None
) -> list[Tensor]:
    """The output and the parts of the state at the end.

    Args:
        tensors: u, the `num_states` parts of the state, and the weights; see `fused_recurrence`.
        num_states: how many parts a state has.
        mode: `CellRecurrence.mode`.
        mask, reset: as in `Runs.of`.
    """
    u, state, weights = tensors[0], tuple(tensors[1 : 1 + num_states]), tensors[1 + num_states :]
    with torch.autocast(u.device.type, enabled=False):
        out, state = fused_recurrence(u, state, weights, mode, Runs.of(mask, reset))
    return [part.clone(memory_format=torch.contiguous_format) for part in (out, *state)]


@torch.library.custom_op("fredholm::fused_recurrence_backward", mutates_args=())
def fused_recurrence_backward(
    grads: list[Tensor],
    out: Tensor,
    tensors: list[Tensor],
    num_states: int,
    mode: str,
    mask: Tensor | None,
    reset: Tensor | None,
) -> list[Tensor]:
    """Gradients of all `tensors`, from those of the output and of the state at the end."""
    u, state, weights = tensors[0], tuple(tensors[1 : 1 + num_states]), tensors[1 + num_states :]
    if out.numel() == 0:
        return [u.new_zeros(u.shape), *(grad.clone() for grad in grads[1:]), *(w.new_zeros(w.shape) for w in weights)]
    with torch.autocast(u.device.type, enabled=False):
        found = recurrence_gradients(grads, out, u, state, weights, mode, mask, reset)
    return [grad.contiguous() for grad in found]


@fused_recurrence_op.register_fake
def _(tensors: list[Tensor], num_states: int, mode: str, mask: Tensor | None, reset: Tensor | None) -> list[Tensor]:
    u, state = tensors[0], tensors[1 : 1 + num_states]
    out = u.new_empty(u.shape[0], u.shape[1], state[0].shape[-1])
    return [out, *(part.new_empty(part.shape) for part in state)]


@fused_recurrence_backward.register_fake
def _(
    grads: list[Tensor],
    out: Tensor,
    tensors: list[Tensor],
    num_states: int,
    mode: str,
    mask: Tensor | None,
    reset: Tensor | None,
) -> list[Tensor]:
    return [tensor.new_empty(tensor.shape) for tensor in tensors]


_INSTEAD = "IntegralOperator(kernel, evaluation=StepLoop()) has all derivatives"


def _setup_context(
    ctx: Any, inputs: tuple[list[Tensor], int, str, Tensor | None, Tensor | None], output: list[Tensor]
) -> None:
    tensors, ctx.num_states, ctx.mode, mask, reset = inputs
    ctx.has_mask, ctx.has_reset = mask is not None, reset is not None
    extras = [extra for extra in (mask, reset) if extra is not None]
    ctx.save_for_backward(*tensors, output[0], *extras)


def _backward(ctx: Any, grads: list[Tensor]) -> tuple[list[Tensor], None, None, None, None]:
    saved = list(ctx.saved_tensors)
    reset = saved.pop() if ctx.has_reset else None
    mask = saved.pop() if ctx.has_mask else None
    out = saved.pop()
    grads = [grad.contiguous() for grad in grads]
    found = fused_recurrence_backward(grads, out, saved, ctx.num_states, ctx.mode, mask, reset)
    return found, None, None, None, None


differentiable(fused_recurrence_op, _backward, setup_context=_setup_context, instead=_INSTEAD)
differentiable(fused_recurrence_backward, instead=_INSTEAD)
