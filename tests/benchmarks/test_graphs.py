"""The benchmark of graphs at tiny sizes: its graphs, its gates, its rows and notes, and PyTorch Geometric's layers."""

import dataclasses
from typing import get_args

import pytest
import torch

pytest.importorskip("torch_geometric", reason="the benchmark's peers need torch-geometric")

from torch.func import functional_call
from torch_geometric.nn import GATConv, GCNConv

from benchmarks import graphs
from benchmarks.graphs import (
    ATTENTION,
    BENCHMARK,
    BUILDING,
    CHECKED_ROWS,
    CONVOLUTION,
    LOW_RANK,
    NETWORK,
    PEERS,
    PERCEPTRON,
    Case,
    Config,
    Problem,
    compare,
)
from benchmarks.harness import DIRECTIONS, GateError, Options, Row
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("poisoned_memory")
TINY = dataclasses.replace(Config().small(), options=Options(rounds=1, budget_s=0.001))
ALONE = dataclasses.replace(TINY, peer_bytes=0)
OPERATORS = [case for case in get_args(Case) if case != BUILDING]
GATES = [(case, peer) for case in OPERATORS for peer in PEERS.get(case, ("its definition",))]


@pytest.mark.parametrize("case", get_args(Case))
def test_every_case_passes_its_gate(case):
    compare(TINY, case, 25)
    compare(ALONE, case, 25)


@pytest.mark.parametrize(("case", "peer"), GATES)
@pytest.mark.parametrize("part", ["the output", "a gradient"])
@pytest.mark.usefixtures("timing_forbidden")
def test_nothing_is_timed_if_results_disagree(monkeypatch, case, peer, part):
    right = Problem._ours

    def wrong(problem):
        out = right(problem)
        return 1.001 * out if part == "the output" else out + 0.001 * (out - out.detach())

    monkeypatch.setattr(Problem, "_ours", wrong)
    monkeypatch.setitem(graphs.PEERS, case, tuple(name for name in (peer,) if name in PEERS.get(case, ())))
    with pytest.raises(GateError, match=f"{case} against {peer}"):
        BENCHMARK.run(dataclasses.replace(TINY, cases=(case,)))


@pytest.mark.parametrize(("case", "config"), [(PERCEPTRON, TINY), (NETWORK, ALONE), (LOW_RANK, TINY)])
@pytest.mark.usefixtures("in_one_process")
def test_results_timed_alone_are_checked_again(monkeypatch, case, config):
    monkeypatch.setattr(graphs, "compare", lambda *given: None)
    right = Problem._ours
    monkeypatch.setattr(Problem, "_ours", lambda problem: 1.001 * right(problem))
    with pytest.raises(GateError, match=f"{case} against its definition, n=30"):
        BENCHMARK.run(dataclasses.replace(config, cases=(case,)))


@pytest.mark.usefixtures("in_one_process")
def test_results_timed_beside_a_layer_are_checked_again(monkeypatch):
    monkeypatch.setattr(graphs, "compare", lambda *given: None)
    right = Problem._ours
    monkeypatch.setattr(Problem, "_ours", lambda problem: 1.001 * right(problem))
    with pytest.raises(GateError, match=f"{ATTENTION} against GATConv, n=30"):
        BENCHMARK.run(dataclasses.replace(TINY, cases=(ATTENTION,)))


def test_the_layers_add_self_loops_themselves():
    for case, native, parameters in (
        (CONVOLUTION, GCNConv(8, 8), lambda kernel: {"lin.weight": kernel.weight}),
        (
            ATTENTION,
            GATConv(8, 2, heads=4),
            lambda kernel: {
                "lin.weight": kernel.value_weight,
                "att_src": kernel.key_vector[None],
                "att_dst": kernel.query_vector[None],
            },
        ),
    ):
        problem = Problem(TINY, case, 12)
        without = problem.edges[:, : 12 * TINY.degree]
        weights = {**parameters(problem.operator.kernel.kernel), "bias": problem.operator.bias}
        expected = functional_call(native, weights, (problem.u[0], without))[None]
        for peer in PEERS[case]:
            torch.testing.assert_close(problem.step(peer, "forward")()[0], expected.detach())


