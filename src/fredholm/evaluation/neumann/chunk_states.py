"""A linear recurrence over chunks whose state is a matrix, as a PyTorch operator opaque to the compiler.

S_{c+1} = S_c + E_c S_c + F_c;   from the gradients Ṡ of all states, backwards: g_c = Ṡ_c + g_{c+1} + E_cᵀ g_{c+1}
"""

from typing import Any

import torch
from torch import Tensor

from fredholm.evaluation.custom_op import differentiable


@torch.library.custom_op("fredholm::chunk_states", mutates_args=())
def chunk_states(transition: Tensor, driven: Tensor, start: Tensor) -> Tensor:
    """S before every chunk and after the last, `(M, n + 1, r, d)`.

    Args:
        transition: E, `(M, n, r, r)`.
        driven: F, `(M, n, r, d)`.
        start: S before the first chunk, `(M, r, d)`.
    """
    states = driven.new_empty(driven.shape[0], driven.shape[1] + 1, *driven.shape[2:])
    states[:, 0] = start
    for c in range(driven.shape[1]):
        before = states[:, c]
        torch.baddbmm(before + driven[:, c], transition[:, c], before, out=states[:, c + 1])
    return states


@torch.library.custom_op("fredholm::chunk_states_backward", mutates_args=())
def chunk_states_backward(grad: Tensor, states: Tensor, transition: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the transition, of F and of the start."""
    total = grad.clone()
    for c in range(transition.shape[1] - 1, -1, -1):
        after = total[:, c + 1]
        total[:, c] += torch.baddbmm(after, transition[:, c].mT, after)
    return total[:, 1:] @ states[:, :-1].mT, total[:, 1:].clone(), total[:, 0].clone()


@chunk_states.register_fake
def _(transition: Tensor, driven: Tensor, start: Tensor) -> Tensor:
    return driven.new_empty(driven.shape[0], driven.shape[1] + 1, *driven.shape[2:])


@chunk_states_backward.register_fake
def _(grad: Tensor, states: Tensor, transition: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    driven = grad[:, 1:]
    return transition.new_empty(transition.shape), driven.new_empty(driven.shape), grad.new_empty(grad[:, 0].shape)


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(output, inputs[0])


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return chunk_states_backward(grad.contiguous(), *ctx.saved_tensors)


def _plain(transition: Tensor, driven: Tensor, start: Tensor) -> Tensor:
    states = [start]
    for e, f in zip(transition.unbind(1), driven.unbind(1), strict=True):
        states.append(states[-1] + e @ states[-1] + f)
    return torch.stack(states, dim=1)


def _plain_backward(grad: Tensor, states: Tensor, transition: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    *received, last = grad.unbind(1)
    found = [last]
    for e, given in zip(reversed(transition.unbind(1)), reversed(received), strict=True):
        found.append(given + found[-1] + e.mT @ found[-1])
    total = torch.stack(found[::-1], dim=1)
    return total[:, 1:] @ states[:, :-1].mT, total[:, 1:], total[:, 0]


differentiable(chunk_states, _backward, setup_context=_setup_context, plain=_plain)
differentiable(chunk_states_backward, plain=_plain_backward)
