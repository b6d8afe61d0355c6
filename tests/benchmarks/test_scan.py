"""The scan benchmark at tiny sizes: its gate, its rows and its command."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import scan
from benchmarks.harness import GateError
from benchmarks.scan import CASE, DIRECTIONS, PEER, Config, compare, growth, run

ROOT = Path(__file__).parents[2]
TINY = Config(channels=3, state_dim=2, batch=2, peer_sizes=(9,), own_sizes=(17,), rounds=1, budget_s=0.1)


def test_the_peer_computes_the_same():
    assert 0 <= compare(TINY) < 1e-5


def test_gate_stops_a_peer_that_disagrees_before_anything_is_timed(monkeypatch):
    right = scan.selective_loop
    monkeypatch.setattr(scan, "selective_loop", lambda *given: 1.0001 * right(*given))
    monkeypatch.setattr(scan, "interleave", lambda *_, **__: pytest.fail("timed in spite of the gate"))
    with pytest.raises(GateError, match="selective scan against plain loop, n=9"):
        run(TINY)


def test_every_size_and_direction_has_a_row_a_side(monkeypatch):
    monkeypatch.setattr(scan, "in_fresh_process", lambda function, *arguments: function(*arguments))
    threads = torch.get_num_threads()
    report = run(TINY)
    assert torch.get_num_threads() == threads
    rows = [(row.case, row.n, row.direction, row.peer) for row in report.rows]
    expected = [(case, 9, d, PEER if case == CASE else None) for d in DIRECTIONS for case in (CASE, PEER)]
    assert rows == expected + [(CASE, 17, d, None) for d in DIRECTIONS]
    for row in report.rows:
        assert row.ours_s > 0
        assert row.peak_mb is not None
        assert row.max_rel_error <= TINY.tolerance
        assert row.peer_s is None or row.ratio == row.peer_s / row.ours_s
    assert [line.split(":")[0] for line in growth(report.rows)] == [f"{CASE}, {d}" for d in DIRECTIONS]


@pytest.mark.slow
def test_quick_command_prints_a_table_and_writes_the_same_rows(tmp_path):
    path = tmp_path / "rows.json"
    command = [sys.executable, "-m", "benchmarks.scan", "--quick", "--threads", "1", "--json", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(path.read_text())
    table = [line for line in done.stdout.splitlines() if line.startswith((f"| {CASE}", f"| {PEER}"))]
    assert len(table) == len(report["rows"]) == 6
