"""Independent parts of one computation on a CPU, each in a thread of its own."""

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")


def in_threads(parts: Sequence[Callable[[], T]]) -> list[T]:
    """What the parts return, in order; each runs all its operations in one thread.

    A chain of small operations in a core's cache gains nothing from PyTorch's own threads, which meet after each one.
    Nothing is recorded for autograd. An error of a part is raised once all have ended.
    """
    if len(parts) == 1:
        return [parts[0]()]
    before = torch.get_num_threads()
    # of MKL, which knows one number for the whole process; the pool's threads set their own
    torch.set_num_threads(1)
    try:
        # threads that end here cannot be missing in a forked process later
        with ThreadPoolExecutor(len(parts), initializer=torch.set_num_threads, initargs=(1,)) as pool:
            running = [pool.submit(_quietly, part) for part in parts]
            return [part.result() for part in running]
    finally:
        torch.set_num_threads(before)


def slices(count: int, work: int, device: torch.device, least: int) -> list[slice]:
    """Even runs of `count` items for `in_threads`: as many as PyTorch has threads, and one off a CPU.

    Args:
        count: independent items.
        work: elements that all of them pass through.
        least: elements that are worth a thread.
    """
    parts = min(torch.get_num_threads(), count, work // least) if device.type == "cpu" else 1
    edges = [count * part // max(1, parts) for part in range(max(1, parts) + 1)]
    return [slice(start, stop) for start, stop in itertools.pairwise(edges)]


def _quietly(part: Callable[[], T]) -> T:
    with torch.no_grad():
        return part()
