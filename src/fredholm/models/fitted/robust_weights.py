"""Weights of training examples that limit the effect of outliers, from the errors of a fit.

Legend
    e (n, c)   left-out errors of a fit to Y               s (c,)   their median absolute values
    r_i        the root of the mean of (e_ij / s_j)² over the columns j
    m          the median of r, 1 if c = 1, and of normally distributed errors about 0.67 of their deviation
    w (n,)     weights for the next fit, at most 1

    w_i = min(1, BOUND m / r_i)

A fit with these weights approaches one that minimises Huber's loss, which is quadratic for small errors and linear for
large ones, so that an example with a large error pulls no harder than one with a moderate error. Only errors with a
kurtosis above HEAVY, 3 for normally distributed ones, are that of heavy tails. Medians and moments are weighted by the
weights of the examples (`example_weights.py`), by which w is multiplied.

Source: Huber, Robust estimation of a location parameter (1964); Holland and Welsch, Robust regression using iteratively
reweighted least-squares (1977). Deviation: the errors are those of left-out examples, since a kernel can fit outliers.
"""

import torch
from torch import Tensor

from fredholm.models.fitted.example_weights import mean_of, median_of, weighed

HEAVY = 5.0
"""Kurtosis of errors beyond which tails count as heavy."""
BOUND = 2.2
"""Multiple of the median error beyond which an example loses weight: 1.5 deviations of normally distributed errors."""


def robust_weights(errors: Tensor, weights: Tensor | None = None) -> Tensor | None:
    """Returns the weights `(n,)` of examples for the next fit.

    None: no column has heavy tails, or half of the errors of one are 0.

    Args:
        errors: left-out errors, float64 `(n, c)`.
        weights: weights of the examples, float64 `(n,)`; None: all are 1.
    """
    centred = errors - mean_of(errors, weights)
    variance, fourth = mean_of(centred.square(), weights), mean_of(centred**4, weights)
    scale = median_of(errors.abs(), weights)
    if not bool((scale > 0).all()) or not bool((fourth > HEAVY * variance.square()).any()):
        return None
    size = (errors / scale).square().mean(1).sqrt()
    bound = BOUND * median_of(size[:, None], weights)
    return weighed((bound / size.clamp_min(torch.finfo(size.dtype).tiny)).clamp_max(1.0), weights)
