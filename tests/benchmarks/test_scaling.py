"""The plot of time and memory over n: drawn from a report, refused without one."""

from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="the plot needs matplotlib")

from benchmarks.harness import Options, Row
from benchmarks.harness.report import report_of
from benchmarks.large_problem import ATTENTION, CASES
from benchmarks.scaling import STYLES, draw
from tests.refusals import refused


def row(case: str, n: int) -> Row:
    return Row(case=case, n=n, direction="forward", ours_s=1e-6 * n**2, peak_mb=0.1 * n)


def test_every_case_has_its_own_line():
    assert set(STYLES) == {*CASES, ATTENTION}
    assert len(set(STYLES.values())) == len(STYLES)


def test_a_report_becomes_a_picture(tmp_path: Path):
    rows = [row(case, n) for case in STYLES for n in (256, 1024)]
    draw(report_of("large_domains", rows, [], Options()), tmp_path / "scaling.png")
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")


def test_other_reports_are_refused(tmp_path: Path):
    for report in (report_of("scan", [row("grid", 4)], [], Options()), report_of("large_domains", [], [], Options())):
        with refused(ValueError, "expected a report of large_domains with forward rows", report.benchmark):
            draw(report, tmp_path / "scaling.png")
    assert not list(tmp_path.iterdir())
