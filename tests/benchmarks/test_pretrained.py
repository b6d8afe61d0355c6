"""The benchmark of checkpoints at tiny sizes: its gates and its rows."""

import dataclasses

import pytest
import torch

from benchmarks import pretrained
from benchmarks.harness import GateError, Options
from benchmarks.pretrained import BENCHMARK, CASES, PEER, Config
from tests.refusals import refused

pytest.importorskip("transformers", reason="the peer is transformers; pip install 'fredholm[peers]'")
TINY = Config(options=Options(quick=True)).sized()
SHORT = dataclasses.replace(TINY, options=Options(rounds=1, budget_s=0.001))


@pytest.mark.slow
def test_every_case_has_a_row():
    report = BENCHMARK.run(SHORT)
    assert [(row.case, row.peer) for row in report.rows] == [(case, PEER) for case in CASES]
    for row in report.rows:
        assert row.peer_s is not None
        assert row.ratio == row.peer_s / row.ours_s
        assert row.per_second == row.n / row.ours_s
        assert row.max_rel_error is not None
        assert row.max_rel_error <= 1e-5


@pytest.mark.parametrize("case", ["GPT-2, a text drawn", "GPT-2, a text read"])
def test_gates_stop_different_outputs(case, monkeypatch):
    right = pretrained.read_back

    def off(model):
        ours = right(model)
        with torch.no_grad():
            bias = ours.get_parameter("norm.bias")
            bias.add_(30 * torch.randn_like(bias))
        return ours

    monkeypatch.setattr(pretrained, "read_back", off)
    with pytest.raises(GateError):
        BENCHMARK.run(dataclasses.replace(SHORT, cases=(case,)))


def test_an_unknown_case_is_refused():
    with refused(ValueError, "ELIZA"):
        Config(cases=("ELIZA",)).sized()
