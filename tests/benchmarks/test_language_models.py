"""The benchmark of language models at tiny sizes: its gate, its rows and its notes."""

import dataclasses

import pytest
import torch

from benchmarks.harness import DIRECTIONS, GateError, Options
from benchmarks.language_models import BENCHMARK, CASE, PEER, SIDES, Config, Problem
from fredholm.models.language.aether import Aether

SHORT = dataclasses.replace(Config(options=Options(quick=True)).sized(), options=Options(rounds=1, budget_s=0.001))


@pytest.mark.usefixtures("in_one_process")
def test_every_length_and_direction_has_a_row_per_side():
    report = BENCHMARK.run(SHORT)
    rows = [(row.case, row.n, row.direction, row.peer) for row in report.rows]
    assert rows == [(side, 9, d, PEER if side == CASE else None) for d in DIRECTIONS for side in SIDES]
    for row in report.rows:
        assert row.per_second == 18 / row.ours_s
        assert row.max_rel_error is not None
        assert row.max_rel_error <= SHORT.tolerance
    assert all(note.startswith("n = 9, forward") for note in report.notes)


@pytest.mark.usefixtures("timing_forbidden")
def test_the_gate_stops_a_wrong_state_before_timing(monkeypatch):
    right = Aether.read

    def off(self, tokens, state):
        signal, reached = right(self, tokens, state)
        return (1.001 * signal, reached) if int(state[0][0][0]) else (signal, reached)

    monkeypatch.setattr(Aether, "read", off)
    with pytest.raises(GateError, match="Aether in two pieces against the whole, n=9"):
        BENCHMARK.run(SHORT)


def test_a_training_step_gives_all_parameters_gradients():
    problem = Problem(SHORT, 9)
    for side in SIDES:
        loss, *gradients = problem.step(side, "forward+backward")()
        assert loss.shape == ()
        assert len(gradients) == len(list(problem.models[side].parameters()))
        assert all(torch.isfinite(gradient).all() for gradient in gradients)