def test_edges_go_both_ways_between_different_nodes():
    for case, loops in ((CONVOLUTION, 9), (NETWORK, 0)):
        source, target = Problem(TINY, case, 9).edges
        assert len(source) == 9 * TINY.degree + loops
        assert int((source == target).sum()) == loops
        there, back = (9 * source + target).sort().values, (9 * target + source).sort().values
        assert torch.equal(there, back)


def test_the_definition_has_the_whole_gradient_of_a_few_rows():
    problem = Problem(TINY, PERCEPTRON, 40)
    assert int(problem.cotangent.any(-1).sum()) == CHECKED_ROWS
    ours = problem.step(PERCEPTRON, "forward+backward")()
    assert len(ours) == 2 + sum(parameter.numel() > 0 for parameter in problem.operator.parameters())
    read = ours[1].any(-1).sum()
    assert CHECKED_ROWS < read < 40
    off = [*ours[:-1], 1.001 * ours[-1]]
    with pytest.raises(GateError, match="its definition"):
        problem.error(PERCEPTRON, "forward+backward", off)


def test_sums_of_many_terms_are_checked_against_float64_with_a_tolerance_that_grows_with_their_number():
    problem = Problem(TINY, LOW_RANK, 30)
    expected = problem._by_factors("forward+backward")
    assert {t.dtype for t in expected} == {torch.float64}
    assert len(expected) == len(problem.step(LOW_RANK, "forward+backward")())
    assert TINY.rounding(1000) == TINY.tolerance == 1e-5
    assert TINY.rounding(100_000) == pytest.approx(3.77e-5, rel=1e-3)


@pytest.mark.slow
@pytest.mark.usefixtures("in_one_process")
def test_every_case_has_its_rows():
    report = BENCHMARK.run(dataclasses.replace(TINY, sizes=(20,)))
    expected = [(BUILDING, "forward", None)]
    for case in OPERATORS:
        peers = PEERS.get(case, ())
        for direction in DIRECTIONS:
            expected += [(case, direction, peer) for peer in peers or (None,)]
            expected += [(peer, direction, None) for peer in peers]
    assert [(row.case, row.direction, row.peer) for row in report.rows] == expected
    for row in report.rows:
        assert row.n == 20
        assert row.peak_mb is not None
        assert (row.max_rel_error is not None) == (row.case in OPERATORS)
        assert (row.max_rel_error or 0) <= TINY.tolerance
    assert sum("beside" in note for note in report.notes) == 4


@pytest.mark.usefixtures("in_one_process")
def test_an_edge_network_has_no_peer_where_a_matrix_per_edge_does_not_fit():
    fits_40 = 4 * TINY.channels**2 * TINY.degree * 40
    report = BENCHMARK.run(dataclasses.replace(TINY, cases=(NETWORK,), peer_bytes=fits_40))
    assert [(row.case, row.n, row.peer) for row in report.rows if row.direction == "forward"] == [
        (NETWORK, 30, "NNConv"),
        ("NNConv", 30, None),
        (NETWORK, 50, None),
    ]
    assert any(note.startswith("edge network, forward+backward: time ~ n^") for note in report.notes)
    assert not any(note.startswith("NNConv") for note in report.notes)


def test_notes_report_ratios_of_time_and_memory():
    def row(case: str, seconds: float, megabytes: float, peer: str | None = None, peer_s: float | None = None) -> Row:
        return Row(case=case, n=7, direction=DIRECTIONS[1], ours_s=seconds, peer=peer, peer_s=peer_s, peak_mb=megabytes)

    advice = list(BENCHMARK.notes([row(ATTENTION, 3.0, 20, "GATConv", 4.0), row("GATConv", 4.0, 50)]))
    assert advice == [
        "graph attention beside GATConv, forward+backward, n=7: 0.75 of its time, 0.40 of its peak memory"
    ]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"sizes": ()}, "sizes must be one or more numbers of nodes, each at least 2; got ()"),
        ({"sizes": (10, 1)}, "sizes must be one or more numbers of nodes, each at least 2; got (10, 1)"),
        ({"degree": 5}, "degree must be even and at least 2, as edges are listed both ways; got 5"),
        ({"channels": 6}, "channels must be a multiple of the 4 heads; got 6"),
    ],
)
def test_bad_settings_are_refused(wrong, message):
    with refused(ValueError, message):
        dataclasses.replace(TINY, **wrong).checked()
