"""Losses that operators have beside the task's, such as that of a Monte Carlo proposal."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

_open_lists: list[list[Tensor]] = []


@contextmanager
def collect_auxiliary_losses() -> Iterator[list[Tensor]]:
    """Collects what every operator that is called meanwhile, in training mode, wants added to the task's loss.

    Their gradients reach parameters of their own and nothing that the task's loss trains. Outside of it nothing of the
    kind is computed. The innermost of nested ones collects.

    Yields:
        the list that scalars, each with its weight, are appended to: add them to the loss.
    """
    losses: list[Tensor] = []
    _open_lists.append(losses)
    try:
        yield losses
    finally:
        _open_lists.pop()


def is_collecting() -> bool:
    """Whether anybody collects auxiliary losses now."""
    return bool(_open_lists)


def offer(loss: Tensor) -> None:
    """Hands a loss to whoever collects."""
    if _open_lists:
        _open_lists[-1].append(loss)
