"""Time and peak memory over n from a report of `large_domains`: ``python -m benchmarks.scaling REPORT PICTURE``."""

import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from benchmarks.harness import Report, Row
from benchmarks.large_problem import (
    ANCHORS,
    ATTENTION,
    GRID,
    LEARNED,
    LOW_RANK,
    NEIGHBOURHOOD,
    PER_QUERY,
    POINTS,
    SEPARABLE,
    SHARED,
)

BLUE, SKY, ORANGE, YELLOW, GREEN, PINK, GREY = (
    "#0072b2",
    "#56b4e9",
    "#d55e00",
    "#e69f00",
    "#009e73",
    "#cc79a7",
    "#666666",
)
STYLES: dict[str, tuple[str, str]] = {
    GRID: (BLUE, "o-"),
    POINTS: (SKY, "s-"),
    SHARED: (ORANGE, "o-"),
    LEARNED: (ORANGE, "s--"),
    PER_QUERY: (YELLOW, "^-"),
    NEIGHBOURHOOD: (YELLOW, "v--"),
    ANCHORS: (PINK, "D-"),
    LOW_RANK: (GREEN, "o-"),
    SEPARABLE: (GREEN, "s--"),
    ATTENTION: (GREY, "x:"),
}
"""Colour and line of every case: exact blue, sampled warm, linear time green, attention grey."""


def draw(report: Report, picture: Path) -> None:
    """Two panels, forward pass: median seconds and peak memory of every case against the number of points.

    Raises:
        ValueError: on a report without such rows.
    """
    rows = [row for row in report.rows if row.direction == "forward" and row.case in STYLES]
    if report.benchmark != "large_domains" or not rows:
        raise ValueError(f"expected a report of large_domains with forward rows; got one of {report.benchmark}")
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.4), layout="constrained")
    _panel(left, rows, lambda row: row.ours_s)
    left.set_ylabel("seconds a forward pass")
    _panel(right, rows, lambda row: row.peak_mb)
    right.set_ylabel("peak memory, MB")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, loc="outside right center", fontsize=9)
    figure.suptitle(
        f"{report.machine.split(';')[0]}, {report.threads} thread{'s' * (report.threads > 1)}, float32",
        fontsize=9,
        color=GREY,
    )
    figure.savefig(picture, dpi=120)
    plt.close(figure)


def _panel(axes: Axes, rows: list[Row], cost: Callable[[Row], float | None]) -> None:
    sizes = sorted({row.n for row in rows})
    for case, (colour, line) in STYLES.items():
        points = {row.n: cost(row) for row in rows if row.case == case}
        if points:
            axes.loglog(list(points), list(points.values()), line, color=colour, label=case, markersize=4)
    axes.xaxis.set_major_locator(FixedLocator(sizes))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:,.0f}"))
    axes.set_xlabel("points n")
    axes.grid(alpha=0.3)


if __name__ == "__main__":
    draw(Report.from_json(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
