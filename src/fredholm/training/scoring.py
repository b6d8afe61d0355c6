"""A model's metrics on a held-out split of its task."""

import math
from typing import TYPE_CHECKING

import torch
from torch import nn

from fredholm.distributed.parallel_model import CalledModel, held_whole
from fredholm.distributed.processes import ALONE, Processes
from fredholm.tasks.optional_packages import importing_metrics
from fredholm.tasks.splits.splits import HeldOut
from fredholm.tasks.task import Score, Task

from .device import move
from .progress import progress_bar

if TYPE_CHECKING:
    from torchmetrics import Metric


@torch.no_grad()
def score_split(
    task: Task,
    split: HeldOut,
    model: nn.Module,
    *,
    batch_size: int,
    device: torch.device,
    dtype: torch.dtype,
    processes: Processes = ALONE,
    score: Score | None = None,
    metrics: "dict[str, Metric] | None" = None,
) -> dict[str, float]:
    """Computes metrics over a whole split, which must not be empty.

    A metric that received no input, such as a pixel metric where no pixel has a known class, is NaN.

    Args:
        task: task of the model.
        split: its held-out split.
        model: on ``device``, in evaluation mode; a `CalledModel` that is sharded over processes is gathered on each
            meanwhile.
        batch_size: examples per batch.
        device: device to compute on.
        dtype: float32, or a lower precision for autocast.
        processes: processes that compute a part each; all get the metrics of one up to rounding.
        score, metrics: scoring function and metrics; None: the task's.
    """
    with importing_metrics():
        from torchmetrics import Metric

    found = task.metrics() if metrics is None else metrics
    metrics = {name: metric.to(device) for name, metric in found.items()}
    indices = torch.arange(task.num_held_out(split))
    called = model if isinstance(model, CalledModel) else CalledModel(model)
    is_shared = 1 < processes.size <= len(indices)  # a metric without examples cannot be reduced with others
    for part in (part for metric in metrics.values() for part in metric.modules()):
        if isinstance(part, Metric):
            # else it would wait for processes that measure nothing
            part.distributed_available_fn = lambda: is_shared
    own = indices[processes.rows(len(indices))] if is_shared else indices
    with (
        held_whole(called),  # the number of calls of a block depends on the examples, and so on the process
        progress_bar(split, len(own), unit="example") as bar,
        torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32),
    ):
        for some in own.split(batch_size):
            called(score or task.score, move(task.held_out_batch(split, some), device), metrics)
            bar.update(len(some))
    return {
        name: float(metric.compute()) if is_shared or _was_given(metric) else math.nan
        for name, metric in metrics.items()
    }


def _was_given(metric: "Metric") -> bool:
    """Whether a metric, or one of its parts, has been updated."""
    parts = [part for part in metric.modules() if hasattr(part, "update_called")]
    return any(part.update_called for part in parts)
