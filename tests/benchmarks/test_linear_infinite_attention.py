import dataclasses

import pytest
import torch

from benchmarks import linear_infinite_attention as benchmark
from benchmarks.harness import DIRECTIONS, GateError, Options
from fredholm.evaluation import CentralPooling, Woodbury

pytestmark = pytest.mark.usefixtures("poisoned_memory")
QUICK = benchmark.Config(options=Options(quick=True)).sized()


@pytest.mark.slow
@pytest.mark.usefixtures("in_one_process")
def test_a_quick_run_has_every_row():
    config = dataclasses.replace(QUICK, own_points=(48, 64))
    rows = list(benchmark.measure(config))
    for ours in (benchmark.LINEAR, benchmark.FACTORISED):
        peers = {row.peer for row in rows if row.case == ours}
        assert peers >= {benchmark.LINEAR_ATTENTION, benchmark.SOFTMAX, benchmark.PLAIN}
    assert {row.n for row in rows} == {config.points, *config.own_points}
    advice = list(benchmark.BENCHMARK.notes(rows))
    assert any("times the time of linear infinite attention" in line for line in advice)


@pytest.mark.parametrize(("route", "named"), [(CentralPooling, "eq. 16-21"), (Woodbury, "torch.linalg.solve")])
def test_a_wrong_sum_is_not_timed(monkeypatch, route, named):
    right = route.compute
    monkeypatch.setattr(route, "compute", lambda *given: 1.001 * right(*given))
    with pytest.raises(GateError, match=named):
        benchmark.compare(QUICK)


def test_plain_attention_follows_the_formula():
    problem = benchmark.Problem(QUICK, 24, 12, "float32", 5)
    found, expected = (problem.step(name, "forward")()[0] for name in (benchmark.PLAIN, benchmark.SOFTMAX))
    torch.testing.assert_close(found, expected)


@pytest.mark.slow
@pytest.mark.usefixtures("in_one_process")
def test_large_sizes_may_have_heads_and_bfloat16():
    config = dataclasses.replace(QUICK, own_heads=2, own_precision="bfloat16", own_points=(48, 64))
    rows = list(benchmark.measure(config))
    found = f"2 heads of {QUICK.own_channels // 2} channels, bfloat16"
    own = [row for row in rows if row.case == f"{benchmark.LINEAR}, {found}"]
    assert [(row.n, row.direction) for row in own] == [(n, way) for n in (48, 64) for way in DIRECTIONS]
    assert any(note.startswith(f"{benchmark.FACTORISED}, {found}, n = 64, forward:") for note in benchmark.notes(rows))


def test_bfloat16_is_autocast():
    problems = (benchmark.Problem(QUICK, 24, 12, precision, 48) for precision in ("float32", "bfloat16"))
    exact, rounded = (problem.step(benchmark.LINEAR, "forward")()[0] for problem in problems)
    assert 0 < float((exact - rounded).norm() / exact.norm()) < 0.05


@pytest.mark.parametrize("wrong", [{"own_heads": 0}, {"own_heads": 3}, {"heads": 5}])
def test_heads_that_do_not_divide_the_channels_are_refused_before_timing(wrong):
    with pytest.raises(ValueError, match="expected heads that divide"):
        dataclasses.replace(QUICK, **wrong).checked()
