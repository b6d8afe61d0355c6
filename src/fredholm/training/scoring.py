"""A model's metrics on a held-out split of its task."""

import torch
from torch import nn

from fredholm.tasks.splits.splits import HeldOut
from fredholm.tasks.task import Task

from .device import move
from .progress import progress_bar


@torch.no_grad()
def score_split(
    task: Task, split: HeldOut, model: nn.Module, *, batch_size: int, device: torch.device, dtype: torch.dtype
) -> dict[str, float]:
    """All of the task's metrics over a whole split, which has examples.

    Args:
        model: on ``device``, in evaluation mode.
        dtype: float32, or a lower precision to compute in by autocast.
    """
    metrics = {name: metric.to(device) for name, metric in task.metrics().items()}
    with (
        progress_bar(split, task.num_held_out(split), unit="example") as bar,
        torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32),
    ):
        for indices in torch.arange(task.num_held_out(split)).split(batch_size):
            task.score(model, move(task.held_out_batch(split, indices), device), metrics)
            bar.update(len(indices))
    return {name: float(metric.compute()) for name, metric in metrics.items()}
