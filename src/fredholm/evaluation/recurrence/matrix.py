"""A linear recurrence with a matrix for its transition, parallel over chunks of time."""

import torch
from torch import Tensor

from fredholm.evaluation.recurrence.tiling import blocks


def matrix_scan(
    transition: Tensor, driven: Tensor, start: Tensor, exists: Tensor | None, keep: Tensor | None, chunk: int
) -> Tensor:
    """h_t = A_t h_{t-1} + x_t at every point.

    All chunks run at once from zero; the chunks' ends are put together in order by the transition of a whole chunk;
    then all chunks run at once from the state that each begins with.

    Args:
        transition: A, `(B', T, n, n)`, or `(1, 1, n, n)` where constant in time.
        driven: x, `(B, T, n)`; 0 at points that do not exist.
        start: h before the first point, `(B, n)`.
        exists: `(B or 1, T)` bool, False = A_t is the identity; None: everywhere true.
        keep: `(B, T)` bool, False = the state is cleared before the point; None: everywhere true.
        chunk: points a chunk.

    Returns:
        `(B, T, n)`.
    """
    found = []
    for block in blocks(driven.shape[1], chunk):
        at, shape = block.points, (block.chunks, block.length)
        x = driven[:, at].unflatten(1, shape)
        a = transition[:, :, None] if transition.shape[1] == 1 else transition[:, at].unflatten(1, shape)
        there = None if exists is None else exists[:, at].unflatten(1, shape)[..., None]
        kept = None if keep is None else keep[:, at].unflatten(1, shape)[..., None]
        begins = start[:, None]
        if block.chunks > 1:
            ends = _run(a, x, torch.zeros_like(x[:, :, 0]), there, kept)[-1]
            total = _total(a, block.length, there, kept)
            total = total.expand(-1, block.chunks, -1, -1)
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
        following = _apply(_at(a, k), h) + x[:, :, k]
        h = following if there is None else torch.where(there[:, :, k], following, h)
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
