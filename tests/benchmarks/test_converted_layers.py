"""The benchmark of converted layers at tiny sizes: its gate, its rows and its command."""

import json
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import torch
from torch import nn

from benchmarks import converted_layers
from benchmarks.converted_layers import DIRECTIONS, Case, Config, Problem, run
from benchmarks.harness import GateError
from fredholm import operators
from fredholm.operators import from_torch

ROOT = Path(__file__).parents[2]
TINY = Config(quick=True)


def off_by_little(module: nn.Module) -> nn.Module:
    """A conversion with one parameter off by one part in a hundred."""
    converted = from_torch(module)
    with torch.no_grad():
        next(converted.parameters()).mul_(1.01)
    return converted


@pytest.mark.parametrize("case", ["GRU", "Conv2d", "attention"])
def test_nothing_is_timed_where_a_layer_disagrees(monkeypatch, case):
    monkeypatch.setattr(operators, "from_torch", off_by_little)
    monkeypatch.setattr(converted_layers, "interleave", lambda *_, **__: pytest.fail("timed in spite of the gate"))
    with pytest.raises(GateError, match=f"{case} against torch"):
        run(Config(quick=True, cases=(case,)))


@pytest.mark.parametrize("case", get_args(Case))
def test_gradients_come_back_in_torchs_layout(case):
    problem = Problem(case, TINY)
    ours = problem.in_torchs_layout(problem.step(problem.converted, "forward+backward")())
    theirs = problem.step(problem.native, "forward+backward")()
    assert [tensor.shape for tensor in ours] == [tensor.shape for tensor in theirs]
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_every_case_has_a_row_for_every_direction():
    report = run(TINY)
    assert [(row.case, row.direction) for row in report.rows] == [(c, d) for c in get_args(Case) for d in DIRECTIONS]
    for row in report.rows:
        assert row.peer_s is not None
        assert row.ratio == row.peer_s / row.ours_s
        assert row.max_rel_error <= 1e-5


@pytest.mark.slow
def test_quick_command_prints_a_table_and_writes_the_same_rows(tmp_path):
    path = tmp_path / "rows.json"
    command = [sys.executable, "-m", "benchmarks.converted_layers", "--quick", "--cases", "LSTM", "GRU"]
    command += ["--threads", "1", "--json", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(path.read_text())
    assert report["threads"] == 1
    table = [line.split(" | ")[:3] for line in done.stdout.splitlines() if line[:5] in ("| LST", "| GRU")]
    assert table == [[f"| {row['case']}", str(row["n"]), row["direction"]] for row in report["rows"]]
