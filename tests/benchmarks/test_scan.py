"""The scan benchmark at tiny sizes: its gate, its rows and its command."""

import pytest
import torch

from benchmarks import scan
from benchmarks.harness import DIRECTIONS, GateError, Options
from benchmarks.scan import BENCHMARK, CASE, PEER, Config, compare

SHORT = Options(rounds=1, budget_s=0.001)
TINY = Config(options=SHORT, channels=3, state_dim=2, batch=2, peer_sizes=(9,), own_sizes=(17,))


def test_the_peer_gives_the_same():
    assert 0 <= compare(TINY) < 1e-5


@pytest.mark.usefixtures("timing_forbidden")
def test_the_gate_stops_a_disagreeing_peer_before_timing(monkeypatch):
    right = scan.selective_loop
    monkeypatch.setattr(scan, "selective_loop", lambda *given: 1.0001 * right(*given))
    with pytest.raises(GateError, match="selective scan against plain loop, n=9"):
        BENCHMARK.run(TINY)


@pytest.mark.usefixtures("in_one_process")
def test_every_size_and_direction_has_a_row_per_side():
    threads = torch.get_num_threads()
    report = BENCHMARK.run(TINY)
    assert torch.get_num_threads() == threads
    rows = [(row.case, row.n, row.direction, row.peer) for row in report.rows]
    expected = [(case, 9, d, PEER if case == CASE else None) for d in DIRECTIONS for case in (CASE, PEER)]
    assert rows == expected + [(CASE, 17, d, None) for d in DIRECTIONS]
    for row in report.rows:
        assert row.ours_s > 0
        assert row.peak_mb is not None
        assert row.max_rel_error is not None
        assert row.max_rel_error <= TINY.tolerance
        assert row.peer_s is None or row.ratio == row.peer_s / row.ours_s
    assert [note.split(":")[0] for note in report.notes] == [f"{CASE}, {d}" for d in DIRECTIONS]
