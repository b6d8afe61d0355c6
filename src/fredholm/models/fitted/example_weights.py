"""Weights of training examples: an example of weight 2 counts as two that are left out together.

Legend
    w (n,)   weights, float64, above 0; None: all are 1        S   their sum

All sums over examples, of losses, errors, moments and counts, are weighted. So a fit with whole weights is the fit with
as many copies of each example, with the copies of one as a group. Models do not scale w: a penalty is relative to S.
"""

import torch
from torch import Tensor


def check_weights(name: str, weights: Tensor | None, count: int) -> None:
    """Raises a ValueError, which begins with `name`, unless each example has a finite weight above 0."""
    if weights is None:
        return
    if weights.shape != (count,) or weights.dtype != torch.float64:
        raise ValueError(f"{name}: weights are {weights.dtype} {tuple(weights.shape)}; expected float64 ({count},)")
    for i in (~(weights.isfinite() & (weights > 0))).nonzero()[:1, 0].tolist():
        raise ValueError(f"{name}: the weight of example {i} is {float(weights[i])}; expected a number above 0")


def weighed(values: Tensor, weights: Tensor | None) -> Tensor:
    """Returns values `(n, ...)` times the weights."""
    return values if weights is None else values * _beside(weights, values)


def mean_of(values: Tensor, weights: Tensor | None) -> Tensor:
    """Returns the mean over the examples of values `(n, ...)`."""
    return values.mean(0) if weights is None else weighed(values, weights).sum(0) / weights.sum()


def mean_of_all(values: Tensor, weights: Tensor | None) -> Tensor:
    """Returns the mean of all entries of values `(n, ...)`, a scalar."""
    return values.mean() if weights is None else mean_of(values, weights).mean()


def median_of(values: Tensor, weights: Tensor | None) -> Tensor:
    """Returns the lower median of each column of values `(n, c)`."""
    if weights is None:
        return values.median(0).values
    ordered, order = values.sort(0)
    below = weights[order].cumsum(0) < weights.sum() / 2
    return ordered.gather(0, below.sum(0, keepdim=True).clamp_max(len(values) - 1))[0]


def some_of(weights: Tensor | None, examples: Tensor) -> Tensor | None:
    """Returns the weights of some examples, by index or mask."""
    return None if weights is None else weights[examples]


def _beside(weights: Tensor, values: Tensor) -> Tensor:
    return weights.view(-1, *(1,) * (values.ndim - 1))
