"""The benchmark of large domains at tiny sizes: its gates, its rows, and the sizes that it leaves out."""

import dataclasses

import pytest
import torch

from benchmarks import large_domains
from benchmarks.harness import DIRECTIONS, Direction, GateError, Options
from benchmarks.large_domains import BENCHMARK, Config, compare
from benchmarks.large_problem import (
    APPROXIMATE,
    ATTENTION,
    CASES,
    EXACT,
    GRID,
    LINEAR_TIME,
    LOW_RANK,
    SHARED,
    LargeConfig,
    LargeProblem,
)
from fredholm import IntegralOperator, kernels, quadrature
from fredholm.quadrature.nodes import SharedNodes
from tests.refusals import refused

QUICK = Config(options=Options(quick=True)).sized()
SHORT = dataclasses.replace(QUICK, options=Options(rounds=1, budget_s=0.001), sides=(5, 6))


@pytest.mark.slow
def test_all_cases_pass_the_gate():
    compare(QUICK)


def test_the_gate_stops_a_kernel_that_differs_from_its_factors(monkeypatch):
    right = kernels.LowRankMLP.mix
    monkeypatch.setattr(kernels.LowRankMLP, "mix", lambda self, sums: 1.001 * right(self, sums))
    with pytest.raises(GateError, match="low rank against its κ in full"):
        compare(dataclasses.replace(QUICK, cases=(LOW_RANK,)))


def test_the_gate_stops_nodes_with_wrong_weights(monkeypatch):
    def heavier(self, index, weights, *learning):
        right(self, index, 2 * weights, *learning)

    right = SharedNodes.__init__
    monkeypatch.setattr(SharedNodes, "__init__", heavier)
    with pytest.raises(GateError, match="shared samples: a mean of draws"):
        compare(dataclasses.replace(QUICK, cases=(SHARED,)))


def test_the_gate_stops_a_quadrature_that_is_not_exact_with_every_point(monkeypatch):
    monkeypatch.setattr(quadrature.Neighbourhood, "__init__", _too_few(quadrature.Neighbourhood.__init__))
    with pytest.raises(GateError, match="neighbourhood at every point"):
        compare(dataclasses.replace(QUICK, cases=("neighbourhood",)))


def _too_few(right):
    return lambda self, *, num_neighbours: right(self, num_neighbours=num_neighbours - 1)


def test_approximations_share_the_exact_weights_and_the_error_is_of_the_integral_alone():
    problem = LargeProblem(QUICK.problem, QUICK.options, 36)
    exact = problem.step(GRID, "forward")()
    assert problem.error("anchors", "forward", exact) == pytest.approx(0.0, abs=1e-6)
    operator, u = problem.exact.operator, problem.exact.u
    nothing = operator.around(torch.zeros_like(u), u).detach()
    assert problem.error("anchors", "forward", [nothing]) == pytest.approx(1.0)
    for name in APPROXIMATE:
        error = problem.error(name, "forward", problem.step(name, "forward")())
        assert error is not None
        assert 1e-3 < error < 10


@pytest.mark.slow
@pytest.mark.usefixtures("in_one_process")
def test_every_case_has_a_row_per_size_direction_and_reference():
    report = BENCHMARK.run(SHORT)
    against = [(case, peer) for case in CASES for peer in (GRID, ATTENTION) if case != peer]
    expected = {
        (case, n, d, peer) for case, peer in [*against, (ATTENTION, None)] for n in (25, 36) for d in DIRECTIONS
    }
    rows = [(row.case, row.n, row.direction, row.peer) for row in report.rows]
    assert len(rows) == len(expected)
    assert set(rows) == expected
    for row in report.rows:
        assert row.peak_mb is not None
        assert (row.max_rel_error is None) == (row.case in (*LINEAR_TIME, ATTENTION))
        if row.case in EXACT:
            assert row.max_rel_error == pytest.approx(0.0, abs=1e-5)


def test_sizes_expected_to_take_too_long_are_left_out(monkeypatch, in_one_process):
    monkeypatch.setattr(large_domains, "compare", lambda config: None)
    config = dataclasses.replace(SHORT, cases=(GRID, LOW_RANK), directions=("forward",), limit_s=1.0)
    before: dict[tuple[str, Direction], tuple[int, float]]
    before = {(GRID, "forward"): (9, 0.9 / (25 / 9)), (LOW_RANK, "forward"): (9, 0.9 / (25 / 9))}
    rows = list(large_domains.at_size(config, 25, before))
    assert {row.case for row in rows} == {LOW_RANK, ATTENTION}
    assert before[LOW_RANK, "forward"][0] == 25


def test_an_unknown_case_is_refused():
    with refused(ValueError, "no case 'nystrom'", "low rank"):
        Config(cases=("nystrom",)).sized()


def test_the_operators_are_those_of_the_defaults():
    with torch.device("meta"):
        kernel = kernels.LowRankMLP(384, 6, 2, rank=32)
    assert IntegralOperator(kernel).kernel.rank == LargeConfig().rank
    assert LargeConfig().nodes == 128
