"""How a sequence is cut for a parallel scan."""

from typing import NamedTuple


class Block(NamedTuple):
    """`chunks` chunks of `length` points in a row, from point `start` on, that are run at once."""

    start: int
    chunks: int
    length: int

    @property
    def points(self) -> slice:
        """The points of all chunks."""
        return slice(self.start, self.start + self.chunks * self.length)


def blocks(size: int, chunk: int) -> list[Block]:
    """Cuts `size` points into chunks of `chunk`, and what remains."""
    chunks, rest = divmod(size, chunk)
    found = [Block(0, chunks, chunk), Block(size - rest, 1, rest)]
    return [block for block in found if block.chunks and block.length]


def chunk_size(points: int, max_chunks: int) -> int:
    """Points a chunk: as many chunks as allowed, but not more than keep steps and the joining of chunks few."""
    chunks = max(1, min(max_chunks, int((2 * points) ** 0.5)))
    return max(1, points // chunks)
