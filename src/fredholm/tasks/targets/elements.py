"""Targets that are a class of each element of an example, such as a point of a cloud or a pixel of an image.

The intersection over union of a class is the number of elements that are of the class and predicted as it, over the
number that are either. Elements of all examples are counted together, and the mean is over the classes that occur or
are predicted. Areas under curves are not measured, since they need the probabilities of all elements.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch
from torch import Tensor

from fredholm.tasks.objective import Objective
from fredholm.tasks.optional_packages import importing_metrics

from .classes import LogitsOfClasses, learn_class_weights
from .target import Known, TargetSettings

if TYPE_CHECKING:
    from torchmetrics import Metric

UNKNOWN = -100
"""Class of an element that is not known, which PyTorch's cross-entropy ignores."""
_KNOWN = "elements whose class is known"
OBJECTIVES = {
    "mean_iou": Objective(metric="mean_iou", percent=True, needs=_KNOWN),
    "accuracy": Objective(metric="accuracy", percent=True, needs=_KNOWN),
    "balanced_accuracy": Objective(metric="balanced_accuracy", percent=True, needs=_KNOWN),
    "macro_f1": Objective(metric="macro_f1", percent=True, needs=_KNOWN),
    "loss": Objective(metric="loss", maximise=False, needs=_KNOWN),
}


@final
@dataclass(frozen=True, kw_only=True)
class ElementCounts(Known):
    """Numbers of elements of each class in the training examples.

    Args:
        names: names of the classes.
        counts: number of elements of each class, int64 `(K,)`.
    """

    counts: Tensor

    def learn(self, settings: TargetSettings, data: str, weights: Tensor | None = None) -> "ElementTarget":
        """See `Known.learn`; the weights of examples are those of `counts`."""
        return ElementTarget(names=self.names, weights=learn_class_weights(self.names, self.counts, settings, data))


@final
@dataclass(frozen=True, kw_only=True)
class ElementTarget(LogitsOfClasses):
    """The class of each element, int64 `(B, N)`, `UNKNOWN` where it is not known; see `LogitsOfClasses`."""

    follows: ClassVar[type[Known]] = ElementCounts

    @property
    def objectives(self) -> dict[str, Objective]:
        """Metrics and the loss; `mean_iou` comes first."""
        return OBJECTIVES

    @property
    def shown(self) -> tuple[Objective, ...]:
        """The mean intersection over union, the accuracy and the balanced accuracy."""
        return tuple(OBJECTIVES[name] for name in ("mean_iou", "accuracy", "balanced_accuracy"))

    def count(self, targets: Tensor) -> int:
        """Returns the number of elements whose class is known."""
        return int((targets != UNKNOWN).sum())

    def soft(self, targets: Tensor, smoothing: float) -> Tensor:
        """Returns shares of the classes `(..., K)`, as for classes of examples; all 0 where the class is unknown."""
        known = targets != UNKNOWN
        return super().soft(torch.where(known, targets, 0), smoothing) * known[..., None]

    def metrics(self) -> "dict[str, Metric]":
        """Returns `mean_iou`, `accuracy`, `balanced_accuracy` and `macro_f1`, over all elements together."""
        with importing_metrics():
            from torchmetrics.metric import CompositionalMetric

            from .counts import ConfusionMatrix, accuracy, macro_f1_of_classes, mean_iou, mean_recall
        of_matrix: dict[str, Callable[[Tensor], Tensor]] = {
            "mean_iou": mean_iou,
            "accuracy": accuracy,
            "balanced_accuracy": mean_recall,
            "macro_f1": macro_f1_of_classes,
        }
        return {name: CompositionalMetric(of, ConfusionMatrix(len(self.names)), None) for name, of in of_matrix.items()}

    def score(
        self, outputs: Tensor, targets: Tensor, metrics: "dict[str, Metric]", weights: Tensor | None = None
    ) -> None:
        """Adds outputs `(n, K)` for known classes `(n,)`; elements have no weights."""
        predicted = outputs.argmax(-1)
        for metric in metrics.values():
            metric.update(predicted, targets)
