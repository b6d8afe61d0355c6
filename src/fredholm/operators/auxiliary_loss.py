"""Auxiliary losses of operators, such as that of a Monte Carlo proposal."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

_collected: ContextVar[list[Tensor] | None] = ContextVar("_collected", default=None)
# all open lists, outermost first; compiled graphs use it because the compiler cannot trace a ContextVar
_open_lists: list[list[Tensor]] = []


@contextmanager
def collect_auxiliary_losses() -> Iterator[list[Tensor]]:
    """Collects the auxiliary losses of all operators that are called inside the context in training mode.

    Their gradients reach only parameters that the task's loss does not train, such as a proposal's. Outside of the
    context no auxiliary loss is computed. The innermost of nested contexts collects, and each thread has contexts of
    its own. Compiled operators do not know their thread: their losses go to the last context opened in the process.

    Yields:
        the list to which weighted scalar losses are appended. Add them to the task's loss.
    """
    losses: list[Tensor] = []
    token = _collected.set(losses)
    _open_lists.append(losses)
    try:
        yield losses
    finally:
        _collected.reset(token)
        # not pop(): another thread may have opened a list since; not remove(): lists of tensors have no equality
        _open_lists[:] = [other for other in _open_lists if other is not losses]


def is_collecting() -> bool:
    """Whether a `collect_auxiliary_losses` context is open."""
    return bool(_open_lists) if torch.compiler.is_compiling() else _collected.get() is not None


def offer(loss: Tensor) -> None:
    """Appends a loss to the innermost open context; without one, drops it."""
    if torch.compiler.is_compiling():
        if _open_lists:
            _open_lists[-1].append(loss)
        return
    losses = _collected.get()
    if losses is not None:
        losses.append(loss)
