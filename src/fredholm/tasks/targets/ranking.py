"""Ranking metrics of scores for labels; needs torchmetrics.

Legend
    s_i         score of example i for one label, of n_1 examples with the label and n_0 without it
    b_i         the number of examples without the label and with a score below s_i, and half of those with an equal one

    area under the ROC curve  =  Σ_{i with it} b_i / (n_1 n_0)        Hanley and McNeil (1982)
    average precision         =  Σ_t (R_t - R_{t-1}) P_t,  over thresholds t from the highest score down,
                                 with precision P_t and recall R_t of what scores at least t; no interpolation

Both are means over the labels that some examples have and some lack; NaN without such labels. All numbers and sums of
examples are those of their weights.
"""

from abc import ABC, abstractmethod
from typing import final

import torch
from torch import Tensor
from torchmetrics import Metric


class Ranking(Metric, ABC):
    """Base class of ranking metrics; stores scores and whether each example has each label, bool, both `(B, L)`."""

    scores: list[Tensor]
    has: list[Tensor]
    weights: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        for name in ("scores", "has", "weights"):
            self.add_state(name, default=[], dist_reduce_fx="cat")

    @final
    def update(self, scores: Tensor, has: Tensor, weights: Tensor | None = None) -> None:
        """Adds a batch, with weights `(B,)`; None: all are 1."""
        self.scores.append(scores.detach())
        self.has.append(has)
        self.weights.append(torch.ones_like(scores[:, 0], dtype=torch.float64) if weights is None else weights)

    @final
    def compute(self) -> Tensor:
        """Returns the mean over labels, a float64 scalar in [0, 1], or NaN."""
        given = (self.scores, self.has, self.weights)
        scores, has, weights = (torch.cat(each) if isinstance(each, list) else each for each in given)
        counts = has.sum(0)
        both = ((counts > 0) & (counts < len(has))).nonzero()[:, 0].tolist()
        found = [self._of_label(scores[:, k].double(), has[:, k], weights) for k in both]
        return torch.stack(found).mean() if found else scores.new_full((), torch.nan, dtype=torch.float64)

    @abstractmethod
    def _of_label(self, scores: Tensor, has: Tensor, weights: Tensor) -> Tensor:
        """Returns the metric of one label, which some examples have and some lack."""


@final
class AreaUnderROC(Ranking):
    """Area under the ROC curve; see the legend."""

    def _of_label(self, scores: Tensor, has: Tensor, weights: Tensor) -> Tensor:
        with_it, without = weights[has], torch.where(has, 0.0, weights)
        below = mass_below(scores, without)[has]
        return (with_it @ below) / (with_it.sum() * without.sum())


@final
class AveragePrecision(Ranking):
    """Average precision; see the legend."""

    def _of_label(self, scores: Tensor, has: Tensor, weights: Tensor) -> Tensor:
        scores, order = scores.sort(descending=True)
        found = torch.where(has, weights, 0.0)[order].cumsum(0)
        precision, recall = found / weights[order].cumsum(0), found / found[-1]
        is_threshold = torch.cat([scores[1:] != scores[:-1], has.new_ones(1)])  # the last of equal scores
        recall, precision = recall[is_threshold], precision[is_threshold]
        return (recall.diff(prepend=recall.new_zeros(1)) * precision).sum()


def mass_below(numbers: Tensor, weights: Tensor) -> Tensor:
    """Returns the weight of all numbers `(n,)` that are smaller than each, and half of that of equal ones."""
    ordered, order = numbers.sort()
    mass = torch.cat([weights.new_zeros(1), weights[order].cumsum(0)])
    first, last = (torch.searchsorted(ordered, numbers, right=right) for right in (False, True))
    return (mass[first] + mass[last]) / 2
