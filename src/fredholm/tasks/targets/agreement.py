"""Unit-free metrics of the agreement of predicted with true numbers; needs torchmetrics.

Legend
    y_i, ŷ_i    the true and the predicted number of example i;  ȳ the mean of the true ones
    w_i         the weight of example i, in all sums and means

    r2        1 - Σ (y_i - ŷ_i)² / Σ (y_i - ȳ)², the mean over the numbers of an example that differ
    pearson   the correlation of y and ŷ
    spearman  the correlation of their ranks, where equal numbers share the mean of theirs

Where all true numbers are equal, none of these is defined, and all are NaN. Predictions that are all equal have
correlation 0.
"""

import functools
from abc import ABC, abstractmethod
from typing import final

import torch
from torch import Tensor
from torchmetrics import Metric

from fredholm.models.fitted.example_weights import mean_of, weighed

from .ranking import mass_below

_ROUNDING = 1e-13
"""Relative deviation up to which numbers count as equal: some hundred units in the last place of float64."""


@final
class R2(Metric):
    """Explained share of the variance of `num_targets` numbers."""

    missed: Tensor
    count: Tensor
    mean: Tensor
    spread: Tensor

    def __init__(self, num_targets: int) -> None:
        super().__init__()
        for name in ("missed", "mean", "spread"):
            self.add_state(name, default=torch.zeros(num_targets, dtype=torch.float64), dist_reduce_fx=None)
        self.add_state("count", default=torch.zeros((), dtype=torch.float64), dist_reduce_fx=None)

    def update(self, predicted: Tensor, true: Tensor, weights: Tensor | None = None) -> None:
        """Adds a batch of predicted and true numbers, both `(B, T)`, with weights `(B,)`; None: all are 1."""
        predicted, true = predicted.double(), true.double()
        mean = mean_of(true, weights)
        missed, spread = (weighed((true - each).square(), weights).sum(0) for each in (predicted, mean))
        own = missed, spread, mean, self.count.new_tensor(len(true)) if weights is None else weights.sum()
        self.missed, self.spread, self.mean, self.count = _of_both(self._sums, own)

    def compute(self) -> Tensor:
        """Returns a float64 scalar of at most 1, or NaN."""
        # states of several processes are stacked
        sums = functools.reduce(_of_both, zip(*self._sums, strict=True)) if self.count.ndim else self._sums
        missed, spread, mean, count = sums
        differ = spread > count * (_ROUNDING * mean).square()
        return (1 - missed[differ] / spread[differ]).mean()  # NaN if none differ

    @property
    def _sums(self) -> tuple[Tensor, ...]:
        return self.missed, self.spread, self.mean, self.count


def _of_both(some: tuple[Tensor, ...], others: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Combines the sums of two sets of examples, as in Chan, Golub and LeVeque (1979)."""
    (missed, spread, mean, count), (their_missed, their_spread, their_mean, their_count) = some, others
    total, moved = count + their_count, their_mean - mean
    added = their_spread + moved.square() * count * their_count / total
    return missed + their_missed, spread + added, mean + moved * their_count / total, total


def _are_alike(numbers: Tensor) -> bool:
    return bool((numbers == numbers[0]).all())


class Correlation(Metric, ABC):
    """Base class of correlations; stores one number per example."""

    predicted: list[Tensor]
    true: list[Tensor]
    weights: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        for name in ("predicted", "true", "weights"):
            self.add_state(name, default=[], dist_reduce_fx="cat")

    @final
    def update(self, predicted: Tensor, true: Tensor, weights: Tensor | None = None) -> None:
        """Adds a batch of predicted and true numbers, both `(B,)`, with weights `(B,)`; None: all are 1."""
        self.predicted.append(predicted.detach())
        self.true.append(true)
        self.weights.append(torch.ones_like(true, dtype=torch.float64) if weights is None else weights)

    @final
    def compute(self) -> Tensor:
        """Returns a float64 scalar in [-1, 1], or NaN."""
        given = (self.predicted, self.true, self.weights)
        *both, weights = (torch.cat(each) if isinstance(each, list) else each for each in given)
        predicted, true = (self._of(each.double(), weights) for each in both)
        if _are_alike(true):
            return true.new_full((), torch.nan)
        if _are_alike(predicted):
            return true.new_zeros(())
        root = weights.sqrt()
        predicted, true = (root * (each - mean_of(each, weights)) for each in (predicted, true))
        return (predicted @ true / (predicted.norm() * true.norm())).clamp(-1, 1)

    @abstractmethod
    def _of(self, numbers: Tensor, weights: Tensor) -> Tensor:
        """Returns the quantities to correlate, `(n,)`."""


@final
class Pearson(Correlation):
    """Pearson correlation; see the legend."""

    def _of(self, numbers: Tensor, weights: Tensor) -> Tensor:
        return numbers


@final
class Spearman(Correlation):
    """Spearman rank correlation; see the legend."""

    def _of(self, numbers: Tensor, weights: Tensor) -> Tensor:
        return mass_below(numbers, weights)
