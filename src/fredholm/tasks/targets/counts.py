"""Counts of predicted and true classes or labels, as total weights of examples; needs torchmetrics."""

from typing import final

import torch
from torch import Tensor
from torchmetrics import Metric

from fredholm.models.fitted.example_weights import weighed


@final
class ConfusionMatrix(Metric):
    """Counts examples by true and predicted class, float64 `(K, K)`; rows are true classes."""

    counts: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        zeros = torch.zeros(num_classes, num_classes, dtype=torch.float64)
        self.add_state("counts", default=zeros, dist_reduce_fx="sum")

    def update(self, predicted: Tensor, true: Tensor, weights: Tensor | None = None) -> None:
        """Adds a batch of classes, int64 `(B,)`, with weights `(B,)`; None: all are 1."""
        place = true * len(self.counts) + predicted
        self.counts += place.bincount(weights, minlength=self.counts.numel()).view_as(self.counts)

    def compute(self) -> Tensor:
        """Returns the matrix."""
        return self.counts


@final
class LabelCounts(Metric):
    """Counts examples of each label that are predicted right, predicted wrongly, and missed, float64 `(3, L)`."""

    counts: Tensor

    def __init__(self, num_labels: int) -> None:
        super().__init__()
        self.add_state("counts", default=torch.zeros(3, num_labels, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, predicted: Tensor, has: Tensor, weights: Tensor | None = None) -> None:
        """Adds a batch of labels, bool `(B, L)`, with weights `(B,)`; None: all are 1."""
        each = (predicted & has, predicted & ~has, ~predicted & has)
        self.counts += torch.stack([weighed(of.double(), weights).sum(0) for of in each])

    def compute(self) -> Tensor:
        """Returns the counts."""
        return self.counts


def accuracy(confusion: Tensor) -> Tensor:
    """Returns the share of examples whose class is predicted right, of a confusion matrix `(K, K)`."""
    return confusion.diagonal().sum() / confusion.sum()


def macro_f1_of_classes(confusion: Tensor) -> Tensor:
    """Returns the mean F1 over the classes that occur or are predicted, of a confusion matrix `(K, K)`."""
    either = confusion.sum(0) + confusion.sum(1)
    occurs = either > 0
    return (2 * confusion.diagonal()[occurs] / either[occurs]).mean()


def mean_iou(confusion: Tensor) -> Tensor:
    """Returns the mean intersection over union of the classes that occur or are predicted, of a matrix `(K, K)`."""
    right, either = confusion.diagonal(), confusion.sum(0) + confusion.sum(1) - confusion.diagonal()
    return (right[either > 0] / either[either > 0]).mean()


def mean_recall(confusion: Tensor) -> Tensor:
    """Returns the mean recall over the classes that occur, the non-zero rows of a confusion matrix `(K, K)`."""
    occurs = confusion.sum(1) > 0
    return (confusion.diagonal()[occurs] / confusion.sum(1)[occurs]).mean()


def matthews(confusion: Tensor) -> Tensor:
    """Returns the Matthews correlation of true and predicted classes (Gorodkin, 2004), of a confusion matrix `(K, K)`.

    NaN where all examples are of one class; 0 where all predictions are.
    """
    shares = confusion.double() / confusion.sum()
    true, predicted = shares.sum(1), shares.sum(0)
    if int((true > 0).sum()) < 2:
        return shares.new_full((), torch.nan)
    if int((predicted > 0).sum()) < 2:
        return shares.new_zeros(())
    of_true, of_predicted = 1 - true.square().sum(), 1 - predicted.square().sum()
    return (shares.diagonal().sum() - true @ predicted) / (of_true * of_predicted).sqrt()


def micro_f1(counts: Tensor) -> Tensor:
    """Returns the F1 of all labels together, of label counts `(3, L)`; NaN where no example has a label."""
    right, wrong, missed = counts.sum(1)
    return torch.where(right + missed > 0, 2 * right / (2 * right + wrong + missed), torch.nan)


def macro_f1_of_labels(counts: Tensor) -> Tensor:
    """Returns the mean F1 of the labels that occur or are predicted; NaN where no example has a label."""
    right, wrong, missed = counts
    occurs = right + wrong + missed > 0
    each = 2 * right[occurs] / (2 * right + wrong + missed)[occurs]
    return torch.where((right + missed).sum() > 0, each.mean(), torch.nan)
