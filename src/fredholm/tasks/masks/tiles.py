"""Overlapping tiles of one side of an image."""

import itertools
import math
from typing import NamedTuple, final


@final
class Tile(NamedTuple):
    """A run of pixels, of which those that lie nearest to its middle are its own.

    Args:
        first: its first pixel.
        start, stop: its own pixels, from `start` to before `stop`; each pixel belongs to one tile.
    """

    first: int
    start: int
    stop: int

    @property
    def place(self) -> slice:
        """Its own pixels in the image."""
        return slice(self.start, self.stop)

    @property
    def own(self) -> slice:
        """The same in the tile."""
        return slice(self.start - self.first, self.stop - self.first)


def tiles(extent: int, side: int) -> list[Tile]:
    """Returns evenly spaced tiles of `side` pixels, at most `extent`, that overlap by half or more."""
    count = 1 + math.ceil((extent - side) / max(1, side // 2))
    firsts = [i * (extent - side) // max(1, count - 1) for i in range(count)]
    bounds = [0, *((one + other + side) // 2 for one, other in itertools.pairwise(firsts)), extent]
    return [Tile(first, *own) for first, own in zip(firsts, itertools.pairwise(bounds), strict=True)]
