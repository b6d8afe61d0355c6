"""Widths under which networks of different kernels have the same number of parameters.

With P(d, h) the parameters of a network of d channels and h hidden units, and P* the target: d is the multiple of the
number of heads at which P(d, e d) is nearest to P*, where e is the expansion of the preset; then h is the integer at
which P(d, h) is nearest. P is counted on built models.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

from fredholm.blocks.feed_forward import hidden_width
from fredholm.models.stack import Stack

TOLERANCE = 0.05
"""Largest relative deviation of a network's parameters from the target."""
LEAST, MOST = 0.25, 16.0
"""Range of hidden units per channel."""


class SizedNetwork(NamedTuple):
    """A network of solved width."""

    stack: Stack
    parameters: int


def sized(stack: Stack, heads: int, wanted: int, count: Callable[[Stack], int]) -> SizedNetwork:
    """Returns the network whose parameters match the target within 5 %.

    Args:
        stack: network with the kernel, and the expansion of the preset.
        heads: heads of the preset; the channels are a multiple of it, whether the kernel has heads or not.
        wanted: target P*.
        count: counts the parameters of a built model.

    Raises:
        ValueError: no width matches the target.
    """

    def at(embed_dim: int, hidden: int | None = None) -> SizedNetwork:
        expansion = stack.expansion if hidden is None else hidden / embed_dim
        found = dataclasses.replace(stack, embed_dim=embed_dim, expansion=expansion)
        return SizedNetwork(found, count(found))

    def is_better(one: SizedNetwork, other: SizedNetwork) -> bool:
        return abs(one.parameters - wanted) < abs(other.parameters - wanted)

    below, above = at(heads), at(stack.embed_dim)
    while above.parameters < wanted:
        below, above = above, at(2 * above.stack.embed_dim)
    while above.stack.embed_dim - below.stack.embed_dim > heads:
        steps = (above.stack.embed_dim - below.stack.embed_dim) // heads
        middle = at(below.stack.embed_dim + heads * (steps // 2))
        below, above = (middle, above) if middle.parameters < wanted else (below, middle)
    best = below if is_better(below, above) else above
    width, hidden = best.stack.embed_dim, hidden_width(best.stack.embed_dim, stack.expansion)
    each = at(width, hidden + 1).parameters - best.parameters  # P is linear in h
    if each > 0:
        hidden += round((wanted - best.parameters) / each)
        hidden = min(max(hidden, round(LEAST * width), 1), round(MOST * width))
        finer = at(width, hidden)
        best = finer if is_better(finer, best) else best
    if abs(best.parameters - wanted) > TOLERANCE * wanted:
        raise ValueError(
            f"with {width} channels it has {best.parameters:,} parameters, and {wanted:,} within 5 % are wanted: no "
            f"width brings it there"
        )
    return best
