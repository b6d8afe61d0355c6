"""What every room that works in tiles needs: runs of indices, and memory that tiles share."""

from collections.abc import Iterator
from typing import final

from torch import Tensor


def ranges(total: int, step: int) -> Iterator[slice]:
    """Runs of at most `step` that cover `total`."""
    for first in range(0, total, step):
        yield slice(first, min(first + step, total))


@final
class Workspace:
    """Scratch memory by name, taken again and again: fresh pages cost as much as the arithmetic on them."""

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._buffers: dict[str, Tensor] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """Uninitialised memory of this shape, valid until the name is taken again."""
        size = 1
        for extent in shape:
            size *= extent
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < size:
            buffer = self._buffers[name] = self._like.new_empty(size)
        return buffer[:size].view(shape)
