"""The exact-MLP benchmark at tiny sizes: its gate, its rows and its command."""

import pytest
from torch import Tensor

pytest.importorskip("torch_geometric", reason="the benchmark's peers need torch-geometric")

from benchmarks import exact_mlp
from benchmarks.exact_mlp import BENCHMARK, Config, against_peers, compare
from benchmarks.harness import DIRECTIONS, Alone, Direction, GateError, Options
from benchmarks.peers import Algorithm1, DenseEinsum, EdgeConditionedConvolution, KernelWeights, Peer
from benchmarks.problem import TOLERANCE, Problem, ProblemConfig

SHORT = Options(rounds=1, budget_s=0.001)
TINY = ProblemConfig(embed_dim=12, num_heads=3, width=6, num_frequencies=4, batch=2)
PEERS = [Algorithm1((4, 8), by_line=True), Algorithm1((4, 8)), DenseEinsum(), EdgeConditionedConvolution()]


class Wrong(Peer):
    """A peer whose result is off by one part in ten thousand."""

    name = "wrong"

    def integrate(self, weights: KernelWeights, u: Tensor, pos: Tensor, measure: Tensor) -> Tensor:
        return 1.0001 * DenseEinsum().integrate(weights, u, pos, measure)

    def kernel_bytes(self, weights: KernelWeights, batch: int, num_points: int) -> int:
        return 0


def test_all_peers_pass_the_gate_at_sizes_that_are_no_multiple_of_their_tiles():
    compare(Config(problem=TINY, peer_sizes=(25,)), PEERS)


def test_gate_stops_a_peer_that_disagrees():
    with pytest.raises(GateError, match="grid against wrong, n=9"):
        compare(Config(problem=TINY, peer_sizes=(9,)), [Wrong()])


def test_the_kernel_varies_between_pairs_enough_for_the_gate_to_notice():
    problem = Problem(TINY, SHORT, 9)
    matrices = problem.kernel.head_matrices(problem.u, problem.domains["points"])
    across_pairs = matrices.std(dim=(2, 3)).mean()
    assert across_pairs > 0.1 * matrices.abs().mean()


def test_the_oracle_on_some_rows_has_the_gradient_of_all():
    problem = Problem(TINY, SHORT, 16, rows=3)
    for case, tolerance in TOLERANCE.items():
        ours = problem.at_rows(problem.step(case, "forward+backward")())
        for actual, expected in zip(ours, problem.oracle("forward+backward"), strict=True):
            assert (actual - expected).abs().max() <= tolerance * expected.abs().max()


def test_number_of_points_must_be_a_square():
    with pytest.raises(ValueError, match="must be a square number, got 10"):
        Problem(TINY, SHORT, 10)


def test_grids_and_points_use_different_routes():
    problem = Problem(TINY, SHORT, 16)
    routes = {
        case: problem.operator.explain(problem.u, domain).split(":")[0] for case, domain in problem.domains.items()
    }
    assert routes == {"grid": "Toeplitz", "points": "Tiled", "grid bf16": "Toeplitz"}


@pytest.mark.usefixtures("timing_forbidden")
def test_nothing_is_timed_after_the_gate_has_failed(monkeypatch):
    monkeypatch.setattr(exact_mlp, "DenseEinsum", Wrong)
    monkeypatch.setattr(exact_mlp, "measure_alone", lambda *_, **__: pytest.fail("measured in spite of the gate"))
    with pytest.raises(GateError, match="grid against wrong"):
        BENCHMARK.run(Config(problem=TINY, peer_sizes=(9,), own_sizes=()))


@pytest.mark.parametrize(("limit", "running"), [(60.0, {"slow", "free"}), (0.5, {"free"})])
def test_peers_too_slow_or_too_large_are_left_out(monkeypatch, limit, running):
    alone = dict.fromkeys(TOLERANCE, dict.fromkeys(DIRECTIONS, Alone(1.0, 1.0, None)))
    monkeypatch.setattr(exact_mlp, "measure_alone", lambda *_, **__: alone)
    slow, free, large = DenseEinsum(), DenseEinsum(), DenseEinsum()
    slow.name, free.name, large.name = "slow", "free", "large"
    monkeypatch.setattr(large, "kernel_bytes", lambda *_: 7_000_000_000)
    expected: dict[tuple[str, Direction], float] = {("slow", direction): 1.0 / 81 for direction in DIRECTIONS}
    config = Config(options=SHORT, problem=TINY, peer_limit_s=limit)
    rows = list(against_peers(config, 9, [slow, free, large], expected))
    assert {row.peer for row in rows if row.case == "grid"} == running


@pytest.mark.slow
@pytest.mark.usefixtures("in_one_process")
def test_every_case_has_a_row_per_size_direction_and_peer():
    report = BENCHMARK.run(Config(options=SHORT, problem=TINY, peer_sizes=(9, 16), own_sizes=(25,)))
    names = [peer.name for peer in PEERS]
    versus = [(case, name) for case in ("grid", "points") for name in names] + [("grid bf16", "grid")]
    expected = {(case, n, direction, name) for case, name in versus for n in (9, 16) for direction in DIRECTIONS}
    expected |= {(case, 25, direction, None) for case in TOLERANCE for direction in DIRECTIONS}
    rows = [(row.case, row.n, row.direction, row.peer) for row in report.rows]
    assert len(rows) == len(expected)
    assert set(rows) == expected
    for row in report.rows:
        assert row.ours_s > 0
        assert row.max_rel_error is not None
        assert row.max_rel_error <= (2e-2 if row.case == "grid bf16" else 1e-5)
        assert row.peak_mb is not None
        if row.peer_s is None:
            assert row.ratio is None
        else:
            assert row.ratio == row.peer_s / row.ours_s


def test_low_precision_needs_the_full_precision_case():
    with pytest.raises(ValueError, match="measured against 'grid'"):
        BENCHMARK.run(Config(problem=TINY, cases=("grid bf16",)))
