"""Cutting an array of responses into blocks that stay in cache."""

from collections.abc import Iterator

import torch

Block = tuple[slice, slice, slice]

# of a block, and of each scratch beside it, for each thread: half a megabyte in float32, four of which nearly fit a
# core's second-level cache, and still long beside the wait of threads for each other
BLOCK_ELEMENTS = 2**17
# of the rows whose products are computed by one matrix product: enough for its full speed
PRODUCT_ELEMENTS = 2**22


def blocks(shape: tuple[int, int, int, int], elements: int) -> Iterator[Block]:
    """Runs over the first three dimensions of `shape` that together cover it once.

    A block holds at most `elements` entries, or one run of the last dimension where that alone holds more. It is a
    contiguous piece of a contiguous array.
    """
    n, groups, units, points = shape
    if n * groups * units * points == 0:
        return
    if (whole := groups * units * points) <= elements:
        for run in runs(n, elements // whole):
            yield run, slice(0, groups), slice(0, units)
        return
    for i in range(n):
        if (group := units * points) <= elements:
            for run in runs(groups, elements // group):
                yield slice(i, i + 1), run, slice(0, units)
            continue
        for g in range(groups):
            for run in runs(units, max(1, elements // points)):
                yield slice(i, i + 1), slice(g, g + 1), run


def block_elements(per_thread: int) -> int:
    """Entries of a block that all threads work on."""
    return per_thread * torch.get_num_threads()


def runs(total: int, step: int) -> Iterator[slice]:
    """Slices of at most `step` that cover `total` once."""
    for start in range(0, total, step):
        yield slice(start, min(start + step, total))
