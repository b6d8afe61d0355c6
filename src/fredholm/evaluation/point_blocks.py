"""A block of points at a time, whose features stay in a CPU's cache; of many points the backward pass has them anew."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from torch import Tensor

from fredholm.evaluation.recomputed import recomputed
from fredholm.kernels import Kernel

Made = TypeVar("Made")


class Blocks(NamedTuple):
    """How N points are cut into blocks of `size`; with `anew`, nothing of a block outlives it, and the backward pass
    computes it anew from the parameters of `reads`."""

    size: int
    anew: bool
    reads: Kernel | None

    def cut(self, points: Tensor) -> Sequence[Tensor]:
        """The blocks of a tensor with the points in dim 1."""
        # `split` gathers gradients at once; slices would each make one of all points
        return points.split(self.size, dim=1) if points.shape[1] > self.size else [points]

    def each(self, part: Callable[..., Made], *blocks: Sequence[Tensor]) -> Iterator[Made]:
        """What `part` makes of every block."""
        for given in zip(*blocks, strict=True):
            if self.anew and len(blocks[0]) > 1:
                yield recomputed(self.reads, part, *given)
            else:
                yield part(*given)

    def sum(self, part: Callable[..., tuple[Tensor, ...]], *blocks: Sequence[Tensor]) -> list[Tensor]:
        """The sums over all blocks of what `part` makes of each."""
        totals: list[Tensor] = []
        for made in self.each(part, *blocks):
            totals = [total + more for total, more in zip(totals, made, strict=True)] if totals else list(made)
        return totals


def blocks_of(u: Tensor, size: int | None, kept: int, reads: Kernel | None = None) -> Blocks:
    """How the points of `u` `(B, N, C)` are cut.

    Args:
        u: the signal.
        size: points a block; None: 2^11 on a CPU, whose cache then holds their features, 2^16 elsewhere.
        kept: numbers in a signal up to which the backward pass finds what blocks were made of, and does not compute it
            anew; 2^24 are 64 MB in float32.
        reads: whose parameters are read block by block; None: nothing is read but tensors.
    """
    return Blocks(size or (1 << 11 if u.device.type == "cpu" else 1 << 16), u.numel() > kept, reads)
