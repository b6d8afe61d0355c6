"""A model's metrics on a task's test split."""

import torch
from torch import nn

from fredholm.tasks.task import Task
from fredholm.training.device import move
from fredholm.training.progress import progress_bar


@torch.no_grad()
def score_test_split(
    task: Task, model: nn.Module, *, batch_size: int, device: torch.device, dtype: torch.dtype
) -> dict[str, float]:
    """All of the task's metrics over the whole test split.

    Args:
        model: on ``device``, in evaluation mode.
        dtype: float32, or a lower precision to compute in by autocast.
    """
    metrics = {name: metric.to(device) for name, metric in task.metrics().items()}
    with (
        progress_bar("test", task.num_test, unit="example") as bar,
        torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32),
    ):
        for indices in torch.arange(task.num_test).split(batch_size):
            task.score(model, move(task.test_batch(indices), device), metrics)
            bar.update(len(indices))
    return {name: float(metric.compute()) for name, metric in metrics.items()}
