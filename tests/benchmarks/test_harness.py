"""The parts that every benchmark shares: gate, clock, memory, growth and report."""

import json
import math

import pytest
import torch

from benchmarks.harness import (
    GateError,
    PeakMemory,
    Row,
    growth_exponent,
    in_fresh_process,
    interleave,
    relative_error,
    require_agreement,
    timing,
)
from benchmarks.harness.report import report_of

CPU = torch.device("cpu")


def allocate_and_free(megabytes: int) -> float:
    held = torch.ones(40_000_000 // 4)  # exists before, so it does not count
    with PeakMemory(CPU) as peak:
        torch.ones(megabytes * 1_000_000 // 4).sum()
    assert held.sum() > 0
    return peak.megabytes


def fail() -> None:
    raise ValueError("told from the fresh process")


def test_peak_memory_counts_what_was_freed_again_but_not_what_was_there_before():
    assert 118 <= in_fresh_process(allocate_and_free, 120) <= 135


def test_fresh_process_hands_its_error_back():
    with pytest.raises(ValueError, match="told from the fresh process"):
        in_fresh_process(fail)


def test_relative_error_is_the_worst_over_all_tensors():
    expected = [torch.tensor([1.0, -4.0]), torch.tensor([10.0])]
    actual = [torch.tensor([1.0, -4.0]), torch.tensor([10.5])]
    assert relative_error(actual, expected) == pytest.approx(0.05)


def test_gate_refuses_disagreement_and_nan():
    one = [torch.ones(3)]
    assert require_agreement("equal", one, one, 1e-5) == 0.0
    with pytest.raises(GateError, match=r"shifted: relative error 1\.00e-03 exceeds 1e-05"):
        require_agreement("shifted", [torch.full((3,), 1.001)], one, 1e-5)
    with pytest.raises(GateError, match="inf"):
        require_agreement("not a number", [torch.tensor([1.0, math.nan, 1.0])], one, 1e-5)
    with pytest.raises(ValueError, match="cannot be compared"):
        require_agreement("shapes", [torch.ones(2)], one, 1e-5)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch):
    """A clock that only the steps move: ``clock(seconds)`` passes time."""
    now = [0.0]

    def advance(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    return advance


def test_interleave_takes_turns_drops_the_warm_up_and_retires_slow_steps(clock):
    order = []
    quick_times = iter([9.0, 1.0, 5.0, 2.0])

    def quick():
        order.append("quick")
        clock(next(quick_times))
        return (torch.tensor(1.0),)

    def slow():
        order.append("slow")
        clock(60.0)
        return (torch.tensor(2.0),)

    timed = interleave({"quick": quick, "slow": slow}, device=CPU, rounds=3, budget_s=20.0, label="test")
    assert order == ["quick", "slow", "quick", "quick", "quick"]
    assert timed["quick"].seconds == [1.0, 5.0, 2.0]
    assert timed["quick"].median == 2.0
    assert timed["slow"].seconds == [60.0]
    assert timed["slow"].result[0] == 2.0


def test_growth_exponent_is_the_power_of_a_power_law():
    sizes = [64, 196, 1024]
    assert growth_exponent(sizes, [3e-4 * n**1.75 for n in sizes]) == pytest.approx(1.75)
    with pytest.raises(ValueError, match="two or more sizes"):
        growth_exponent([64, 64], [1.0, 2.0])
    with pytest.raises(ValueError, match="positive"):
        growth_exponent([64, 65], [0.0, 2.0])


@pytest.fixture
def rows() -> list[Row]:
    alone = Row(
        case="grid",
        n=4,
        direction="forward",
        ours_s=0.5,
        peer=None,
        peer_s=None,
        ratio=None,
        peak_mb=3.0,
        max_rel_error=0.0,
    )
    against = Row(
        case="grid",
        n=4,
        direction="forward",
        ours_s=0.5,
        peer="x",
        peer_s=2.0,
        ratio=4.0,
        peak_mb=3.0,
        max_rel_error=1e-6,
    )
    return [alone, against]


def test_report_has_exactly_the_agreed_form(rows, tmp_path):
    report_of(rows, CPU).write_json(tmp_path / "report.json")
    report = json.loads((tmp_path / "report.json").read_text())
    assert set(report) == {"machine", "torch", "threads", "rows"}
    fields = {"case", "n", "direction", "ours_s", "peer", "peer_s", "ratio", "peak_mb", "max_rel_error"}
    assert all(set(row) == fields for row in report["rows"])
    assert report["torch"] == torch.__version__
    assert report["threads"] == torch.get_num_threads()
    assert list(tmp_path.iterdir()) == [tmp_path / "report.json"]


def test_table_leaves_absent_peers_blank(rows):
    lines = report_of(rows, CPU).markdown().splitlines()
    assert "| grid | 4 | forward | 500.0 ms | - | - | - | 3 | 0.0e+00 |" in lines
    assert "| grid | 4 | forward | 500.0 ms | x | 2.00 s | 4.0x | 3 | 1.0e-06 |" in lines
