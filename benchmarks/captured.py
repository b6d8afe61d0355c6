"""A step as a CUDA graph: the device runs it again by itself, and the CPU launches one thing instead of hundreds."""

from collections.abc import Sequence

import torch
from torch import Tensor

from benchmarks.harness import Step

WARM_UP = 3
"""Runs before capture, which compile kernels and choose algorithms."""


def captured(step: Step) -> Step:
    """The step as one graph; what it returns is the same memory at every replay.

    Forward and backward may both be in it: what a step makes, it makes within the graph's memory. It must not wait for
    the device, nor read what changes in Python from run to run.
    """
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()

    def replay() -> Sequence[Tensor]:
        graph.replay()
        return results

    return replay
