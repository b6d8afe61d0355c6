"""Losses that operators have beside the task's, such as that of a Monte Carlo proposal."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

_collected: ContextVar[list[Tensor] | None] = ContextVar("_collected", default=None)
# all that are open, which a graph reads instead: the compiler traces no ContextVar
_open_lists: list[list[Tensor]] = []


@contextmanager
def collect_auxiliary_losses() -> Iterator[list[Tensor]]:
    """Collects what every operator that is called meanwhile, in training mode, wants added to the task's loss.

    Their gradients reach parameters of their own and nothing that the task's loss trains. Outside of it nothing of the
    kind is computed. The innermost of nested ones collects, and each thread for itself; but compiled operators do not
    know their thread, and give to the one opened last in the process.

    Yields:
        the list that scalars, each with its weight, are appended to: add them to the loss.
    """
    losses: list[Tensor] = []
    token = _collected.set(losses)
    _open_lists.append(losses)
    try:
        yield losses
    finally:
        _collected.reset(token)
        # not pop(): another thread may have opened one since; not remove(): lists of tensors do not compare
        _open_lists[:] = [other for other in _open_lists if other is not losses]


def is_collecting() -> bool:
    """Whether anybody collects auxiliary losses now."""
    return bool(_open_lists) if torch.compiler.is_compiling() else _collected.get() is not None


def offer(loss: Tensor) -> None:
    """Hands a loss to whoever collects."""
    if torch.compiler.is_compiling():
        if _open_lists:
            _open_lists[-1].append(loss)
        return
    losses = _collected.get()
    if losses is not None:
        losses.append(loss)
