"""The parts shared by all benchmarks: gate, clock, memory, growth and report."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import pytest
import torch
from torch import Tensor
from torch.backends import cudnn

from benchmarks.harness import (
    Alone,
    Benchmark,
    Direction,
    GateError,
    Instance,
    Options,
    Report,
    Row,
    Settings,
    Sides,
    Step,
    directed,
    each_alone,
    growth,
    growth_exponent,
    in_fresh_process,
    interleave,
    measure_alone,
    relative_error,
    require_agreement,
    timing,
)
from benchmarks.harness.report import report_of
from tests.pretended_device import pretending
from tests.refusals import refused


def fail() -> None:
    raise ValueError("told from the fresh process")


@pytest.mark.slow
def test_an_error_in_a_fresh_process_is_raised_here():
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
    """A clock moved only by the steps: ``clock(seconds)`` passes time."""
    now = [0.0]

    def advance(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    return advance


def test_interleave_alternates_drops_the_warm_up_and_retires_slow_steps(clock):
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

    options = Options(rounds=3, budget_s=20.0)
    timed = interleave({"quick": quick, "slow": slow}, options=options, label="test")
    assert order == ["quick", "slow", "quick", "quick", "quick"]
    assert timed["quick"].seconds == [1.0, 5.0, 2.0]
    assert timed["quick"].median == 2.0
    assert timed["slow"].seconds == [60.0]
    assert timed["slow"].result[0] == 2.0


def test_growth_exponent_of_a_power_law_is_its_power():
    sizes = [64, 196, 1024]
    assert growth_exponent(sizes, [3e-4 * n**1.75 for n in sizes]) == pytest.approx(1.75)
    with pytest.raises(ValueError, match="two or more sizes"):
        growth_exponent([64, 64], [1.0, 2.0])
    with pytest.raises(ValueError, match="positive"):
        growth_exponent([64, 65], [0.0, 2.0])


def test_growth_is_fitted_for_cases_and_peers_over_the_larger_sizes():
    def row(n: int, ours_s: float, peer_s: float | None, peak_mb: float, peer: str = "x") -> Row:
        return Row(
            case="grid",
            n=n,
            direction="forward",
            ours_s=ours_s,
            peer=None if peer_s is None else peer,
            peer_s=peer_s,
            peak_mb=peak_mb,
        )

    rows = [row(4, 7.0, 1.0, 9.0), row(16, 1.0, 64.0, 2.0), row(64, 16.0, None, 4.0), row(256, 256.0, None, 8.0)]
    expected = [
        "grid, forward: time ~ n^2.00 over n = 64 to 256, peak memory ~ n^0.50 over n = 64 to 256",
        "x, forward: time ~ n^3.00 over n = 4 to 16",
    ]
    assert list(growth(rows)) == expected
    assert list(growth([*rows, row(256, 256.0, 1.0, 8.0, peer="grid")])) == expected
    assert list(growth(rows[:1])) == []


def test_directed_gives_the_output_and_all_gradients_except_those_of_empty_leaves():
    x, empty = torch.tensor([2.0, 3.0], requires_grad=True), torch.zeros(0, requires_grad=True)
    (output,) = directed(lambda: x * x, "forward", [x], None)()
    assert not output.requires_grad
    output, gradient = directed(lambda: x * x, "forward+backward", [x, empty], torch.tensor([1.0, 10.0]))()
    assert not output.requires_grad
    torch.testing.assert_close(gradient, torch.tensor([4.0, 60.0]))


@final
class Doubling(Instance):
    """Twice a vector of n ones, with a step that needs megabytes; its oracle is 2 everywhere."""

    def __init__(self, n: int) -> None:
        self.x = torch.ones(n, requires_grad=True)

    def step(self, name: str, direction: Direction) -> Step:
        return directed(lambda: 2 * self.x + 0 * torch.ones(10_000_000).sum(), direction, [self.x], None)

    def error(self, name: str, direction: Direction, result: Sequence[Tensor]) -> float | None:
        return require_agreement(name, result, [torch.full_like(part, 2.0) for part in result], 1e-6)


@pytest.mark.slow
def test_a_step_measured_alone_has_time_memory_and_error_per_direction():
    names: dict[str, list[Direction]] = {"doubling": ["forward", "forward+backward"], "again": ["forward"]}
    measured = measure_alone(Doubling, 100, names, Options(), rounds=3)
    assert {name: list(by_direction) for name, by_direction in measured.items()} == names
    for alone in [alone for by_direction in measured.values() for alone in by_direction.values()]:
        assert alone.seconds > 0
        assert 38 <= alone.peak_mb <= 60
        assert alone.error == 0.0


def test_on_a_gpu_a_step_warms_up_itself_and_no_other_size_is_built():
    built, runs = [], []

    @final
    class Counted(Instance):
        def __init__(self, n: int) -> None:
            built.append(n)

        def step(self, name: str, direction: Direction) -> Step:
            return lambda: runs.append((name, direction)) or ()

        def error(self, name: str, direction: Direction, result: Sequence[Tensor]) -> None:
            return None

    names: dict[str, list[Direction]] = {"a": ["forward", "forward+backward"], "b": ["forward"]}
    with pretending():
        found = each_alone(Counted, 100, names, Options(device="cuda"), rounds=2)
        assert next(found)[:2] == ("a", "forward")
        assert (built, runs) == ([100], 3 * [("a", "forward")])
        assert [each[:2] for each in found] == [("a", "forward+backward"), ("b", "forward")]
    assert (built, len(runs)) == ([100], 9)


@pytest.mark.parametrize(
    ("device", "message"), [("nonsense", "got 'nonsense'"), ("mps", "got 'mps'"), ("cuda:99", "PyTorch sees")]
)
def test_an_unavailable_device_is_refused(device, message):
    with refused(ValueError, "device", message):
        _ = Options(device=device).torch_device


def test_quick_means_two_short_rounds():
    assert Options(quick=True, rounds=9, seed=3).sized() == Options(rounds=2, budget_s=1.0, seed=3)
    assert Options(rounds=9).sized() == Options(rounds=9)


@pytest.fixture
def rows() -> list[Row]:
    alone = Row.alone("grid", 4, "forward", Alone(0.5, 3.0, 0.0))
    timed = {"a": timing.Timed(seconds=[0.5]), "x": timing.Timed(seconds=[9.0, 1.0, 2.0])}
    by_itself: dict[str, dict[Direction, Alone]] = {"a": {"forward": Alone(0.7, 3.0, None)}}
    sides = Sides(n=4, direction="forward", timed=timed, alone=by_itself)
    against = sides.against("a", "x", case="grid", error=1e-6)
    return [alone, against]


def test_reports_have_exactly_the_documented_form(rows, tmp_path):
    report_of("scan", rows, ["a note"], Options(seed=5)).write_json(tmp_path / "report.json")
    text = (tmp_path / "report.json").read_text()
    report = json.loads(text)
    assert set(report) == {"benchmark", "machine", "device", "torch", "triton", "threads", "seed", "rows", "notes"}
    fields = {"case", "n", "direction", "ours_s", "peer", "peer_s", "ratio", "peak_mb", "max_rel_error", "per_second"}
    fields |= {"stored_mb", "weights_mb"}
    assert all(set(row) == fields for row in report["rows"])
    assert report["torch"] == torch.__version__
    assert report["threads"] == torch.get_num_threads()
    assert report["seed"] == 5
    assert list(tmp_path.iterdir()) == [tmp_path / "report.json"]
    assert Report.from_json(text).rows == rows
    for broken in ("[]", "{", '{"rows": []}', "3"):
        with refused(ValueError, "this is no benchmark report"):
            Report.from_json(broken)


def test_tables_leave_missing_peers_blank_and_uninformative_columns_out(rows):
    lines = report_of("scan", rows, ["a note"], Options()).markdown().splitlines()
    assert "| grid | 4 | forward | 500.0 ms | - | - | - | 3 | 0.0e+00 |" in lines
    assert "| grid | 4 | forward | 500.0 ms | x | 2.00 s | 4.0x | 3 | 1.0e-06 |" in lines
    assert lines[-1] == "- a note"
    rows.append(Row(case="model", n=4, direction="forward", ours_s=0.02, per_second=1600.0))
    lines = report_of("scan", rows, [], Options()).markdown().splitlines()
    assert "| model | 4 | forward | 20.0 ms | 1600.0 | - | - | - | - | - |" in lines


@final
@dataclass(frozen=True, kw_only=True)
class Pair(Settings):
    """Settings of a benchmark that measures two rows."""

    def small(self) -> "Pair":
        return self


def test_the_report_is_saved_after_every_row_and_settings_are_restored(rows, tmp_path, monkeypatch):
    path, kept = tmp_path / "report.json", []

    def measure(settings: Pair):
        for row in rows:
            yield row
            kept.append(Report.from_json(path.read_text()))
        assert torch.get_num_threads() == settings.options.threads
        assert (cudnn.allow_tf32, torch.get_float32_matmul_precision()) == (False, "highest")

    monkeypatch.setattr(cudnn, "allow_tf32", True)
    before = torch.get_num_threads()
    benchmark = Benchmark(name="pair", purpose="", config=Pair, measure=measure, notes=growth)
    report = benchmark.run(Pair(options=Options(json=path, threads=before + 1)))
    assert [part.rows for part in kept] == [rows[:1], rows]
    assert report.rows == rows
    assert report.threads == before + 1
    assert torch.get_num_threads() == before
    assert cudnn.allow_tf32
