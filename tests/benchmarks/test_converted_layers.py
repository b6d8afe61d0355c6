"""The benchmark of converted layers at tiny sizes: its gate, its rows and its command."""

from typing import get_args

import pytest
import torch
from torch import nn

from benchmarks.converted_layers import BENCHMARK, Case, Config, Problem
from benchmarks.harness import DIRECTIONS, GateError, Options
from fredholm import layers
from fredholm.layers import from_torch

QUICK = Config(options=Options(quick=True))


def off_by_little(module: nn.Module) -> nn.Module:
    """Converts a module and scales one parameter by 1.01."""
    converted = from_torch(module)
    with torch.no_grad():
        next(converted.parameters()).mul_(1.01)
    return converted


@pytest.mark.parametrize("case", ["GRU", "Conv2d", "attention"])
@pytest.mark.usefixtures("timing_forbidden")
def test_nothing_is_timed_if_a_layer_disagrees(monkeypatch, case):
    monkeypatch.setattr(layers, "from_torch", off_by_little)
    with pytest.raises(GateError, match=f"{case} against torch"):
        BENCHMARK.run(Config(options=Options(quick=True), cases=(case,)))


@pytest.mark.parametrize("case", get_args(Case))
def test_gradients_have_the_layout_of_torch(case):
    problem = Problem(case, QUICK.sized())
    ours = problem.in_torchs_layout(problem.step(problem.converted, "forward+backward")())
    theirs = problem.step(problem.native, "forward+backward")()
    assert [tensor.shape for tensor in ours] == [tensor.shape for tensor in theirs]
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_every_case_has_a_row_per_direction():
    report = BENCHMARK.run(QUICK)
    assert [(row.case, row.direction) for row in report.rows] == [(c, d) for c in get_args(Case) for d in DIRECTIONS]
    for row in report.rows:
        assert row.peer_s is not None
        assert row.ratio == row.peer_s / row.ours_s
        assert row.max_rel_error is not None
        assert row.max_rel_error <= 1e-5
