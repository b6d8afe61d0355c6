"""The device of a run: its choice, its checks, and moving a batch to it."""

import torch
import torch.distributed as dist

from fredholm.distributed.processes import ALONE, Processes
from fredholm.tasks.task import Batch


def choose_device(name: str = "auto", processes: Processes = ALONE) -> torch.device:
    """Returns the device called ``name``; ``auto`` takes the first CUDA device, or else the CPU.

    Args:
        name: name of the device.
        processes: each process computes on a CUDA device of its own, by its number on the machine.

    Raises:
        ValueError: no such device on this machine, or none for this process.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
        if processes.size == 1:
            return torch.device(name)
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(f"device {name!r} is not available here; `auto` or `cpu` always is") from error
    return device if processes.size == 1 or device.type != "cuda" else _own(device, processes)


def _own(device: torch.device, processes: Processes) -> torch.device:
    """Returns the CUDA device of one of several processes."""
    if device.index is not None:
        raise ValueError(f"device '{device}' is one, and each of {processes.size} processes takes its own; pass cuda")
    count, number = torch.cuda.device_count(), processes.local_rank
    if number >= count:
        raise ValueError(
            f"{number + 1} processes or more on this machine, which has {count} GPUs; start at most {count}, or pass "
            "the device cpu"
        )
    if not dist.is_nccl_available():
        raise ValueError(
            f"torch {torch.__version__} was built without NCCL, by which GPUs talk to each other; install a build with "
            "it, train on one process, or pass the device cpu"
        )
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def move(batch: Batch, device: torch.device) -> Batch:
    """Returns the batch on ``device``; the copy from pinned memory overlaps with computing."""
    return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
