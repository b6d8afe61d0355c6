"""The scale factor that turns scores into calibrated logits."""

from collections.abc import Callable

HALVINGS = 60
"""Number of bisection steps of the search for the factor."""


def best_factor(slope: Callable[[float], float]) -> float:
    """Returns the factor a > 0, from 0.001 to a million, that minimises a cross-entropy that is convex in a.

    Its slope changes sign once, which bisection of log a finds.

    Args:
        slope: slope of the cross-entropy at a.
    """
    low, high = -3.0, 6.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(10**middle) < 0 else (low, middle)
    return 10 ** ((low + high) / 2)
