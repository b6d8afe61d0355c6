"""The exact-MLP benchmark at tiny sizes: its gate, its rows and its command."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("torch_geometric", reason="the benchmark's peers need torch-geometric")

from benchmarks.exact_mlp import TOLERANCE, Config, compare
from benchmarks.harness import GateError
from benchmarks.peers import Algorithm1, DenseEinsum, EdgeConditionedConvolution, KernelWeights, Peer
from benchmarks.problem import Problem, ProblemConfig

ROOT = Path(__file__).parents[2]
TINY = ProblemConfig(embed_dim=12, num_heads=3, width=6, num_frequencies=4, batch=2)
PEERS = [Algorithm1((4, 8)), DenseEinsum(), EdgeConditionedConvolution()]


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
    routes = [problem.operator.explain(problem.u, problem.domains[name]).split(":")[0] for name in ("grid", "points")]
    assert routes == ["Toeplitz", "Tiled"]


def test_quick_command_prints_a_table_and_writes_every_row(tmp_path):
    path = tmp_path / "rows.json"
    command = [sys.executable, "-m", "benchmarks.exact_mlp", "--quick", "--threads", "1", "--json", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(path.read_text())
    assert report["threads"] == 1
    assert report["torch"] == torch.__version__
    rows = report["rows"]
    table = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    assert len(table) == len(rows) + 2
    assert {(row["n"], row["direction"]) for row in rows} == {
        (n, direction) for n in (36, 64) for direction in ("forward", "forward+backward")
    }
    timed = [row for row in rows if row["n"] == 36]
    names = [peer.name for peer in PEERS]
    pairs = {(row["case"], row["peer"]) for row in timed}
    assert pairs == {(case, name) for case in ("grid", "points") for name in names} | {("grid bf16", "fredholm grid")}
    for row in timed:
        assert row["ratio"] == pytest.approx(row["peer_s"] / row["ours_s"])
    for row in rows:
        assert row["ours_s"] > 0
        assert row["max_rel_error"] <= TOLERANCE[row["case"]]
        assert row["peak_mb"] is not None
    alone = [row for row in rows if row["n"] == 64]
    assert {row["case"] for row in alone} == set(TOLERANCE)
    assert all(row["peer"] is row["peer_s"] is row["ratio"] is None for row in alone)
