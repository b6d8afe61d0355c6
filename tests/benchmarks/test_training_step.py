"""The benchmark of training steps at tiny sizes: its gate, its rows and its notes."""

import dataclasses

import pytest
import torch

from benchmarks import training_step as benchmark
from benchmarks.harness import GateError, Options
from benchmarks.itnet_problem import PEER, ModelProblem

QUICK = benchmark.Config(options=Options(quick=True)).sized()
SHORT = dataclasses.replace(QUICK, options=Options(rounds=1, budget_s=0.001), cases=("low rank 32", PEER))


@pytest.mark.slow
@pytest.mark.usefixtures("in_one_process")
def test_every_case_has_a_row_with_and_without_blocks_that_are_kept():
    report = benchmark.BENCHMARK.run(SHORT)
    assert [row.case for row in report.rows] == [
        f"S, {case}{kind}" for case in SHORT.cases for kind in ("", benchmark.AGAIN)
    ]
    for row in report.rows:
        assert row.per_second == 2 / row.ours_s
        assert (row.max_rel_error is None) != row.case.endswith(benchmark.AGAIN)
    assert len(report.notes) == sum(bool(row.peak_mb) for row in report.rows if row.case.endswith(benchmark.AGAIN))


@pytest.mark.usefixtures("nothing_is_timed")
def test_gate_stops_blocks_that_give_other_gradients(monkeypatch):
    monkeypatch.setattr(benchmark.Again, "forward", lambda self, *given: 1.01 * self.block(*given))
    with pytest.raises(GateError, match="computed again against low rank 32"):
        benchmark.BENCHMARK.run(SHORT)


@pytest.mark.parametrize("name", ["exact", "exact" + benchmark.AGAIN])
def test_a_step_changes_weights_and_their_average_and_leaves_no_gradient(monkeypatch, name):
    built = []
    right = benchmark.Training.model

    def noted(self, *given):
        built.append(right(self, *given))
        return built[-1]

    monkeypatch.setattr(benchmark.Training, "model", noted)
    step = benchmark.Training(QUICK, "S", 2).step(name, "forward+backward")
    before = [parameter.detach().clone() for parameter in built[0].parameters()]
    (loss,) = step()
    assert torch.isfinite(loss)
    changed = [not torch.equal(old, new) for old, new in zip(before, built[0].parameters(), strict=True)]
    assert sum(changed) > len(changed) // 2
    assert all(parameter.grad is None for parameter in built[0].parameters())
    problem = ModelProblem(QUICK.shaped("S"), QUICK.options, 2)
    assert type(problem.model("exact")) is type(built[0])


def test_unknown_shapes_and_cases_are_named():
    for wrong in ({"shapes": ("XL",)}, {"cases": ("low rank 3",)}):
        with pytest.raises(ValueError, match=r"XL|low rank 3"):
            dataclasses.replace(QUICK, **wrong).checked()
