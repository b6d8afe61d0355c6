"""The benchmark of whole models at tiny sizes: its gate, its variants, its rows and its notes."""

import contextlib
import dataclasses
import functools

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from benchmarks.captured import captured
from benchmarks.harness import DIRECTIONS, GateError, Options, Row
from benchmarks.itnet import BENCHMARK, INTEGRAL, MATRIX_PRODUCT, Config, IntegralProblem, notes
from benchmarks.itnet_problem import PEER, ModelConfig, ModelProblem, blocks, compare, variants
from fredholm import IntegralOperator, kernels, quadrature
from fredholm.evaluation import AUTO
from tests.refusals import refused

QUICK = Config(options=Options(quick=True)).sized()
SHORT = dataclasses.replace(QUICK, options=Options(rounds=1, budget_s=0.001))
NAMES = ["exact", "low rank 2", "Monte Carlo 5", "anchors 5"]


def test_the_defaults_equal_the_papers_model_and_its_ranks():
    names = [variant.name for variant in variants(ModelConfig())]
    low_rank = [f"low rank {rank}" for rank in (2, 4, 8, 16, 32)]
    assert names == ["exact", *low_rank, "Monte Carlo 128", "anchors 128"]
    assert ModelConfig().num_points == 197
    assert (ModelConfig().images_on(torch.device("cpu")), ModelConfig().images_on(torch.device("cuda"))) == (1, 32)


def test_every_variant_has_its_operator_and_shared_weights():
    problem = ModelProblem(QUICK.model, QUICK.options, 1)
    exact, low_rank, drawn, anchors = ([b.operator for b in blocks(problem.model(name))] for name in NAMES)
    assert all(isinstance(operator.kernel, kernels.LowRankMLP) for operator in low_rank)
    for operators in (drawn, anchors):
        for ours, theirs in zip(operators, exact, strict=True):
            assert all(map(torch.equal, ours.kernel.parameters(), theirs.kernel.parameters()))
    drawing, meaning = drawn[0].quadrature, anchors[0].quadrature
    assert isinstance(drawing, quadrature.MonteCarlo)
    assert drawing.at_evaluation == "draws"
    assert isinstance(meaning, quadrature.MonteCarlo)
    assert isinstance(meaning.at_evaluation, quadrature.Anchors)


@pytest.mark.parametrize("index", range(4))
def test_every_variant_passes_its_gate(index):
    assert compare(QUICK.model, QUICK.options, index) <= 1e-4


@pytest.mark.usefixtures("nothing_is_timed")
def test_gate_stops_a_route_with_a_small_error_before_anything_is_timed(monkeypatch):
    right = IntegralOperator.around
    monkeypatch.setattr(IntegralOperator, "around", lambda self, v, u: right(self, v * _off(self), u))
    with pytest.raises(GateError, match="exact against every κ in full"):
        BENCHMARK.run(SHORT)


def _off(operator: IntegralOperator) -> float:
    return 1.05 if operator.evaluation == AUTO else 1.0


def test_a_training_step_changes_every_parameter_including_proposals():
    problem = ModelProblem(QUICK.model, QUICK.options, 2)
    for name in (*NAMES, PEER):
        loss, *gradients = problem.step(name, "forward+backward")()
        assert loss.shape == ()
        assert len(gradients) == sum(parameter.numel() > 0 for parameter in problem.model(name).parameters())


@pytest.mark.slow
@pytest.mark.usefixtures("in_one_process")
def test_every_case_and_the_peer_have_a_row_for_every_direction():
    report = BENCHMARK.run(SHORT)
    expected = {(name, 17, direction, PEER) for name in NAMES for direction in DIRECTIONS}
    expected |= {(PEER, 17, direction, None) for direction in DIRECTIONS}
    expected |= {(INTEGRAL, 16, "forward", MATRIX_PRODUCT), (INTEGRAL, 16, "forward+backward", None)}
    rows = [(row.case, row.n, row.direction, row.peer) for row in report.rows]
    assert len(rows) == len(expected)
    assert set(rows) == expected
    for row in report.rows:
        if row.case in (*NAMES, PEER):
            assert row.per_second == 1 / row.ours_s
        if row.case in ("Monte Carlo 5", "anchors 5"):
            assert row.max_rel_error is not None
            assert 1e-4 < row.max_rel_error < 10


