"""How a sequence is cut for a parallel scan."""

import math
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


def choose_window(
    length: int, state_size: int, max_elements: int, step_elements: int, chunk: int | None
) -> tuple[int, int]:
    """Points whose states are held at one time, and points a chunk.

    Args:
        length: points T.
        state_size: numbers in a state.
        max_elements: numbers that may be held, but for 16 points at least.
        step_elements: numbers that a step of all chunks may touch.
        chunk: points a chunk, where that is given. Else chunks are as many as `step_elements` allow, and so few that
            neither steps nor chunks, which are put together in order, are many.
    """
    window = max(1, min(length, max(16, max_elements // max(state_size, 1))))
    if chunk is None:
        chunks = max(1, min(step_elements // max(state_size, 1), 2 * math.isqrt(window)))
        chunk = max(1, window // chunks)
    return max(chunk, window - window % chunk), chunk
