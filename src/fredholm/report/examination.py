"""Evaluation of a model on held-out examples: predictions, losses, and the metric with its confidence interval."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn

from fredholm.models.blended import Blended
from fredholm.models.fitted.example_weights import mean_of, some_of
from fredholm.tasks.element_labels import LabelledElements, LabelsElements
from fredholm.tasks.splits.splits import HeldOut
from fredholm.tasks.target_task import Measured, TargetTask
from fredholm.tasks.targets.elements import ElementTarget
from fredholm.tasks.targets.target import Target
from fredholm.tasks.task import Batch, Task
from fredholm.training.device import move
from fredholm.training.run import Run

from .statistics import DRAWS, Interval, Reliability, bootstrap, confusion, wilson

if TYPE_CHECKING:
    from torchmetrics import Metric

SHARES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "accuracy": lambda predicted, targets: predicted.argmax(1) == targets,
    "exact_match": lambda predicted, targets: ((predicted >= 0.5) == (targets > 0.5)).all(1),
}
"""Metrics that are shares of correct examples, so that Wilson's interval holds, as tests of each example."""
MOST_EXAMPLES = 10_000
"""Most examples that are evaluated in large batches."""
MOST_SINGLE = 300
"""Most examples that are evaluated one by one."""
SECONDS = 4.0
"""Seconds after which no further example is evaluated."""


@final
@dataclass(frozen=True, kw_only=True)
class Examination:
    """A model's predictions for n examples of a split, with losses and metric.

    Args:
        split: validation or test.
        total: number of examples of the split.
        indices: int64 `(n,)`, the evaluated examples: the first of a fixed random order, sorted.
        losses: float64 `(n,)`, the loss of each example in the unit of training.
        value: the objective on these examples.
        interval: its confidence interval; None where none can be computed.
        outputs, targets: per example, as the task's target reads them; None for tasks without such targets.
        counts: int64 `(K, K)`, confusion matrix of examples or of their elements; rows are true classes.
        reliability: reliability diagram of the same predictions.
    """

    split: HeldOut
    total: int
    indices: Tensor
    losses: Tensor
    value: float
    interval: Interval | None
    outputs: Tensor | None = None
    targets: Tensor | None = None
    counts: Tensor | None = None
    reliability: Reliability | None = None


@torch.no_grad()
def examine(
    run: Run, model: nn.Module, split: HeldOut, *, most: int | None = None, seconds: float | None = None
) -> Examination:
    """Evaluates a model on examples, at least one, until there are enough or the time is over.

    Args:
        run: the run, with its task and settings.
        model: its model, in evaluation mode.
        split: a split that is not empty.
        most: most examples; None: 10,000, or 300 where they are evaluated one by one.
        seconds: time after which no further example is evaluated; None: 4.

    Raises:
        ValueError: the data cannot be read.
        ImportError: torchmetrics is not installed.
    """
    task = run.task
    total, seconds = task.num_held_out(split), SECONDS if seconds is None else seconds
    order = torch.randperm(total, generator=torch.Generator().manual_seed(0))
    if isinstance(task, TargetTask) and not isinstance(task.target, ElementTarget):
        size = run.config.training.evaluation_batch_size
        return _in_batches(task, model, split, order[: most or MOST_EXAMPLES], size, seconds)
    return _one_by_one(task, model, split, order[: most or MOST_SINGLE], run.device, seconds)


