"""The benchmark of weights of 8 bits at tiny sizes: its gate and its rows."""

import dataclasses

import pytest

from benchmarks import quantised
from benchmarks.harness import GateError, Options
from benchmarks.quantised import BENCHMARK, CASES, EXACT, KINDS, TOLERANCE, Config
from tests.refusals import refused

pytest.importorskip("transformers", reason="the models are those of transformers; pip install 'fredholm[peers]'")
TINY = Config(options=Options(quick=True)).sized()
SHORT = dataclasses.replace(TINY, options=Options(rounds=1, budget_s=0.001))


@pytest.mark.slow
def test_every_case_has_a_row_per_kind():
    report = BENCHMARK.run(SHORT)
    expected = [
        f"{case}: {kind}" for case in CASES for kind in KINDS if case.startswith("GPT-2") or "embeddings" not in kind
    ]
    assert [row.case for row in report.rows] == expected
    for row in report.rows:
        assert row.peer == EXACT
        assert row.peer_s is not None
        assert row.ratio == row.peer_s / row.ours_s
        assert row.max_rel_error is not None
        assert row.max_rel_error <= TOLERANCE[row.case.split(": ")[1]]
    mb = {row.case: row.weights_mb or 0.0 for row in report.rows}
    assert 0 < mb["GPT-2, a text read: weights and embeddings"] < mb["GPT-2, a text read: weights"]


def test_the_gate_stops_large_errors(monkeypatch):
    monkeypatch.setitem(quantised.TOLERANCE, "weights", 1e-4)
    with pytest.raises(GateError, match="weights: relative error"):
        BENCHMARK.run(dataclasses.replace(SHORT, cases=("ViT, an image",)))


def test_an_unknown_case_is_refused():
    with refused(ValueError, "ELIZA"):
        Config(cases=("ELIZA",)).sized()
