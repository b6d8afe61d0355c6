"""The benchmark of training steps at tiny sizes: its gate, its rows and its notes."""

import dataclasses

import pytest
import torch

from benchmarks import training_step as benchmark
from benchmarks.harness import GateError, Options
from benchmarks.itnet_problem import PEER
from fredholm.training.learner import ExponentialMovingAverage

QUICK = benchmark.Config(options=Options(quick=True)).sized()
SHORT = dataclasses.replace(QUICK, options=Options(rounds=1, budget_s=0.001), cases=("low rank 32", PEER))


@pytest.mark.slow
@pytest.mark.usefixtures("in_one_process")
def test_every_case_has_a_row_with_and_without_recomputed_blocks():
    report = benchmark.BENCHMARK.run(SHORT)
    assert [row.case for row in report.rows] == [
        f"S, {case}{kind}" for case in SHORT.cases for kind in ("", benchmark.AGAIN)
    ]
    for row in report.rows:
        assert row.per_second == 2 / row.ours_s
        assert (row.max_rel_error is None) != row.case.endswith(benchmark.AGAIN)
    assert len(report.notes) == sum(bool(row.peak_mb) for row in report.rows if row.case.endswith(benchmark.AGAIN))


@pytest.mark.usefixtures("timing_forbidden")
def test_the_gate_stops_blocks_with_different_gradients(monkeypatch):
    monkeypatch.setattr(benchmark.Again, "forward", lambda self, *given: 1.01 * self.block(*given))
    with pytest.raises(GateError, match="computed again against low rank 32"):
        benchmark.BENCHMARK.run(SHORT)


@pytest.mark.parametrize("name", ["exact", "exact" + benchmark.AGAIN])
def test_a_step_changes_weights_and_their_average_and_clears_gradients(monkeypatch, name):
    kept = []

    class Kept:
        """Keeps the average and its model for the test."""

        def __init__(self, model, decay):
            self.model, self.average = model, ExponentialMovingAverage(model, decay)
            kept.append(self)

        def update(self, model, num_updates):
            self.average.update(model, num_updates)

    monkeypatch.setattr(benchmark, "ExponentialMovingAverage", Kept)
    step = benchmark.Training(QUICK, "S", 2).step(name, "forward+backward")
    sides = (kept[0].model, kept[0].average.model)
    before = [[parameter.detach().clone() for parameter in side.parameters()] for side in sides]
    (loss,) = step()
    assert torch.isfinite(loss)
    for side, old in zip(sides, before, strict=True):
        changed = [not torch.equal(a, b) for a, b in zip(side.parameters(), old, strict=True) if a.numel()]
        assert sum(changed) > 0.9 * len(changed)
        assert all(parameter.grad is None for parameter in side.parameters())


def test_the_errors_for_unknown_shapes_and_cases_name_them():
    for named in ("low rank 3", "Monte Carlo 128"):
        with pytest.raises(ValueError, match=named):
            dataclasses.replace(QUICK, cases=(named,)).checked()
    for shapes, expected in ((("XL",), "XL"), ((), "none")):
        with pytest.raises(ValueError, match=f"expected shapes among S, B; got {expected}"):
            dataclasses.replace(QUICK, shapes=shapes).checked()
