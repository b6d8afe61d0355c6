"""Peak memory of a computation, measured in a process with a higher earlier peak."""

import pytest
import torch

from fredholm.operators.cost import PeakMemory

CPU = torch.device("cpu")


def megabytes(count: int) -> torch.Tensor:
    return torch.ones(count * 1_000_000 // 4)


def test_peak_memory_includes_freed_memory_and_excludes_earlier_memory() -> None:
    megabytes(400).sum()
    held = megabytes(40)
    with PeakMemory(CPU) as peak:
        megabytes(120).sum()
    assert held.sum() > 0
    assert 118 <= peak.megabytes <= 135


def test_a_computation_without_allocations_has_a_peak_near_zero() -> None:
    held = megabytes(40)
    with PeakMemory(CPU) as peak:
        total = held.sum()
    assert total > 0
    assert 0 <= peak.megabytes <= 15


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_the_peak_comes_from_the_allocator() -> None:
    device = torch.device("cuda")
    with PeakMemory(device) as peak:
        torch.ones(30_000_000, device=device).sum()
    assert 120 <= peak.megabytes <= 125