def _in_batches(
    task: TargetTask[Any], model: nn.Module, split: HeldOut, order: Tensor, size: int, seconds: float
) -> Examination:
    parts, end = list[Measured](), time.monotonic() + seconds
    for indices in order.split(size):
        parts.append(task.outputs_and_targets(model, split, indices))
        if time.monotonic() > end:
            break
    outputs, targets = torch.cat([part.outputs for part in parts]), torch.cat([part.targets for part in parts])
    given = [part.weights for part in parts if part.weights is not None]
    indices, by_index = order[: len(outputs)].sort()
    outputs, targets = outputs[by_index], targets[by_index]
    target, losses = task.target, task.target.losses(outputs, targets).double()
    name = task.objective.metric
    counts = reliability = None
    if target.kind == "class":
        sure, predicted = target.predictions(outputs).max(-1)
        counts = confusion(predicted, targets, len(target.names))
        reliability = Reliability.of(sure, predicted == targets)
    weights = torch.cat(given)[by_index] if given else None
    if name in SHARES and weights is None:
        right = SHARES[name](target.predictions(outputs), targets)
        value, interval = float(right.double().mean()), wilson(int(right.sum()), len(right))
    else:
        value = _metric(target, name, losses, outputs, targets, weights)
        draws = max(50, min(DRAWS, 400_000 // len(outputs)))

        def metric(rows: Tensor) -> float:
            return _metric(target, name, losses[rows], outputs[rows], targets[rows], some_of(weights, rows))

        interval = bootstrap(metric, len(outputs), draws)
    return Examination(
        split=split,
        total=task.num_held_out(split),
        indices=indices,
        losses=losses,
        value=value,
        interval=interval,
        outputs=outputs,
        targets=targets,
        counts=counts,
        reliability=reliability,
    )


def _metric(
    target: Target, name: str, losses: Tensor, outputs: Tensor, targets: Tensor, weights: Tensor | None
) -> float:
    """Computes one metric of some examples."""
    if name == "loss":
        return float(mean_of(losses, weights))
    metrics = target.metrics()
    target.score(outputs, targets, metrics if target.kind == "number" else {name: metrics[name]}, weights)
    return float(metrics[name].compute())


def _loss(task: Task, model: nn.Module, batch: Batch, metrics: "dict[str, Metric]") -> float:
    """Mean loss of a scored batch; computed anew for a blended model, whose loss metric is of its network alone."""
    if isinstance(model, Blended):
        return float(task.loss(model, batch)) / max(1, task.num_targets(batch))
    return float(metrics["loss"].compute())


def _one_by_one(
    task: Task, model: nn.Module, split: HeldOut, order: Tensor, device: torch.device, seconds: float
) -> Examination:
    name, end = task.objective.metric, time.monotonic() + seconds
    losses, states = list[float](), list[_States]()
    counts = reliability = None
    for index in order[:, None]:
        batch = move(task.held_out_batch(split, index), device)
        metrics = task.metrics()
        task.score(model, batch, metrics)
        states.append(_states(metrics[name]))
        losses.append(_loss(task, model, batch, metrics))
        elements = _elements(task, model, split, index, batch)
        if elements is not None:
            names, (predicted, targets, sure) = elements
            own, sureness = confusion(predicted, targets, len(names)), Reliability.of(sure, predicted == targets)
            counts = own if counts is None else counts + own
            reliability = sureness if reliability is None else reliability + sureness
        if time.monotonic() > end:
            break
    indices, by_index = order[: len(losses)].sort()
    states = [states[i] for i in by_index.tolist()]

    def metric(rows: Tensor) -> float:
        whole = task.metrics()[name].to(device)
        return _of_states(whole, [states[row] for row in rows.tolist()])

    return Examination(
        split=split,
        total=task.num_held_out(split),
        indices=indices,
        losses=torch.tensor(losses, dtype=torch.float64)[by_index],
        value=metric(torch.arange(len(states))),
        interval=bootstrap(metric, len(states)),
        counts=counts,
        reliability=reliability,
    )


def _elements(
    task: Task, model: nn.Module, split: HeldOut, index: Tensor, batch: Batch
) -> tuple[tuple[str, ...], LabelledElements] | None:
    """Names of the labels, and predictions for the elements of an example; None: the task predicts none."""
    if isinstance(task, LabelsElements):
        return task.element_names, task.labelled_elements(model, batch)
    if isinstance(task, TargetTask):
        outputs, targets, _ = task.outputs_and_targets(model, split, index)
        sure, predicted = task.target.predictions(outputs).max(-1)
        return task.target.names, LabelledElements(predicted, targets, sure)
    return None


_States = list[dict[str, Tensor | list[Tensor]]]
"""States of the accumulators behind a metric."""


def _leaves(metric: "Metric") -> "list[Metric]":
    """The accumulators that a metric is composed of."""
    from torchmetrics import Metric
    from torchmetrics.metric import CompositionalMetric

    if not isinstance(metric, CompositionalMetric):
        return [metric]
    return [leaf for part in (metric.metric_a, metric.metric_b) if isinstance(part, Metric) for leaf in _leaves(part)]


def _states(metric: "Metric") -> _States:
    return [{name: getattr(leaf, name) for name in leaf._defaults} for leaf in _leaves(metric)]


def _of_states(metric: "Metric", states: Sequence[_States]) -> float:
    """Computes a metric from the states of single examples: tensors are summed, lists are concatenated."""
    for k, leaf in enumerate(_leaves(metric)):
        for name in leaf._defaults:
            found = [own[k][name] for own in states]
            if all(isinstance(each, Tensor) for each in found):
                setattr(leaf, name, torch.stack([each for each in found if isinstance(each, Tensor)]).sum(0))
            else:
                setattr(leaf, name, [part for each in found for part in each])
        leaf._update_count = len(states)
        leaf._computed = None
    return float(metric.compute())
