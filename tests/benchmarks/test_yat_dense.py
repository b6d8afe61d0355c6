"""The benchmark of Yat layers at tiny sizes: its gate, its rows, its count of memory and its command."""

from typing import get_args

import pytest
import torch

pytest.importorskip("nmn", reason="the benchmark's peer is the package nmn")

from benchmarks import yat_dense
from benchmarks.harness import DIRECTIONS, GateError, Options
from benchmarks.yat_dense import BENCHMARK, LINEAR, NORMED, PACKAGE, PEERS, Case, Config, Problem, compare

TINY = Config(options=Options(rounds=1, budget_s=0.001), batch=32, in_features=12, out_features=20)
SIDES = (LINEAR, NORMED, PACKAGE)


@pytest.mark.parametrize("case", get_args(Case))
def test_the_package_and_the_formula_agree_for_equal_weights(case):
    problem = Problem(case, TINY, 9)
    ours = problem.step(case, "forward+backward")()
    assert len(ours) == 2 + len(list(problem.layer.parameters()))
    assert compare(TINY, case, 9) < 1e-5


@pytest.mark.parametrize("peer", PEERS[2:])
@pytest.mark.usefixtures("timing_forbidden")
def test_nothing_is_timed_if_a_peer_disagrees(monkeypatch, peer):
    if peer == PACKAGE:
        right = yat_dense.nmn_dense
        monkeypatch.setattr(yat_dense, "nmn_dense", lambda layer: off_by_little(right(layer)))
    else:
        formula = yat_dense.yat
        monkeypatch.setattr(yat_dense, "yat", lambda *given: 1.0001 * formula(*given))
    with pytest.raises(GateError, match=f"YatDense against {peer}"):
        BENCHMARK.run(TINY)


def off_by_little(module):
    with torch.no_grad():
        module.weight.mul_(1.001)
    return module


def test_stored_tensors_are_counted_once_including_the_output_but_not_parameters():
    points, units, dim = 32, 20, 12
    plain, biased = Problem("YatDense", TINY, points), Problem("YatDense with bias", TINY, points)
    assert plain.stored_mb(LINEAR) * 1e6 == 4 * points * (dim + 2 * units)
    assert plain.stored_mb(NORMED) * 1e6 == 4 * points * (2 * dim + 2 + 2 * units)
    numbers = 4 + 8  # s, and ε in float64
    assert plain.stored_mb("YatDense") * 1e6 - points * (4 * dim + 5 * units) == pytest.approx(numbers, abs=32)
    assert biased.stored_mb("YatDense with bias") * 1e6 - points * (4 * dim + 8 * units) == pytest.approx(
        numbers, abs=32
    )


@pytest.mark.usefixtures("in_one_process")
def test_every_case_has_its_rows_and_notes():
    report = BENCHMARK.run(TINY)
    expected = []
    for case in get_args(Case):
        for direction in DIRECTIONS:
            expected += [(case, direction, peer) for peer in SIDES]
            expected += [(f"{peer} beside {case}", direction, None) for peer in SIDES]
    assert [(row.case, row.direction, row.peer) for row in report.rows] == expected
    for row in report.rows:
        assert row.n == 32
        assert row.peak_mb is not None
        assert (row.stored_mb is None) == (row.direction == "forward")
        if row.peer_s is not None:
            assert row.ratio == row.peer_s / row.ours_s
        if row.peer == PACKAGE:
            assert row.max_rel_error is not None
            assert row.max_rel_error <= TINY.tolerance
    assert len(report.notes) == len(get_args(Case)) * len(SIDES)
