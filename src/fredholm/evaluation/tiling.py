"""Tools of tiled routes: slices, scratch memory, and checks of pair weights."""

from collections.abc import Iterator
from typing import Any, final

from torch import Tensor

from fredholm.evaluation.integral import Integral


def ranges(total: int, step: int) -> Iterator[slice]:
    """Slices of at most `step` that cover `total`."""
    for first in range(0, total, step):
        yield slice(first, min(first + step, total))


def pair_refusals(integral: Integral[Any]) -> list[str]:
    """Reasons why pair weights do not fit the heads of a kernel with `num_heads`; empty where they do, or without any.

    `Dense` also accepts weights for groups of channels that are no heads.
    """
    bias, heads = integral.domain.pair_bias, integral.kernel.num_heads
    if bias is None or bias.shape[1] in (1, heads):
        return []
    return [f"pairs are weighed for {bias.shape[1]} heads, and the kernel has {heads}"]


@final
class Workspace:
    """Scratch memory by name, for reuse: fresh pages cost as much as the arithmetic on them."""

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._buffers: dict[str, Tensor] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """Uninitialised memory of this shape, valid until the name is used again."""
        size = 1
        for extent in shape:
            size *= extent
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < size:
            buffer = self._buffers[name] = self._like.new_empty(size)
        return buffer[:size].view(shape)
