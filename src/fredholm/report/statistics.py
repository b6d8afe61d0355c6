"""Statistics of predictions: confidence intervals, confusion matrix, calibration.

Legend
    n, k            examples, and how many of them are predicted right
    z               1.96, the 97.5 % quantile of the normal distribution
    p_i, r_i        probability of the class that is predicted for example i, and 1 if that class is right, else 0
    C_ab            examples of class a that are predicted to be of class b

Wilson interval of a share (1927): (k + z²/2 ± z √(k (n - k) / n + z²/4)) / (n + z²). Bootstrap interval (Efron, 1979):
from the 2.5 % to the 97.5 % quantile of a metric of n examples that are drawn from the n with replacement.

Expected calibration error (Naeini et al., 2015): Σ_b n_b / n |mean r - mean p| over bins b of equal width in p.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

Z = 1.959963984540054
BINS = 10
"""Bins of a reliability diagram."""
DRAWS = 200
"""Resamples of the bootstrap."""


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    high: float
    how: str
    """Name of the method."""


def wilson(right: int, count: int) -> Interval:
    """Wilson interval of the share of right examples among `count`, at least 1."""
    middle, root = right + Z * Z / 2, Z * math.sqrt(right * (count - right) / count + Z * Z / 4)
    whole = count + Z * Z
    return Interval(max(0.0, (middle - root) / whole), min(1.0, (middle + root) / whole), "95 % interval (Wilson)")


def bootstrap(metric: Callable[[Tensor], float], count: int, draws: int = DRAWS) -> Interval | None:
    """Bootstrap interval of a metric.

    Args:
        metric: a function from indices of examples, int64 `(count,)`, which may repeat, to a number.
        count: number of examples.
        draws: number of resamples.

    Returns:
        The interval; None if the metric is not finite on every resample, as with a single class.
    """
    generator = torch.Generator().manual_seed(0)
    found = torch.tensor([metric(torch.randint(count, (count,), generator=generator)) for _ in range(draws)])
    if count < 2 or not bool(found.isfinite().all()):
        return None
    low, high = found.double().quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Interval(low, high, "95 % interval (bootstrap)")


def confusion(predicted: Tensor, truth: Tensor, num_classes: int) -> Tensor:
    """Confusion matrix C, int64 `(K, K)`, of classes `(n,)`; rows are the true classes."""
    return (truth * num_classes + predicted).bincount(minlength=num_classes**2).view(num_classes, num_classes)


@final
@dataclass(frozen=True)
class ClassScores:
    """Precision, recall, F1 and support of each class, `(K,)`; float64, NaN where the denominator is 0."""

    precision: Tensor
    recall: Tensor
    f1: Tensor
    support: Tensor

    @staticmethod
    def of(counts: Tensor) -> "ClassScores":
        """Scores from a confusion matrix, int64 `(K, K)`."""
        right, predicted, true = counts.diagonal().double(), counts.sum(0).double(), counts.sum(1).double()
        return ClassScores(right / predicted, right / true, 2 * right / (predicted + true), counts.sum(1))


@final
@dataclass(frozen=True)
class Reliability:
    """Reliability diagram: number of predictions, sum of p_i and sum of r_i per bin of p, float64 `(BINS,)` each."""

    count: Tensor
    sure: Tensor
    right: Tensor

    @staticmethod
    def of(sure: Tensor, right: Tensor) -> "Reliability":
        """Reliability diagram of p and r, `(n,)` each."""
        bins = (sure.double() * BINS).long().clamp(0, BINS - 1)
        ones = torch.ones(len(sure), dtype=torch.float64)
        sums = [
            torch.zeros(BINS, dtype=torch.float64).index_add_(0, bins, each.double()) for each in (ones, sure, right)
        ]
        return Reliability(*sums)

    def __add__(self, other: "Reliability") -> "Reliability":
        return Reliability(self.count + other.count, self.sure + other.sure, self.right + other.right)

    @property
    def error(self) -> float:
        """The expected calibration error."""
        return float((self.right - self.sure).abs().sum() / self.count.sum().clamp(min=1))
