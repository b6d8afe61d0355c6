"""Test of whether two rows of runs differ by more than their seeds do.

Welch's interval of the difference of two means excludes 0 where, with means m, variances v (N - 1) and counts n,

    P(|T| < t) > 0.95,    t = |m_1 - m_2| / √(v_1/n_1 + v_2/n_2)

for Student's T with ν = (v_1/n_1 + v_2/n_2)² / Σ (v_i/n_i)²/(n_i - 1) degrees of freedom, which are at least 1.
"""

import math
import statistics
from collections.abc import Sequence

CONFIDENCE = 0.95
PARTS = 2000
"""Number of Simpson's-rule intervals, which is even."""


def differ(one: Sequence[float], other: Sequence[float]) -> bool | None:
    """Whether the means differ with a confidence of 95 %; None where that is unknown, as for single values."""
    if len(one) < 2 or len(other) < 2:
        return None
    shares = [statistics.variance(values) / len(values) for values in (one, other)]
    apart = abs(statistics.mean(one) - statistics.mean(other))
    if sum(shares) == 0:
        return apart > 0
    counts = (len(one), len(other))
    freedom = sum(shares) ** 2 / sum(share**2 / (n - 1) for share, n in zip(shares, counts, strict=True))
    return within(apart / math.sqrt(sum(shares)), freedom) > CONFIDENCE


def within(t: float, freedom: float) -> float:
    """P(|T| < t) of Student's distribution with ν >= 1 degrees of freedom.

    With T = √ν tan θ it is ∫_0^{arctan(t / √ν)} cos^(ν-1) θ dθ, in units of the same integral up to π/2.
    """
    end = math.atan(t / math.sqrt(freedom))
    step = end / PARTS
    weights = (1 if k in (0, PARTS) else 4 if k % 2 else 2 for k in range(PARTS + 1))
    total = sum(weight * math.cos(k * step) ** (freedom - 1) for k, weight in enumerate(weights)) * step / 3
    whole = math.sqrt(math.pi) / 2 * math.exp(math.lgamma(freedom / 2) - math.lgamma((freedom + 1) / 2))
    return total / whole
