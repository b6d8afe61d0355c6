"""How a cost grows with the number of points."""

import math
from collections.abc import Sequence


def growth_exponent(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """The p of the least-squares fit ``cost ~ n^p`` in logarithms; needs two different sizes and positive costs."""
    if len(set(sizes)) < 2 or len(sizes) != len(costs):
        raise ValueError(f"a growth exponent needs one cost for each of two or more sizes, got {sizes} and {costs}")
    if min(costs) <= 0:
        raise ValueError(f"a growth exponent needs positive costs, got {costs}")
    x = [math.log(size) for size in sizes]
    y = [math.log(cost) for cost in costs]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    covariance = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return covariance / sum((a - mean_x) ** 2 for a in x)
