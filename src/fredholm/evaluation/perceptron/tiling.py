"""How the pairs of an integral are cut into tiles, and the memory that tiles share."""

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor

from fredholm.evaluation.perceptron.inputs import Block


class Tiling(NamedTuple):
    """Sizes of a tile, in which p lives, and of a chunk of tiles, which shares one S.

    `elements` is the number of entries that a tile aims at.
    """

    batch: int
    queries: int
    keys: int
    chunk_batch: int
    chunk_queries: int
    elements: int


def choose_tiling(batch: int, num_queries: int, num_keys: int, width: int, dim: int, elements: int) -> Tiling:
    """Tiles of about `elements` entries of p: all keys when they fit, then queries, then batch entries.

    A chunk holds about twice as many entries of S, batch entries before queries, because a batch shares R.
    """
    keys = max(1, min(num_keys, max(256, elements // (4 * width))))
    per_query = width * max(keys, dim)
    queries = max(1, min(num_queries, elements // per_query))
    capacity = 2 * elements // (width * dim)
    chunk_batch = max(1, min(batch, capacity // queries))
    chunk_queries = queries * max(1, capacity // (chunk_batch * queries))
    tile_batch = max(1, min(chunk_batch, elements // (per_query * queries)))
    return Tiling(tile_batch, queries, keys, chunk_batch, chunk_queries, elements)


def ranges(total: int, step: int) -> Iterator[slice]:
    """Runs of at most `step` that cover `total`."""
    for first in range(0, total, step):
        yield slice(first, min(first + step, total))


def split_at_block(total: int, step: int, start: int, block: Block, multiple: int = 1) -> Iterator[tuple[slice, bool]]:
    """Runs of at most `step` that lie within or outside the block, and which; within it, multiples of `multiple`."""
    stop = start + block.size
    for low, high, inside in ((0, start, False), (start, stop, True), (stop, total, False)):
        stride = max(multiple, step // multiple * multiple) if inside else step
        for first in range(low, high, stride):
            yield slice(first, min(first + stride, high)), inside


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
