"""The exact-MLP benchmark at tiny sizes: its gate, its rows and its command."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("torch_geometric", reason="the benchmark's peers need torch-geometric")

from benchmarks import exact_mlp
from benchmarks.exact_mlp import DIRECTIONS, TOLERANCE, Alone, Config, against_peers, compare, run
from benchmarks.harness import GateError, Row
from benchmarks.harness.report import Direction
from benchmarks.peers import Algorithm1, DenseEinsum, EdgeConditionedConvolution, KernelWeights, Peer
from benchmarks.problem import Problem, ProblemConfig

ROOT = Path(__file__).parents[2]
TINY = ProblemConfig(embed_dim=12, num_heads=3, width=6, num_frequencies=4, batch=2)
PEERS = [Algorithm1((4, 8), by_line=True), Algorithm1((4, 8)), DenseEinsum(), EdgeConditionedConvolution()]


class Wrong(Peer):
    """A peer off by one part in ten thousand."""

    name = "wrong"

    def integrate(self, weights: KernelWeights, u: Tensor, pos: Tensor, measure: Tensor) -> Tensor:
        return 1.0001 * DenseEinsum().integrate(weights, u, pos, measure)

    def kernel_bytes(self, weights: KernelWeights, batch: int, num_points: int) -> int:
        return 0


def test_all_peers_pass_the_gate_at_sizes_that_do_not_fill_their_tiles():
    compare(Config(problem=TINY, peer_sizes=(25,)), PEERS)


def test_gate_stops_a_peer_that_disagrees():
    with pytest.raises(GateError, match="grid against wrong, n=9"):
        compare(Config(problem=TINY, peer_sizes=(9,)), [Wrong()])


def test_kernel_varies_from_pair_to_pair_enough_for_the_gate_to_see_it():
    problem = Problem(TINY, 9)
    matrices = problem.kernel.head_matrices(problem.u, problem.domains["points"])
    across_pairs = matrices.std(dim=(2, 3)).mean()
    assert across_pairs > 0.1 * matrices.abs().mean()


def test_oracle_on_rows_has_the_gradient_of_the_whole():
    problem = Problem(TINY, 16, rows=3)
    for case, tolerance in TOLERANCE.items():
        ours = problem.at_rows(problem.ours(case, "forward+backward")())
        for actual, expected in zip(ours, problem.oracle("forward+backward"), strict=True):
            assert (actual - expected).abs().max() <= tolerance * expected.abs().max()


def test_number_of_points_must_be_a_square():
    with pytest.raises(ValueError, match="must be a square number, got 10"):
        Problem(TINY, 10)


def test_grid_and_points_take_different_routes():
    problem = Problem(TINY, 16)
    routes = {
        case: problem.operator.explain(problem.u, domain).split(":")[0] for case, domain in problem.domains.items()
    }
    assert routes == {"grid": "Toeplitz", "points": "Tiled", "grid bf16": "Toeplitz"}


def test_nothing_is_timed_once_the_gate_has_refused(monkeypatch):
    monkeypatch.setattr(exact_mlp, "DenseEinsum", Wrong)
    monkeypatch.setattr(exact_mlp, "interleave", lambda *_, **__: pytest.fail("timed in spite of the gate"))
    monkeypatch.setattr(exact_mlp, "in_fresh_process", lambda *_: pytest.fail("measured in spite of the gate"))
    with pytest.raises(GateError, match="grid against wrong"):
        run(Config(problem=TINY, peer_sizes=(9,), own_sizes=()))


@pytest.mark.parametrize(("limit", "running"), [(60.0, {"slow", "free"}), (0.5, {"free"})])
def test_a_peer_too_slow_or_too_large_is_left_out(monkeypatch, limit, running):
    monkeypatch.setattr(exact_mlp, "in_fresh_process", lambda *_: dict.fromkeys(DIRECTIONS, Alone(1.0, 1.0, None)))
    slow, free, large = DenseEinsum(), DenseEinsum(), DenseEinsum()
    slow.name, free.name, large.name = "slow", "free", "large"
    monkeypatch.setattr(large, "kernel_bytes", lambda *_: 7_000_000_000)
    expected: dict[tuple[str, Direction], float] = {("slow", direction): 1.0 / 81 for direction in DIRECTIONS}
    config = Config(problem=TINY, rounds=1, budget_s=0.1, peer_limit_s=limit)
    rows = list(against_peers(config, 9, [slow, free, large], expected))
    assert {row.peer for row in rows if row.case == "grid"} == running


def test_every_case_has_a_row_for_every_size_direction_and_peer(monkeypatch):
    monkeypatch.setattr(exact_mlp, "in_fresh_process", lambda function, *arguments: function(*arguments))
    report = run(Config(problem=TINY, peer_sizes=(9, 16), own_sizes=(25,), rounds=1, budget_s=0.1))
    names = [peer.name for peer in PEERS]
    versus = [(case, name) for case in ("grid", "points") for name in names] + [("grid bf16", "fredholm grid")]
    expected = {(case, n, direction, name) for case, name in versus for n in (9, 16) for direction in DIRECTIONS}
    expected |= {(case, 25, direction, None) for case in TOLERANCE for direction in DIRECTIONS}
    rows = [(row.case, row.n, row.direction, row.peer) for row in report.rows]
    assert len(rows) == len(expected)
    assert set(rows) == expected
    for row in report.rows:
        assert row.ours_s > 0
        assert row.max_rel_error <= (2e-2 if row.case == "grid bf16" else 1e-5)
        assert row.peak_mb is not None
        if row.peer_s is None:
            assert row.ratio is None
        else:
            assert row.ratio == row.peer_s / row.ours_s


def test_growth_is_fitted_for_cases_and_peers_over_the_larger_sizes():
    def row(n: int, ours_s: float, peer_s: float | None, peak_mb: float) -> Row:
        return Row(
            case="grid",
            n=n,
            direction="forward",
            ours_s=ours_s,
            peer=None if peer_s is None else "x",
            peer_s=peer_s,
            ratio=None if peer_s is None else peer_s / ours_s,
            peak_mb=peak_mb,
            max_rel_error=0.0,
        )

    rows = [row(4, 7.0, 1.0, 9.0), row(16, 1.0, 64.0, 2.0), row(64, 16.0, None, 4.0), row(256, 256.0, None, 8.0)]
    assert list(exact_mlp.growth(rows)) == [
        "grid, forward: time ~ n^2.00 over n = 64 to 256, peak memory ~ n^0.50 over n = 64 to 256",
        "x, forward: time ~ n^3.00 over n = 4 to 16",
    ]
    assert list(exact_mlp.growth(rows[:1])) == []


def test_low_precision_needs_its_full_precision_peer():
    with pytest.raises(ValueError, match="measured against 'grid'"):
        run(Config(problem=TINY, cases=("grid bf16",)))


@pytest.mark.slow
def test_quick_command_prints_a_table_and_writes_the_same_rows(tmp_path):
    path = tmp_path / "rows.json"
    command = [sys.executable, "-m", "benchmarks.exact_mlp", "--quick", "--cases", "grid"]
    command += ["--threads", "1", "--json", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(path.read_text())
    assert report["threads"] == 1
    assert report["torch"] == torch.__version__
    table = [line.split(" | ")[:3] for line in done.stdout.splitlines() if line.startswith("| grid")]
    assert table == [[f"| {row['case']}", str(row["n"]), row["direction"]] for row in report["rows"]]
    assert "grid, forward+backward: time ~ n^" in done.stdout
