"""Growth of time and memory with the number of points."""

import math
from collections.abc import Iterator, Sequence

from benchmarks.harness.report import Row
from benchmarks.harness.step import Direction


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


def growth(rows: Sequence[Row]) -> Iterator[str]:
    """Growth of time and peak memory: a line per case or peer and direction, fitted over the larger half of the sizes.

    A peer that is also a case is fitted by its own rows.
    """
    seconds: dict[tuple[str, Direction], dict[int, float]] = {}
    peaks: dict[tuple[str, Direction], dict[int, float]] = {}
    cases = {row.case for row in rows}
    for row in rows:
        seconds.setdefault((row.case, row.direction), {})[row.n] = row.ours_s
        if row.peak_mb is not None:
            # memory is counted in pages of kilobytes, and a small problem may need no new page
            peaks.setdefault((row.case, row.direction), {})[row.n] = max(row.peak_mb, 1e-3)
        if row.peer is not None and row.peer_s is not None and row.peer not in cases:
            seconds.setdefault((row.peer, row.direction), {})[row.n] = row.peer_s
    for (name, direction), by_size in seconds.items():
        parts = [_fit("time", by_size), _fit("peak memory", peaks.get((name, direction), {}))]
        if any(parts):
            yield f"{name}, {direction}: {', '.join(filter(None, parts))}"


def _fit(cost: str, by_size: dict[int, float]) -> str:
    """``cost ~ n^p over n = a to b``, or an empty string for fewer than two sizes."""
    sizes = sorted(by_size)
    sizes = sizes[len(sizes) // 2 :] if len(sizes) > 3 else sizes
    if len(sizes) < 2:
        return ""
    exponent = growth_exponent(sizes, [by_size[n] for n in sizes])
    return f"{cost} ~ n^{exponent:.2f} over n = {sizes[0]} to {sizes[-1]}"