def test_flops_count_both_products_of_a_pair_and_the_last_layer():
    config = dataclasses.replace(QUICK, matrix_size=10)
    c, n = config.model, 9
    w, d = c.kernel_width, c.embed_dim // c.num_heads
    per_head = n * n * (2 * d * w + 2 * w * d) + n * 2 * w * d * d
    assert IntegralProblem(config, 3).flops_of_matrix_products == c.num_heads * per_head / 2000


def test_notes_report_backward_over_forward_and_the_fraction_of_the_matrix_rate():
    def row(case: str, direction, ours_s: float, **peer) -> Row:
        return Row(case=case, n=4, direction=direction, ours_s=ours_s, **peer)

    integral = row(INTEGRAL, "forward", 2.0, peer=MATRIX_PRODUCT, peer_s=1.0, ratio=0.5)
    rows = [row("exact", "forward", 1.0), row("exact", "forward+backward", 3.5), integral]
    assert list(notes(rows)) == [
        "exact, n = 4: backward/forward 2.50",
        "exact integral, n = 4, forward: 50 % of the rate of torch.mm",
    ]


def test_a_cuda_graph_requires_a_gpu():
    with refused(ValueError, "CUDA graphs need a GPU", "--device cuda"):
        Config(ways=("as it is", "graph")).sized()
    assert Config().sized().ways == ("as it is",)


def recording_compile(model: torch.nn.Module, *, fullgraph: bool, calls: list[torch.nn.Module]) -> None:
    """Replaces `Module.compile` by a compiler that changes nothing and records modules when first called."""
    assert fullgraph

    def first_call(*args, **kwargs):
        calls.append(model)
        model._compiled_call_impl = model._call_impl
        return model._call_impl(*args, **kwargs)

    model._compiled_call_impl = first_call


@pytest.mark.parametrize("traced", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.usefixtures("in_one_process")
def test_both_sides_can_be_compiled(monkeypatch, traced):
    """With one layer; traced in the long tests only, as `tests/models/test_itnet.py` also traces it."""
    graphs, calls = CompileCounter(), []
    compile_with = functools.partialmethod(torch.nn.Module.compile, backend=graphs)
    if not traced:
        compile_with = functools.partialmethod(recording_compile, calls=calls)
    monkeypatch.setattr(torch.nn.Module, "compile", compile_with)
    config = dataclasses.replace(SHORT, cases=("exact", "low rank 2"), ways=("compiled",), integral_sizes=())
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, depth=1))
    rows = BENCHMARK.run(config).rows
    assert (graphs.frame_count if traced else len(calls)) == 2 * len(config.cases) * len(DIRECTIONS)
    peer = f"{PEER}, compiled"
    expected = {(f"{name}, compiled", direction, peer) for name in config.cases for direction in DIRECTIONS}
    assert {(row.case, row.direction, row.peer) for row in rows} == expected | {(peer, d, None) for d in DIRECTIONS}
    for row in rows:
        assert row.per_second == 1 / row.ours_s
        if row.peer is not None:
            assert row.max_rel_error is not None
            assert row.max_rel_error < 1e-4


def test_a_captured_step_is_replayed(monkeypatch):
    """The order in which `captured` calls CUDA, with fakes in place of a GPU."""
    found = []

    class Graph:
        def replay(self):
            found.append("replay")

    class Stream:
        def wait_stream(self, other):
            found.append("wait")

    @contextlib.contextmanager
    def entered(name):
        found.append(name)
        yield
        found.append(f"end of {name}")

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: entered("beside"))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", lambda _: entered("capture"))
    results = (torch.ones(1),)
    step = captured(lambda: found.append("step") or results)
    assert found == ["wait", "beside", *["step"] * 3, "end of beside", "wait", "capture", "step", "end of capture"]
    assert step() is results
    assert found[-1] == "replay"


def test_an_unknown_case_is_refused():
    with refused(ValueError, "no case 'low rank 3'", "low rank 32, Monte Carlo 128"):
        Config(cases=("low rank 3",)).sized()
