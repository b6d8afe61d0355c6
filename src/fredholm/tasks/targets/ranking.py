"""Ranking metrics of scores for labels; needs torchmetrics.

Legend
    s_i         score of example i for one label, of n_1 examples with the label and n_0 without it
    r_i         rank of s_i among all, from 1; equal scores share the mean of theirs

    area under the ROC curve  =  (Σ_{i with it} r_i - n_1 (n_1 + 1) / 2) / (n_1 n_0)        Hanley and McNeil (1982)
    average precision         =  Σ_t (R_t - R_{t-1}) P_t,  over thresholds t from the highest score down,
                                 with precision P_t and recall R_t of what scores at least t; no interpolation

Both are means over the labels that some examples have and some lack; NaN without such labels.
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

    def __init__(self) -> None:
        super().__init__()
        self.add_state("scores", default=[], dist_reduce_fx="cat")
        self.add_state("has", default=[], dist_reduce_fx="cat")

    @final
    def update(self, scores: Tensor, has: Tensor) -> None:
        """Adds a batch."""
        self.scores.append(scores.detach())
        self.has.append(has)

    @final
    def compute(self) -> Tensor:
        """Returns the mean over labels, a float64 scalar in [0, 1], or NaN."""
        scores, has = (torch.cat(each) if isinstance(each, list) else each for each in (self.scores, self.has))
        counts = has.sum(0)
        both = ((counts > 0) & (counts < len(has))).nonzero()[:, 0].tolist()
        found = [self._of_label(scores[:, k].double(), has[:, k]) for k in both]
        return torch.stack(found).mean() if found else scores.new_full((), torch.nan, dtype=torch.float64)

    @abstractmethod
    def _of_label(self, scores: Tensor, has: Tensor) -> Tensor:
        """Returns the metric of one label, which some examples have and some lack."""


@final
class AreaUnderROC(Ranking):
    """Area under the ROC curve; see the legend."""

    def _of_label(self, scores: Tensor, has: Tensor) -> Tensor:
        order = scores.sort().values
        # ties: the mean of their first and last rank
        first, last = (torch.searchsorted(order, scores, right=right).double() for right in (False, True))
        ranks, n_1 = (first + 1 + last) / 2, has.sum().double()
        return (ranks[has].sum() - n_1 * (n_1 + 1) / 2) / (n_1 * (len(has) - n_1))


@final
class AveragePrecision(Ranking):
    """Average precision; see the legend."""

    def _of_label(self, scores: Tensor, has: Tensor) -> Tensor:
        scores, order = scores.sort(descending=True)
        found = has[order].double().cumsum(0)
        precision, recall = found / torch.arange(1, len(has) + 1, device=has.device), found / found[-1]
        is_threshold = torch.cat([scores[1:] != scores[:-1], has.new_ones(1)])  # the last of equal scores
        recall, precision = recall[is_threshold], precision[is_threshold]
        return (recall.diff(prepend=recall.new_zeros(1)) * precision).sum()
