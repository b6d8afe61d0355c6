"""A linear recurrence with a matrix for its transition, parallel over chunks of time, as a PyTorch operator.

Legend
    p_t = keep_t h_{t-1},   h_t = A_t p_t + x_t,   with A_t = I where no point exists
    g_t = ḣ_t + keep_{t+1} A_{t+1}ᵀ g_{t+1}                  gradient of h_t from ḣ, what comes from outside

The gradient is the same recurrence, backwards in time.
"""

from typing import Any

import torch
from torch import Tensor

from fredholm.evaluation.custom_op import differentiable
from fredholm.evaluation.recurrence.tiling import blocks, chunk_size


def _matrix_scan(transition: Tensor, driven: Tensor, start: Tensor, exists: Tensor, keep: Tensor, chunk: int) -> Tensor:
    """h at every point, `(B, T, n)`.

    Args:
        transition: A, `(B', T, n, n)`, or `(1, 1, n, n)` where constant in time.
        driven: x, `(B, T, n)`; 0 at points that do not exist.
        start: h before the first point, `(B, n)`.
        exists: `(B or 1, T)` bool; empty: everywhere true.
        keep: `(B, T)` bool, False = the state is cleared before the point; empty: everywhere true.
        chunk: points a chunk; 0: as few steps as possible.
    """
    with torch.autocast(driven.device.type, enabled=False):
        return _scan(transition, driven, start, exists, keep, chunk)


def _matrix_scan_backward(
    grad: Tensor, states: Tensor, transition: Tensor, start: Tensor, exists: Tensor, keep: Tensor, chunk: int
) -> list[Tensor]:
    """Gradients of the transition, of x and of the start."""
    with torch.autocast(grad.device.type, enabled=False):
        if grad.shape[1] == 0:
            return [torch.zeros_like(transition), torch.zeros_like(grad), torch.zeros_like(start)]
        is_constant = transition.shape[:2].numel() == 1
        following = transition if is_constant else _delayed(transition.flip(1))
        there, kept = (_delayed(flags.flip(1)) if flags.numel() else flags for flags in (exists, keep))
        g = _scan(following.mT, grad.flip(1), torch.zeros_like(start), there, kept, chunk).flip(1)
        past = torch.cat([start[:, None], states[:, :-1]], dim=1)
        past = past * keep[..., None] if keep.numel() else past
        through = g * exists[..., None] if exists.numel() else g
        if is_constant:
            to_transition = (through.flatten(0, 1).mT @ past.flatten(0, 1))[None, None]
        elif transition.shape[0] == 1:
            to_transition = torch.einsum("btn,btm->tnm", through, past)[None].contiguous()
        else:
            to_transition = through[..., None] * past[:, :, None]
        to_start = _apply(transition[:, 0].mT, g[:, 0])
        to_start = torch.where(exists[:, :1], to_start, g[:, 0]) if exists.numel() else to_start
        return [to_transition, g, to_start * keep[:, :1] if keep.numel() else to_start]


matrix_scan = torch.library.custom_op("fredholm::matrix_scan", _matrix_scan, mutates_args=())
matrix_scan_backward = torch.library.custom_op("fredholm::matrix_scan_backward", _matrix_scan_backward, mutates_args=())


@matrix_scan.register_fake
def _(transition: Tensor, driven: Tensor, start: Tensor, exists: Tensor, keep: Tensor, chunk: int) -> Tensor:
    return driven.new_empty(driven.shape)


@matrix_scan_backward.register_fake
def _(
    grad: Tensor, states: Tensor, transition: Tensor, start: Tensor, exists: Tensor, keep: Tensor, chunk: int
) -> list[Tensor]:
    return [t.new_empty(t.shape) for t in (transition, grad, start)]


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, int], output: Tensor) -> None:
    transition, _, start, exists, keep, ctx.chunk = inputs
    ctx.save_for_backward(output, transition, start, exists, keep)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
    to_transition, to_driven, to_start = matrix_scan_backward(grad.contiguous(), *ctx.saved_tensors, ctx.chunk)
    return to_transition, to_driven, to_start, None, None, None


# both are made of differentiable operations; the compiler need not see them all
differentiable(matrix_scan, _backward, setup_context=_setup_context, plain=_matrix_scan)
differentiable(matrix_scan_backward, plain=_matrix_scan_backward)


def _scan(transition: Tensor, driven: Tensor, start: Tensor, exists: Tensor, keep: Tensor, chunk: int) -> Tensor:
    """All chunks at once from zero, their ends put together in order, then all at once from what each begins with."""
    length = driven.shape[1]
    found = []
    for block in blocks(length, chunk or chunk_size(length, length)):
        at, shape = block.points, (block.chunks, block.length)
        x = driven[:, at].unflatten(1, shape)
        a = transition[:, :, None] if transition.shape[1] == 1 else transition[:, at].unflatten(1, shape)
        there, kept = (f[:, at].unflatten(1, shape)[..., None] if f.numel() else None for f in (exists, keep))
        begins = start[:, None]
        if block.chunks > 1:
            ends = _run(a, x, torch.zeros_like(x[:, :, 0]), there, kept)[-1]
            total = _total(a, block.length, there, kept).expand(-1, block.chunks, -1, -1)
            states = [start]
            for j in range(block.chunks - 1):
                states.append(ends[:, j] + _apply(total[:, j], states[-1]))
            begins = torch.stack(states, dim=1)
        found.append(torch.stack(_run(a, x, begins, there, kept), dim=2).flatten(1, 2))
        start = found[-1][:, -1]
    return torch.cat(found, dim=1) if found else torch.zeros_like(driven)


def _run(a: Tensor, x: Tensor, h: Tensor, there: Tensor | None, kept: Tensor | None) -> list[Tensor]:
    """The states `(B, chunks, n)` of all chunks, a step after the other."""
    states = []
    for k in range(x.shape[2]):
        h = h if kept is None else h * kept[:, :, k]
        following = _apply(_at(a, k), h)
        h = (following if there is None else torch.where(there[:, :, k], following, h)) + x[:, :, k]
        states.append(h)
    return states


def _total(a: Tensor, length: int, there: Tensor | None, kept: Tensor | None) -> Tensor:
    """The transition of a whole chunk, `(B', chunks or 1, n, n)`."""
    total = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    for k in range(length):
        following = _at(a, k) @ total
        total = following if there is None else torch.where(there[:, :, k, :, None], following, total)
    return total if kept is None else total * kept.all(2)[..., None]


def _at(a: Tensor, k: int) -> Tensor:
    return a[:, :, 0 if a.shape[2] == 1 else k]


def _apply(a: Tensor, h: Tensor) -> Tensor:
    """A h, for one matrix or one a row."""
    if a.shape[:-2].numel() == 1:
        return h @ a.reshape(a.shape[-2:]).mT
    return (a @ h[..., None])[..., 0]


def _delayed(values: Tensor) -> Tensor:
    """Each entry at the place of the next; the first, which no state comes before, may be any."""
    return torch.cat([values[:, :1], values[:, :-1]], dim=1)
