"""The benchmark of compiled models at tiny sizes: its gate and its rows."""

import dataclasses

import pytest
import torch

from benchmarks.compiled import BENCHMARK, CASES, EAGER, Config
from benchmarks.harness import DIRECTIONS, GateError, Options
from tests.refusals import refused

TINY = dataclasses.replace(Config(options=Options(quick=True)).sized(), options=Options(rounds=1, budget_s=0.001))


@pytest.mark.parametrize("case", CASES)
def test_the_gate_stops_different_outputs(case, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda model, **options: lambda given: 1.01 * model(given))
    with pytest.raises(GateError, match=case):
        BENCHMARK.run(dataclasses.replace(TINY, cases=(case,)))


@pytest.mark.parametrize("case", CASES)
def test_every_direction_has_a_row(case, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda model, **options: model)
    report = BENCHMARK.run(dataclasses.replace(TINY, cases=(case,)))
    assert [(row.case, row.direction, row.peer) for row in report.rows] == [(case, each, EAGER) for each in DIRECTIONS]
    assert all(row.max_rel_error == 0.0 for row in report.rows)


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_compiled_and_eager_models_agree(case):
    report = BENCHMARK.run(dataclasses.replace(TINY, cases=(case,)))
    errors = [row.max_rel_error for row in report.rows]
    assert len(errors) == len(DIRECTIONS)
    assert all(error is not None and error <= 1e-4 for error in errors)


def test_an_unknown_case_is_refused():
    with refused(ValueError, "ELIZA"):
        Config(cases=("ELIZA",)).sized()
