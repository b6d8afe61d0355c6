"""The benchmark of kernels that depend on positions alone, at tiny sizes: its gate, its rows and its note."""

import pytest

from benchmarks import one_kernel
from benchmarks.harness import DIRECTIONS, GateError, Options
from benchmarks.one_kernel import BENCHMARK, DISPLACEMENT, PEERS, POSITIONS, Config

TINY = Config(options=Options(rounds=1, budget_s=0.001)).small()


@pytest.mark.usefixtures("timing_forbidden")
@pytest.mark.parametrize("case", [POSITIONS, DISPLACEMENT])
def test_the_gate_stops_a_disagreeing_peer_before_timing(monkeypatch, case):
    name = "_entry_by_entry" if case == POSITIONS else "_over_pairs"
    right = getattr(one_kernel.Problem, name)
    monkeypatch.setattr(one_kernel.Problem, name, lambda self: 1.001 * right(self))
    with pytest.raises(GateError, match=f"{case} against {PEERS[case]}"):
        BENCHMARK.run(TINY)


@pytest.mark.slow
@pytest.mark.usefixtures("in_one_process")
def test_every_case_and_size_has_a_row_per_direction():
    report = BENCHMARK.run(TINY)
    rows = [(row.case, row.n, row.direction, row.peer) for row in report.rows]
    cases = ((POSITIONS, TINY.batches), (DISPLACEMENT, TINY.sides))
    assert rows == [(case, n, d, PEERS[case]) for case, sizes in cases for n in sizes for d in DIRECTIONS]
    assert [note.split(": a batch of 3 takes")[0] for note in report.notes] == [f"{POSITIONS}, {d}" for d in DIRECTIONS]
    for row in report.rows:
        assert row.max_rel_error is not None
        assert row.max_rel_error <= TINY.tolerance


@pytest.mark.parametrize(("change", "message"), [({"channels": 6}, "4 heads"), ({"batches": (0, 1)}, "at least 1")])
def test_bad_sizes_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Config(**change).checked()
