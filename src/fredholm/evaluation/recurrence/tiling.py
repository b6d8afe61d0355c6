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


def window_size(length: int, state_size: int, max_elements: int) -> int:
    """Points whose states are held at one time: as many as fit `max_elements` numbers, but 16 at least."""
    return max(1, min(length, max(16, max_elements // max(state_size, 1))))


def chunk_size(window: int, state_size: int, step_elements: int) -> int:
    """Points a chunk, so that a step of all chunks touches about `step_elements` numbers, and steps are not few."""
    chunks = max(1, min(step_elements // max(state_size, 1), int(window**0.5)))
    return -(-window // chunks)
