"""Where a run computes."""

import torch

from fredholm.tasks.task import Batch


def choose_device(name: str = "auto") -> torch.device:
    """The device called ``name``; ``auto`` takes the first CUDA device, or else the CPU.

    Raises:
        ValueError: no such device on this machine.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(f"device {name!r} is not available here; `auto` or `cpu` always is") from error
    return device


def move(batch: Batch, device: torch.device) -> Batch:
    """The batch on ``device``; from pinned memory the copy overlaps with computing."""
    return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
