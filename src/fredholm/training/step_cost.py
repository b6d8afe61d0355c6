"""The cost of a training step, measured on a model that is thrown away."""

import contextlib
import gc
import os
import statistics
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, final

import torch
from torch.profiler import ProfilerActivity, profile

from fredholm.distributed.processes import Processes
from fredholm.storage.tensors import model_tensors
from fredholm.tasks.splits.splits import HeldOut
from fredholm.tasks.task import Score, Task

from .batches import EpochBatches
from .config import TrainingConfig
from .device import move
from .learner import Learner
from .random_state import seed_everything
from .trainer import check_examples

if TYPE_CHECKING:
    from torchmetrics import Metric

ENOUGH = 3.0
"""Seconds after which no further step is measured."""


@final
class StepCost(NamedTuple):
    """Measured cost of a run's steps and evaluations."""

    model: str
    """Class name of the model."""
    num_parameters: int
    num_parameter_bytes: int
    num_buffer_bytes: int
    """Size of the buffers in a checkpoint."""
    steps_per_epoch: int
    seconds: float
    """Time of a step, including its batch."""
    evaluation_seconds: float
    """Time of one evaluation on the validation split."""
    memory_bytes: int | None
    """Rise of torch's memory during a step, at its peak; None: not measured."""


def step_cost(
    task: Task,
    config: TrainingConfig,
    seed: int,
    *,
    repeats: int = 1,
    with_memory: bool = False,
    num_processes: int = 1,
) -> StepCost:
    """Measures steps after a warm-up step, and the evaluation of one batch; nothing is kept.

    Args:
        task: task of the run.
        config: its training settings.
        seed: its seed.
        repeats: number of steps to take the median of; fewer where they exceed ENOUGH seconds together.
        with_memory: also measure memory, in one more step.
        num_processes: processes that share each batch and each evaluation.

    Raises:
        ValueError: as raised by `train` for unusable data or epochs.
    """
    check_examples(task, config)
    seed_everything(seed)
    # the first process has the largest part
    batches = EpochBatches(task, config.batch_size, seed, 0, Processes(size=num_processes))
    num_steps = config.epochs * len(batches)
    learner = Learner(task, config, max(num_steps, 1), is_new=False)
    seconds, memory, evaluation = 0.0, None, 0.0
    if num_steps:
        learner.update(batches[0], 0)
        times = list[float]()
        for step in range(1, repeats + 1):
            start = time.perf_counter()
            learner.update(batches[step % len(batches)], step)
            times.append(time.perf_counter() - start)
            if sum(times) > ENOUGH:
                break
        seconds, evaluation = statistics.median(times), _evaluation(task, learner, config) / num_processes
        memory = _memory(learner, batches, repeats + 1) if with_memory else None
    parameters, tensors = list(learner.model.parameters()), model_tensors(learner.model).values()
    parameter_bytes = sum(p.nbytes for p in parameters)
    return StepCost(
        model=type(learner.model).__name__,
        num_parameters=sum(p.numel() for p in parameters),
        num_parameter_bytes=parameter_bytes,
        num_buffer_bytes=sum(tensor.nbytes for tensor in tensors) - parameter_bytes,
        steps_per_epoch=len(batches),
        seconds=seconds,
        evaluation_seconds=evaluation,
        memory_bytes=memory,
    )


@torch.no_grad()
def _evaluation(task: Task, learner: Learner, config: TrainingConfig) -> float:
    """Returns the seconds of one evaluation on the validation split, extrapolated from one batch."""
    split: HeldOut = "valid"
    count = task.num_held_out(split)
    if count == 0:
        return 0.0
    shown, model = min(count, config.evaluation_batch_size), learner.average.model

    def measure(score: Score, metrics: "dict[str, Metric]") -> dict[str, float]:
        metrics = {name: metric.to(learner.device) for name, metric in metrics.items()}
        with torch.autocast(learner.device.type, dtype=config.dtype, enabled=config.dtype != torch.float32):
            score(model, move(task.held_out_batch(split, torch.arange(shown)), learner.device), metrics)
        return dict.fromkeys(metrics, 0.0)  # to compute them would wait for processes that measure nothing

    metrics, start = task.metrics(), time.perf_counter()
    task.choose_by_validation(model, measure)
    measure(task.score, metrics)
    return (time.perf_counter() - start) * count / shown


def _memory(learner: Learner, batches: EpochBatches, step: int) -> int:
    """Returns the rise in bytes of allocated memory during a step, at its peak, from torch's allocation events."""
    batch = batches[step % len(batches)]
    gc.collect()
    if learner.device.type == "cuda":
        torch.cuda.synchronize(learner.device)
        torch.cuda.reset_peak_memory_stats(learner.device)
        before = torch.cuda.memory_allocated(learner.device)
        learner.update(batch, step)
        return torch.cuda.max_memory_allocated(learner.device) - before
    with _quietly(), profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        learner.update(batch, step)
    assert profiler.profiler is not None
    results = profiler.profiler.kineto_results
    assert results is not None
    held = peak = 0
    for event in results.events():
        if event.name() == "[memory]":
            held += event.nbytes()  # pyright: ignore[reportAttributeAccessIssue]
            peak = max(peak, held)
    return peak


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Discards stderr while entered: the profiler writes its start and end there, bypassing Python."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
