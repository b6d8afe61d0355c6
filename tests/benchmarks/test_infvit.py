"""The benchmark of InfViT at growing resolution, at tiny sizes: its gate, its limits, its rows and its notes."""

import dataclasses

import pytest
import torch

from benchmarks import infvit
from benchmarks.harness import Alone, GateError, Options, Row
from benchmarks.infvit import BENCHMARK, Config, notes
from benchmarks.infvit_problem import LINEAR, PLAIN, SDPA, SIDES, ModelConfig, ModelProblem, compare
from benchmarks.written_out import WrittenSoftmax
from fredholm import IntegralOperator, evaluation
from fredholm.evaluation import AUTO
from fredholm.models.images.infvit import InfViT
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("poisoned_memory")
QUICK = Config(options=Options(quick=True)).sized()
SHORT = dataclasses.replace(QUICK, options=Options(rounds=1, budget_s=0.001))


@pytest.mark.parametrize("embed_dim", [768, 1024])
def test_the_defaults_are_the_model_of_the_paper(embed_dim):
    for side in SIDES.values():
        expected = InfViT.Config.four_layers_64_heads(side.attention, embed_dim)
        assert ModelConfig(embed_dim=embed_dim).model(side.attention) == expected
    assert {side.attention for side in SIDES.values()} == {"softmax", "pure", "resolvent", "factorised", "linear"}


@pytest.mark.parametrize("name", SIDES)
def test_every_model_passes_its_gate(name):
    assert compare(QUICK.model, QUICK.options, name) <= 1e-5


ROUTES = {
    "linear": evaluation.CentralPooling,
    "factorised": evaluation.Woodbury,
    "pure": evaluation.HopTiled,
    "resolvent": evaluation.HopSeries,
    SDPA: evaluation.FusedAttention,
    PLAIN: WrittenSoftmax,
}


@pytest.mark.parametrize("name", SIDES)
@pytest.mark.usefixtures("timing_forbidden")
def test_a_slightly_wrong_route_is_not_timed(monkeypatch, name):
    right = ROUTES[name].compute
    monkeypatch.setattr(ROUTES[name], "compute", lambda *given: 1.05 * right(*given))
    with pytest.raises(GateError, match=f"{name} against Written"):
        BENCHMARK.run(dataclasses.replace(SHORT, cases=(name,)))


def test_attention_written_out_follows_the_formula_for_any_number_of_heads_at_a_time(monkeypatch):
    problem = ModelProblem(QUICK.model, QUICK.options, 9)
    expected = problem.step(SDPA, "forward")()[0]
    for max_bytes in (1, 4 * 10 * 10, 1 << 20):
        monkeypatch.setitem(SIDES, PLAIN, dataclasses.replace(SIDES[PLAIN], route=WrittenSoftmax(max_bytes)))
        other = ModelProblem(QUICK.model, QUICK.options, 9)
        torch.testing.assert_close(other.step(PLAIN, "forward")()[0], expected)


def test_both_softmax_models_have_equal_weights_and_all_operators_use_the_route():
    problem = ModelProblem(QUICK.model, QUICK.options, 4)
    fused, plain = problem.model(SDPA), problem.model(PLAIN)
    assert all(map(torch.equal, fused.parameters(), plain.parameters()))
    routes = [
        [part.evaluation for part in model.modules() if isinstance(part, IntegralOperator)] for model in (fused, plain)
    ]
    assert routes == [[AUTO] * 2, [WrittenSoftmax()] * 2]


@pytest.mark.usefixtures("in_one_process")
def test_every_model_has_its_rows():
    report = BENCHMARK.run(dataclasses.replace(SHORT, sides=(32,), linear_sides=(48,)))
    expected = {(name, 16, peer) for name in list(SIDES)[:4] for peer in (SDPA, PLAIN)}
    expected |= {(name, 16, None) for name in (SDPA, PLAIN)}
    expected |= {(name, 36, None) for name in ("linear", "factorised")}
    rows = [(row.case, row.n, row.peer) for row in report.rows]
    assert len(rows) == len(expected)
    assert set(rows) == expected
    for row in report.rows:
        assert row.per_second == 1 / row.ours_s
        assert row.max_rel_error is not None
        assert row.max_rel_error < 1e-4
    assert any(line.startswith("pure: left out from n = 36 on") for line in report.notes)
    assert any(line.startswith("linear, forward: time ~ n^") for line in report.notes)


@pytest.mark.usefixtures("in_one_process")
def test_a_softmax_that_differs_at_a_later_size_is_not_reported(monkeypatch):
    right = WrittenSoftmax.compute
    monkeypatch.setattr(
        WrittenSoftmax,
        "compute",
        lambda self, integral: (1.05 if integral.domain.num_points == 37 else 1) * right(self, integral),
    )
    with pytest.raises(GateError, match="softmax, SDPA against softmax, written out, n=36"):
        BENCHMARK.run(dataclasses.replace(SHORT, cases=(SDPA, PLAIN)))


@pytest.mark.parametrize(("limits", "left"), [({"limit_s": 0.0}, {16}), ({"limit_gb": 0.0}, {16}), ({}, {16, 36, 64})])
def test_sizes_expected_to_exceed_a_limit_are_left_out(monkeypatch, limits, left):
    monkeypatch.setattr(
        infvit, "measure_alone", lambda build, n, names, *_, **__: {LINEAR: {"forward": Alone(1, 2, None)}}
    )
    rows = infvit.measure(dataclasses.replace(SHORT, cases=(LINEAR,), **limits))
    assert {row.n for row in rows} == left


def test_expectations_grow_linearly_or_quadratically_with_the_patches():
    rows = [
        Row(case=name, n=n, direction="forward", ours_s=2.0, peak_mb=500.0)
        for name, n in ((LINEAR, 10), (LINEAR, 20), (LINEAR, 40), (PLAIN, 10), ("factorised", 20))
    ]
    advice = list(notes(rows))
    assert advice[0] == f"{PLAIN}: left out from n = 20 on, where at most 8 s and 2 GB were to be expected by n = 10"
    assert advice[1].startswith("factorised: left out from n = 40 on, where at most 4 s and 1 GB")


def test_bad_settings_are_refused():
    with refused(ValueError, "no case 'quadratic'", "linear, factorised"):
        Config(cases=("quadratic",)).sized()
    for sides in ((224, 100), (512, 224), (224, 230), (8,)):
        with refused(ValueError, "images must grow and be multiples of the patches' 16 pixels"):
            Config(sides=sides).sized()
