import dataclasses

import pytest
import torch

from benchmarks import linear_infinite_attention as benchmark
from benchmarks.harness import GateError, Options
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
    told = list(benchmark.BENCHMARK.notes(rows))
    assert any("times the time of linear infinite attention" in line for line in told)


@pytest.mark.parametrize(("route", "named"), [(CentralPooling, "eq. 16-21"), (Woodbury, "torch.linalg.solve")])
def test_a_wrong_sum_is_not_timed(monkeypatch, route, named):
    right = route.compute
    monkeypatch.setattr(route, "compute", lambda *given: 1.001 * right(*given))
    with pytest.raises(GateError, match=named):
        benchmark.compare(QUICK)


def test_plain_attention_is_the_formula():
    problem = benchmark.Problem(QUICK, 24, 12, 5)
    found, expected = (problem.step(name, "forward")()[0] for name in (benchmark.PLAIN, benchmark.SOFTMAX))
    torch.testing.assert_close(found, expected)
