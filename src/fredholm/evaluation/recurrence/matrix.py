"""The linear recurrence with transition matrices, parallel over chunks of time, as a PyTorch operator.

Legend
    p_t = keep_t h_{t-1},   h_t = A_t p_t + x_t,   with A_t = I where no point exists
    g_t = ḣ_t + keep_{t+1} A_{t+1}ᵀ g_{t+1}                  gradient of h_t from ḣ, the gradient of the outputs

The gradient is the same recurrence, backwards in time.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from fredholm.evaluation.custom_op import Operator


class Block(NamedTuple):
    """`chunks` consecutive chunks of `length` points, from point `start` on, which run in parallel."""

    start: int
    chunks: int
    length: int

    @property
    def points(self) -> slice:
        """The points of all chunks."""
        return slice(self.start, self.start + self.chunks * self.length)


def blocks(size: int, chunk: int) -> list[Block]:
    """Cuts `size` points into chunks of `chunk`, and a remainder."""
    chunks, rest = divmod(size, chunk)
    found = [Block(0, chunks, chunk), Block(size - rest, 1, rest)]
    return [block for block in found if block.chunks and block.length]


def chunk_size(points: int, max_chunks: int) -> int:
    """Points per chunk: the most chunks allowed that keep the number of steps and of chunks to combine small."""
    chunks = max(1, min(max_chunks, int((2 * points) ** 0.5)))
    return max(1, points // chunks)


class MatrixInputs(NamedTuple):
    """Inputs of the recurrence."""

    transition: Tensor  # A: (B', T, n, n), or (1, 1, n, n) where constant in time
    driven: Tensor  # x: (B, T, n); 0 at points that do not exist
    start: Tensor  # h before the first point: (B, n)
    exists: Tensor | None = None  # (B or 1, T) bool; None: everywhere true
    keep: Tensor | None = None  # (B, T) bool, False = the state is cleared before the point; None: everywhere true


class MatrixOutputs(NamedTuple):
    """Outputs of the recurrence."""

    states: Tensor  # h at every point: (B, T, n)


def _forward(inputs: MatrixInputs, chunk: int) -> MatrixOutputs:
    return MatrixOutputs(_scan(inputs, chunk))


def _like(inputs: MatrixInputs, chunk: int) -> MatrixOutputs:
    return MatrixOutputs(inputs.driven.new_empty(inputs.driven.shape))


def _backward(
    inputs: MatrixInputs, outputs: MatrixOutputs, grads: MatrixOutputs, wanted: frozenset[str], chunk: int
) -> dict[str, Tensor]:
    (states,), (grad,), (transition, _, start, exists, keep) = outputs, grads, inputs
    if grad.shape[1] == 0:
        return {}
    is_constant = _is_one(transition)
    following = transition if is_constant else _delayed(transition.flip(1))
    there, kept = (None if flags is None else _delayed(flags.flip(1)) for flags in (exists, keep))
    g = _scan(MatrixInputs(following.mT, grad.flip(1), torch.zeros_like(start), there, kept), chunk).flip(1)
    to_start = _apply(transition[:, 0].mT, g[:, 0])
    to_start = to_start if exists is None else torch.where(exists[:, :1], to_start, g[:, 0])
    found = {"driven": g, "start": to_start if keep is None else to_start * keep[:, :1]}
    if "transition" in wanted:
        past = torch.cat([start[:, None], states[:, :-1]], dim=1)
        past = past if keep is None else past * keep[..., None]
        through = g if exists is None else g * exists[..., None]
        if is_constant:
            found["transition"] = (through.flatten(0, 1).mT @ past.flatten(0, 1))[None, None]
        elif transition.shape[0] == 1:
            found["transition"] = torch.einsum("btn,btm->tnm", through, past)[None]
        else:
            found["transition"] = through[..., None] * past[:, :, None]
    return found


def _scan(inputs: MatrixInputs, chunk: int) -> Tensor:
    """Runs all chunks at once from zero, combines their final states in order, then reruns from the initial states."""
    transition, driven, start, exists, keep = inputs
    length, found = driven.shape[1], []
    for block in blocks(length, chunk or chunk_size(length, length)):
        at, shape = block.points, (block.chunks, block.length)
        x = driven[:, at].unflatten(1, shape)
        a = transition[:, :, None] if transition.shape[1] == 1 else transition[:, at].unflatten(1, shape)
        there, kept = (None if f is None else f[:, at].unflatten(1, shape)[..., None] for f in (exists, keep))
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
    """The states `(B, chunks, n)` of all chunks, step by step."""
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
    """A h, for one matrix or one per row."""
    if _is_one(a):
        return h @ a.reshape(a.shape[-2:]).mT
    return (a @ h[..., None])[..., 0]


def _is_one(a: Tensor) -> bool:
    """Whether it holds a single matrix; `numel` of a shape would specialise symbolic sizes."""
    return all(n == 1 for n in a.shape[:-2])


def _delayed(values: Tensor) -> Tensor:
    """Shifts entries by one point; the first one, which has no previous state, is arbitrary."""
    return torch.cat([values[:, :1], values[:, :-1]], dim=1)


# both consist of differentiable operations; the compiler need not trace them all
matrix_scan = Operator(
    "matrix_scan",
    MatrixInputs,
    MatrixOutputs,
    _forward,
    _like,
    _backward,
    keeps=("states",),
    forgets=("driven",),
    plain=_forward,
    plain_backward=_backward,
)
"""All states. Option: `chunk`, points per chunk; 0: as few steps as possible."""
