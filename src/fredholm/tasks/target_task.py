"""Tasks that predict a class, labels or numbers of each example, or a class of each of its elements."""

import dataclasses
import functools
import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch
from torch import Tensor, nn

from fredholm.models.fitted.example_weights import weighed
from fredholm.tasks.optional_packages import importing_metrics
from fredholm.tasks.splits.splits import HeldOut, Part

from .baselines import Baseline, BaselineData, BaselineExamples, baselines_on
from .objective import Objective
from .splits.split_files import Split
from .targets import Answers, ClassWeights, Target, TargetSettings
from .task import Batch, SplitTask, to_device
from .views import device_of

if TYPE_CHECKING:
    from torchmetrics import Metric


@final
class Measured(NamedTuple):
    """Outputs `(n, num_outputs)`, targets `(n, ...)` and weights `(n,)` of examples; None: these have no weights."""

    outputs: Tensor
    targets: Tensor
    weights: Tensor | None


class TargetTask(SplitTask[Part]):
    """A task whose loss and metrics are those of its target.

    A batch holds `targets` (B, ...), as returned by `Target.targets`, or (B, N) for elements; and, where examples have
    weights, `example_weights` (B,), which multiply their losses and count in metrics.
    """

    target: Target
    """Target that the model predicts for each example."""

    @dataclass(frozen=True, kw_only=True)
    class Config(SplitTask.Config):
        """Settings of a set of examples, its splits, and the learning of its targets.

        Args:
            objective: metric by which runs are compared: accuracy, balanced_accuracy, macro_f1, matthews or auroc for
                classes; mean_iou, accuracy, balanced_accuracy or macro_f1 for points or pixels; average_precision,
                auroc, micro_f1, macro_f1 or exact_match for labels; mean_absolute_error, root_mean_squared_error, r2,
                pearson or spearman for numbers; or the loss. None: the first of these, and with balanced classes of
                examples balanced_accuracy.
            class_weights: balanced gives rare classes or labels the same weight in the loss as frequent ones.
        """

        objective: str | None = None
        class_weights: ClassWeights = "none"

        @property
        def target_settings(self) -> TargetSettings:
            """The settings of the target."""
            return TargetSettings(objective=self.objective, class_weights=self.class_weights)

    @dataclass(frozen=True, kw_only=True)
    class NumbersConfig(Config):
        """The same settings for tasks that may also predict numbers.

        Args:
            quantiles: levels, such as 0.1 0.5 0.9, to predict in place of the mean of numbers.
        """

        quantiles: tuple[float, ...] = ()

        @property
        def target_settings(self) -> TargetSettings:
            """The settings of the target."""
            return dataclasses.replace(super().target_settings, quantiles=self.quantiles)

    @final
    def _set_target(self, target: Target, settings: TargetSettings) -> None:
        """Sets the target; raises a ValueError for settings that do not apply to it."""
        self.target, self._target_settings = target, settings
        self.objective, self.shown = target.objective(settings), target.shown

    @property
    def measures(self) -> tuple[Objective, ...]:
        """See `Task.measures`: all metrics of the target, the objective first."""
        return tuple(dict.fromkeys((self.objective, *self.target.objectives.values())))

    @final
    def is_defined(self, split: HeldOut) -> bool:
        """See `Task.is_defined`; depends only on the known targets."""
        answers = getattr(self._part_of(split), "answers", None)
        if not self.objective.needs or not isinstance(answers, Answers):
            return True
        targets = self.target.targets(answers.values)
        outputs = torch.zeros(len(targets), self.target.num_outputs)
        return not math.isnan(self._baseline_value(outputs, targets))

    @property
    def advice(self) -> tuple[str, ...]:
        """Suggests class weights, where some classes are rare and no weights were given."""
        answers = self._train_answers
        return () if self._target_settings.class_weights == "balanced" or answers is None else answers.advice

    @property
    @abstractmethod
    def _train_answers(self) -> Answers | None:
        """Targets of the training split; None for tasks on elements."""

    @property
    def baselines(self) -> tuple[Baseline, ...]:
        """See `Task.baselines`; they use `_baseline_inputs`."""
        if self.splits.train.example_weights is not None:
            raise ValueError("the examples have weights, which models without a network do not take")
        plain = functools.cache(self._baseline_examples)
        plain("valid")  # raises where there are no plain features

        def value(outputs: Tensor, split: HeldOut) -> float:
            return self._baseline_value(outputs, plain(split).targets)

        return baselines_on(BaselineData(self.target.kind, self.target.num_outputs, plain, value))

    def _baseline_examples(self, split: Split) -> BaselineExamples:
        """Returns the examples of a part, or their elements, with their targets, for models without a network.

        Raises:
            ValueError: there are no plain features.
        """
        return BaselineExamples(self._baseline_inputs(split), self.target.targets(self._baseline_answers(split).values))

    def _baseline_inputs(self, split: Split) -> Any:
        """Returns features `(n, features)` of the examples of a part, or n texts.

        Raises:
            ValueError: there are no plain features.
        """
        raise ValueError("these examples have no plain features")

    def _baseline_answers(self, split: Split) -> Answers:
        """Returns the known targets of a part."""
        answers = getattr(self._part_of(split), "answers", None)
        assert isinstance(answers, Answers)
        return answers

    @final
    def _baseline_value(self, outputs: Tensor, targets: Tensor) -> float:
        """Returns the objective of outputs `(n, num_outputs)` for these targets."""
        metrics = self.metrics()
        metrics["loss"].update(self.target.losses(outputs, targets))
        self.target.score(outputs, targets, {name: each for name, each in metrics.items() if name != "loss"})
        return float(metrics[self.objective.metric].compute())

    @final
    def _weights(self, split: Split, indices: Tensor) -> Batch:
        """Returns the entry of a batch with the weights of its examples; none where they have no weights."""
        weights = self._part_of(split).example_weights
        return {} if weights is None else {"example_weights": weights[indices]}

    @property
    def _smoothing(self) -> float:
        """Label smoothing: share of each target that is spread over all classes, unless batches are soft already."""
        return 0.0

    @abstractmethod
    def _outputs(self, model: nn.Module, batch: Batch) -> Tensor:
        """Returns the model's outputs, float32 `(B, num_outputs)`, or `(B, N, num_outputs)` for elements."""

    def _measured(self, model: nn.Module, batch: Batch) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields outputs `(n, num_outputs)` and known targets `(n, ...)` of a batch of `held_out_batch`, in parts."""
        yield self._outputs(model, batch), batch["targets"]

    def _scored(self, model: nn.Module, batch: Batch) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yields the outputs, the outputs of the part learnt in steps (for the loss), and the targets."""
        for outputs, targets in self._measured(model, batch):
            yield outputs, outputs, targets

    @final
    def outputs_and_targets(self, model: nn.Module, split: HeldOut, indices: Tensor) -> "Measured":
        """Returns a model's outputs for held-out examples, their targets and their weights, on the CPU; gradients flow.

        Args:
            model: model of this task, in evaluation mode.
            split: validation or test split, which must exist.
            indices: int64 `(n,)`.

        Returns:
            The examples in the order of the indices; for elements a row per element of known class, in the order of the
            examples.
        """
        batch = self.held_out_batch(split, indices)
        weights, batch = batch.get("example_weights"), to_device(batch, device_of(model))
        parts = [(outputs.cpu(), targets.cpu()) for outputs, targets in self._measured(model, batch)]
        if not parts:
            return Measured(torch.zeros(0, self.target.num_outputs), torch.zeros(0, dtype=torch.int64), weights)
        outputs, targets = zip(*parts, strict=True)
        return Measured(torch.cat(outputs), torch.cat(targets), weights)

    @final
    def num_targets(self, batch: Batch) -> int:
        """Number of examples or, for elements, of elements whose class is known."""
        return self.target.count(batch["targets"])

    @final
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Returns the target's loss, summed over examples, times their weights, or elements."""
        outputs, targets = self._outputs(model, batch), batch["targets"]
        elements = outputs.ndim - 2
        outputs, targets = outputs.flatten(0, elements), targets.flatten(0, elements)
        if self._smoothing > 0:
            targets = self.target.soft(targets, self._smoothing)
        losses = self.target.losses(outputs, targets)
        weights = batch.get("example_weights")
        return weighed(losses, None if weights is None else weights.to(losses)).sum()

    @final
    def metrics(self) -> "dict[str, Metric]":
        """Metrics of the target, and the mean `loss`, which in a blend is that of the network alone.

        Raises:
            ImportError: torchmetrics is not installed.
        """
        with importing_metrics():
            from fredholm.tasks.mean_metrics import Mean
        return {**self.target.metrics(), "loss": Mean()}

    @final
    def score(self, model: nn.Module, batch: Batch, metrics: "dict[str, Metric]") -> None:
        """Adds a batch of `held_out_batch` to the metrics."""
        of_target = {name: metric for name, metric in metrics.items() if name != "loss"}
        weights = batch.get("example_weights")
        for outputs, learnt, targets in self._scored(model, batch):
            metrics["loss"].update(self.target.losses(learnt, targets), weights)
            self.target.score(outputs, targets, of_target, weights)
