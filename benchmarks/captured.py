"""A step as a CUDA graph, which the CPU starts by one launch instead of hundreds."""

from collections.abc import Sequence

import torch
from torch import Tensor

from benchmarks.harness import Step

WARM_UP = 3
"""Runs before the capture, which compile kernels and choose algorithms."""


def captured(step: Step) -> Step:
    """The step as one graph; every replay returns its results in the same memory.

    Forward and backward may both be captured, since all tensors of the step lie in the graph's memory. The step must
    not wait for the device, nor depend on Python values that change from run to run.
    """
    side_stream = torch.cuda.Stream()
    side_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side_stream):
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(side_stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()

    def replay() -> Sequence[Tensor]:
        graph.replay()
        return results

    return replay
