import dataclasses

import pytest
import torch

from benchmarks import infinite_attention
from benchmarks.harness import GateError, Options
from fredholm.evaluation import HopSeries, Iteration

pytestmark = pytest.mark.usefixtures("poisoned_memory")
QUICK = infinite_attention.Config(options=Options(quick=True)).sized()


@pytest.mark.usefixtures("in_one_process")
def test_a_quick_run_has_every_row():
    config = dataclasses.replace(QUICK, own_points=(48,))
    rows = list(infinite_attention.measure(config))
    for route in infinite_attention.ROUTES:
        peers = {row.peer for row in rows if row.case == route and row.peer}
        assert "softmax attention" in peers
        assert route == "one hop" or peers >= {"one hop", "torch.linalg.solve"}
    assert {row.n for row in rows} == {config.points, *config.own_points}
    checked = [row for row in rows if row.max_rel_error is not None]
    assert {row.case for row in checked} >= {"one hop", "iteration", "factorisation", "cut series"}
    assert all((row.max_rel_error or 0.0) < config.tolerance for row in checked)
    assert any("times the peak memory of one hop" in line for line in infinite_attention.BENCHMARK.notes(rows))


def test_a_wrong_series_is_not_timed(monkeypatch):
    right = HopSeries.compute

    def off(route, integral):
        return right(route, integral) * (1.001 if isinstance(route.solver, Iteration) else 1.0)

    monkeypatch.setattr(HopSeries, "compute", off)
    with pytest.raises(GateError, match=r"iteration against torch\.linalg\.solve"):
        infinite_attention.compare(QUICK)


def test_the_peers_follow_the_formula():
    problem = infinite_attention.Problem(QUICK, 5)
    q, k, v = problem.u[0].detach().view(5, 3, 2, 6).permute(1, 2, 0, 3)
    hop = (q @ k.mT).clamp_min(0)
    hop = hop / hop.square().sum((1, 2), keepdim=True).sqrt()
    series = torch.stack([torch.linalg.matrix_power(0.7 * hop, t) for t in range(1, 80)]).sum(0)
    for name, shares in (("one hop, written out", hop), ("torch.linalg.solve", series)):
        expected = (shares @ v).transpose(0, 1).flatten(1)
        torch.testing.assert_close(problem.step(name, "forward")()[0][0], expected)
