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
    """Metrics over a whole split, which has examples.

    What was given nothing, such as that of pixels none of which has a known class, is NaN.

    Args:
        task: whose they are.
        split: of its data.
        model: on ``device``, in evaluation mode; one that lies on all processes as `CalledModel`, which is whole on
            each meanwhile.
        batch_size: examples that are computed at once.
        device: where to compute.
        dtype: float32, or a lower precision to compute in by autocast.
        processes: that compute a part each, and all get what one would up to rounding.
        score, metrics: how a batch is scored, and by what; None: as the task does it, and all of its metrics.
    """
    with importing_metrics():
        from torchmetrics import Metric

    found = task.metrics() if metrics is None else metrics
    metrics = {name: metric.to(device) for name, metric in found.items()}
    indices = torch.arange(task.num_held_out(split))
    called = model if isinstance(model, CalledModel) else CalledModel(model)
    is_shared = 1 < processes.size <= len(indices)  # a metric of no example joins no others
    for part in (part for metric in metrics.values() for part in metric.modules()):
        if isinstance(part, Metric):
            # else it would wait for processes that measure nothing
            part.distributed_available_fn = lambda: is_shared
    own = indices[processes.rows(len(indices))] if is_shared else indices
    with (
        held_whole(called),  # how often an example calls a block depends on it, and on how many a process has
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
    """Whether a metric, or one that it is made of, was given anything."""
    parts = [part for part in metric.modules() if hasattr(part, "update_called")]
    return any(part.update_called for part in parts)
