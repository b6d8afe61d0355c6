import dataclasses
import json
from pathlib import Path

import pytest
import torch

from benchmarks import roofline
from benchmarks.harness import DIRECTIONS, GateError, Options, Row
from benchmarks.harness.report import report_of
from fredholm.evaluation import Toeplitz
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("poisoned_memory")
QUICK = roofline.Config(options=Options(quick=True)).sized()
CASES = ("exact, grid", "softmax attention")


@pytest.mark.usefixtures("in_one_process")
def test_a_quick_run_has_every_row_and_notes_with_the_rates() -> None:
    rows = list(roofline.measure(dataclasses.replace(QUICK, cases=CASES)))
    expected = {(case, direction, part) for case in CASES for direction in DIRECTIONS for part in roofline.PARTS}
    assert {(row.case, row.direction, row.peer) for row in rows} == expected
    for row in rows:
        assert row.peer_s is not None
        assert row.ratio == pytest.approx(row.peer_s / row.ours_s)
    notes = list(roofline.notes(rows))
    assert notes[0].startswith("flops of products a second: ")
    assert len(notes) == 3 + 4
    # operations per second divided by the fraction of the roof are the machine's rate
    product = rows[0]
    assert product.per_second
    assert product.ratio
    work = roofline.work_of_exact(QUICK, "exact, grid", "forward")
    rate = product.per_second / product.ratio
    assert work.flops / rate == pytest.approx(product.peer_s)


def test_the_work_of_one_pair() -> None:
    """By hand, for w = 2 units, d = 3 channels, L = 5 frequencies, one head and one pair."""
    sizes = dataclasses.replace(QUICK.problem, embed_dim=3, num_heads=1, width=2, num_frequencies=5)
    config = dataclasses.replace(QUICK, problem=sizes, points=1)
    last = 2 * 2 * 3 * 3  # W, once per query
    forward = roofline.work_of_exact(config, "exact, grid", "forward")
    assert forward.flops == 2 * (2 * 3) + 2 * (2 * 3) + last  # p, and S
    assert forward.activations == 2
    both = roofline.work_of_exact(config, "exact, grid", "forward+backward")
    assert both.flops - forward.flops == 5 * 2 * (2 * 3) + 3 * last
    assert both.activations == 6
    by_parts = roofline.work_of_exact(config, "exact, points", "forward")
    assert by_parts.flops - forward.flops == 2 * 2 * (2 * 5)  # sines and cosines
    assert roofline.work_of_exact(config, "exact, grid bf16", "forward").num_bytes == forward.num_bytes / 2
    scores = dataclasses.replace(QUICK, score_points=2)
    channels = 384
    assert roofline.work_of_scores(scores, "forward").flops == 4 * (2 * channels + 2 * channels)


def test_a_wrong_integral_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Toeplitz.compute
    monkeypatch.setattr(Toeplitz, "compute", lambda *given: 1.001 * right(*given))
    with pytest.raises(GateError, match="grid against the formula"):
        roofline.compare(dataclasses.replace(QUICK, cases=("exact, grid",)))


def test_rates_are_those_of_the_dtype() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        assert all(rate > 0 for rate in roofline.rates_of(QUICK, dtype))


def test_a_report_becomes_a_picture_and_other_reports_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the picture needs matplotlib")
    from benchmarks.roofline_picture import draw

    rows = [
        Row(case=case, n=9, direction=direction, ours_s=2.0, peer=part, peer_s=1.0, ratio=0.5, per_second=3.0)
        for case in roofline.CASES
        for direction in DIRECTIONS
        for part in roofline.PARTS
    ]
    draw(report_of("roofline", rows, [], Options()), tmp_path / "roofline.png")
    assert (tmp_path / "roofline.png").read_bytes().startswith(b"\x89PNG")
    for report in (report_of("scan", rows, [], Options()), report_of("roofline", [], [], Options())):
        with refused(ValueError, "expected a report of roofline", report.benchmark):
            draw(report, tmp_path / "other.png")
    assert not (tmp_path / "other.png").exists()


def test_the_report_is_found_among_those_of_a_gpu(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the picture needs matplotlib")
    from benchmarks.roofline_picture import report_in

    one, other = (dataclasses.asdict(report_of(name, [], [], Options())) for name in ("roofline", "scan"))
    path = tmp_path / "report.json"
    for content in (one, {"reports": [other, one]}):
        path.write_text(json.dumps(content))
        assert report_in(path).benchmark == "roofline"
    for content in (other, {"reports": [other]}):
        path.write_text(json.dumps(content))
        with refused(ValueError, "no report of roofline", str(path)):
            report_in(path)
