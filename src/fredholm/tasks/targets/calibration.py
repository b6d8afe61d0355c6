"""The factor that makes probabilities of scores."""

from collections.abc import Callable

HALVINGS = 60
"""Of the interval in which the factor is looked for."""


def best_factor(slope: Callable[[float], float]) -> float:
    """The factor a > 0 at which a cross-entropy that is convex in a has its minimum, from 0.001 to a million.

    Its slope changes sign once: bisection of log a.

    Args:
        slope: of the cross-entropy, at a.
    """
    low, high = -3.0, 6.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(10**middle) < 0 else (low, middle)
    return 10 ** ((low + high) / 2)
