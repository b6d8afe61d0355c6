"""The benchmark of the neighbour search at tiny sizes: its gate, its rows and its command."""

import dataclasses

import pytest

from benchmarks import neighbours
from benchmarks.harness import GateError, Options
from benchmarks.neighbours import ALL_PAIRS, BENCHMARK, CASES, RADIUS, TORUS, TREE, VOLUME, Config, compare

TINY = Config(options=Options(rounds=1, budget_s=0.001), k=3, sizes=(1500, 2000), all_pairs_up_to=1600)


def test_all_sides_find_the_same_neighbours():
    compare(TINY)


@pytest.mark.usefixtures("timing_forbidden")
@pytest.mark.parametrize("case", [VOLUME, RADIUS])
def test_the_gate_stops_a_search_that_misses_neighbours(case, monkeypatch):
    right = neighbours.nearest

    def too_far(pos, *, k, radius, periodic):
        return right(1.01 * pos, k=k, radius=radius, periodic=periodic)

    monkeypatch.setattr(neighbours, "nearest", too_far)
    with pytest.raises(GateError, match=f"{case}, n=1500"):
        BENCHMARK.run(Config(options=TINY.options, cases=(case,), sizes=TINY.sizes))


@pytest.mark.slow
@pytest.mark.usefixtures("in_one_process")
def test_every_case_and_size_has_a_row_per_peer():
    report = BENCHMARK.run(dataclasses.replace(TINY, sizes=(60, 80), all_pairs_up_to=70))
    rows = [(row.case, row.n, row.peer) for row in report.rows]
    expected = [(c, 60, p) for c in CASES for p in (TREE, ALL_PAIRS) if (c, p) != (TORUS, ALL_PAIRS)]
    assert rows == expected + [(c, 80, TREE) for c in CASES]
    for row in report.rows:
        assert row.peak_mb is not None
        assert row.max_rel_error is not None
        assert row.peer_s is not None
        assert row.ratio == row.peer_s / row.ours_s


def test_the_error_for_an_unknown_case_names_it():
    with pytest.raises(ValueError, match="no case 'sphere'; expected some of plane, volume"):
        BENCHMARK.run(Config(cases=("sphere",)))
