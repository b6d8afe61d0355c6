"""The processes on which tests of this folder run."""

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.processes import on_processes


def summed(value: float) -> Tensor:
    total = torch.tensor([value + dist.get_rank()])
    dist.all_reduce(total)
    return total


def failing_on_one() -> None:
    if dist.get_rank() == 1:
        raise ValueError("rank 1 has had enough")


def test_processes_communicate() -> None:
    assert on_processes(3, summed, 2.0) == [torch.tensor([9.0])] * 3


def test_an_error_in_a_process_fails_the_test() -> None:
    with pytest.raises(AssertionError, match="rank 1 has had enough"):
        on_processes(2, failing_on_one)
