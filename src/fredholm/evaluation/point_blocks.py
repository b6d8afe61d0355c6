"""A block of points at a time: what is made of one does not outlive it, and the backward pass makes it anew."""

from collections.abc import Callable, Iterator
from typing import TypeVar, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Made = TypeVar("Made")


def sum_over_blocks(part: Callable[..., tuple[Tensor, ...]], points: tuple[Tensor, ...], size: int) -> list[Tensor]:
    """The sums over all blocks of what `part` makes of each.

    Args:
        part: from the points of a block to sums over them.
        points: tensors with the points in dim 1, `(B', N, …)`.
        size: points a block; a single block is kept for the backward pass.
    """
    totals = None
    for made in _made(part, points, size):
        totals = list(made) if totals is None else [total + more for total, more in zip(totals, made, strict=True)]
    assert totals is not None
    return totals


def map_over_blocks(part: Callable[..., Tensor], points: tuple[Tensor, ...], size: int) -> Tensor:
    """What `part` makes of each block, `(B, n, …)`, side by side in dim 1; arguments as in `sum_over_blocks`."""
    made = list(_made(part, points, size))
    return made[0] if len(made) == 1 else torch.cat(made, dim=1)


def _made(part: Callable[..., Made], points: tuple[Tensor, ...], size: int) -> Iterator[Made]:
    if points[0].shape[1] <= size:
        yield part(*points)
        return
    # `split` gathers gradients at once; slices would each make one of all points
    for block in zip(*(t.split(size, dim=1) for t in points), strict=True):
        yield cast("Made", checkpoint(part, *block, use_reentrant=False))
