"""Bar chart of a roofline report: ``python -m benchmarks.roofline_picture REPORT PICTURE``.

The report is one of `roofline`, or the reports gathered by `gpu.sh` with one of `roofline` among them.
"""

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from benchmarks.harness import Report
from benchmarks.roofline import PARTS

BLUE, ORANGE, GREEN, GREY = "#0072b2", "#d55e00", "#009e73", "#666666"


def draw(report: Report, picture: Path) -> None:
    """Draws for every case the shares of its time that its products, activations and bytes would take alone.

    Raises:
        ValueError: on a report without such rows.
    """
    rows = [row for row in report.rows if row.peer in PARTS]
    if report.benchmark != "roofline" or not rows:
        raise ValueError(f"expected a report of roofline; got one of {report.benchmark}")
    cases = list(dict.fromkeys((row.case, row.n, row.direction) for row in rows))
    figure, axes = plt.subplots(figsize=(9, 0.5 + 0.42 * len(cases)), layout="constrained")
    for number, (part, colour) in enumerate(zip(PARTS, (BLUE, ORANGE, GREEN), strict=True)):
        shares = {(row.case, row.n, row.direction): 100 * (row.ratio or 0.0) for row in rows if row.peer == part}
        places = [place + 0.27 * (number - 1) for place in range(len(cases))]
        axes.barh(places, [shares.get(case, 0.0) for case in cases], 0.25, color=colour, label=part)
    axes.axvline(100, color=GREY, linewidth=1)
    axes.set_yticks(range(len(cases)), [f"{case}, n = {n:,}, {direction}" for case, n, direction in cases], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("% of the measured time, at the machine's rates; the longest bar of a case is its roof")
    axes.legend(frameon=False, fontsize=8, loc="lower right", bbox_to_anchor=(0.92, 0.0))
    axes.grid(axis="x", alpha=0.3)
    machine = report.machine.split(";")[0 if report.device == "cpu" else 1].strip()
    axes.set_title(f"{machine}, {report.threads} thread{'s' * (report.threads > 1)}", fontsize=9, color=GREY)
    figure.savefig(picture, dpi=110)
    plt.close(figure)


def report_in(path: Path) -> Report:
    """The report of `roofline` in a file with one report or with many.

    Raises:
        ValueError: the file has none.
    """
    content = json.loads(path.read_text())
    for report in content.get("reports", [content]):
        if report["benchmark"] == "roofline":
            return Report.from_json(json.dumps(report))
    raise ValueError(f"{path} has no report of roofline")


if __name__ == "__main__":
    draw(report_in(Path(sys.argv[1])), Path(sys.argv[2]))
