"""A linear recurrence over chunks whose state is a matrix, as a PyTorch operator opaque to the compiler.

S_{c+1} = S_c + E_c S_c + F_c;   from the gradients Ṡ of all states, backwards: g_c = Ṡ_c + g_{c+1} + E_cᵀ g_{c+1}
"""

from typing import NamedTuple

import torch
from torch import Tensor

from fredholm.evaluation.custom_op import Operator


class Chunks(NamedTuple):
    """What the states are computed from."""

    transition: Tensor  # E: (M, n, r, r)
    driven: Tensor  # F: (M, n, r, d)
    start: Tensor  # S before the first chunk: (M, r, d)


class ChunkStates(NamedTuple):
    """The states."""

    states: Tensor  # S before every chunk and after the last: (M, n + 1, r, d)


def _like(chunks: Chunks) -> ChunkStates:
    count, length, *rest = chunks.driven.shape
    return ChunkStates(chunks.driven.new_empty(count, length + 1, *rest))


def _forward(chunks: Chunks) -> ChunkStates:
    (states,) = _like(chunks)
    states[:, 0] = chunks.start
    for c, (e, f) in enumerate(zip(chunks.transition.unbind(1), chunks.driven.unbind(1), strict=True)):
        torch.baddbmm(states[:, c] + f, e, states[:, c], out=states[:, c + 1])
    return ChunkStates(states)


def _plain(chunks: Chunks) -> ChunkStates:
    states = [chunks.start]
    for e, f in zip(chunks.transition.unbind(1), chunks.driven.unbind(1), strict=True):
        states.append(states[-1] + e @ states[-1] + f)
    return ChunkStates(torch.stack(states, dim=1))


def _backward(chunks: Chunks, outputs: ChunkStates, grads: ChunkStates, wanted: frozenset[str]) -> dict[str, Tensor]:
    total = _adjoint(chunks.transition, grads.states)
    found = {"driven": total[:, 1:], "start": total[:, 0]}
    if "transition" in wanted:
        found["transition"] = total[:, 1:] @ outputs.states[:, :-1].mT
    return found


def _adjoint(transition: Tensor, grad: Tensor) -> Tensor:
    """g, in differentiable operations."""
    *received, last = grad.unbind(1)
    found = [last]
    for e, given in zip(reversed(transition.unbind(1)), reversed(received), strict=True):
        found.append(torch.baddbmm(given + found[-1], e.mT, found[-1]))
    return torch.stack(found[::-1], dim=1)


chunk_states = Operator(
    "chunk_states",
    Chunks,
    ChunkStates,
    _forward,
    _like,
    _backward,
    keeps=("states",),
    forgets=("driven", "start"),
    plain=_plain,
    plain_backward=_backward,
)
