"""The benchmark of generation at tiny sizes: its gate and its rows."""

import dataclasses

import pytest
import torch

from benchmarks import generation
from benchmarks.generation import BENCHMARK, ONE_MORE, PEER, SAMPLINGS, Config
from benchmarks.harness import GateError, Options
from tests.refusals import refused

TINY = Config(options=Options(quick=True)).sized()
SHORT = dataclasses.replace(TINY, options=Options(rounds=1, budget_s=0.001))


def test_every_model_length_and_sampling_has_a_row():
    report = BENCHMARK.run(SHORT)
    rows = [(row.case, row.n, row.direction, row.peer, row.max_rel_error) for row in report.rows]
    expected = [(f"{name}, {kind}", 9, "forward", PEER, 0.0) for name in TINY.models for kind in SAMPLINGS]
    single = [(f"{name}, {ONE_MORE}", n, "forward", None, None) for name in TINY.models for n in TINY.places]
    assert rows == expected + single
    assert [note.partition(":")[0] for note in report.notes] == [f"{name}, {ONE_MORE}" for name in TINY.models]
    for row in report.rows[: len(expected)]:
        assert row.per_second == 8 / row.ours_s
        assert row.peer_s is not None
        assert row.ratio == row.peer_s / row.ours_s


@pytest.mark.parametrize("name", Config().models)
def test_the_gate_stops_a_single_differing_token(name, monkeypatch):
    right = generation.generate

    def off(model, *given, cache, **settings):
        for place, token in enumerate(right(model, *given, cache=cache, **settings)):
            yield (token + 1) % model.vocab_size if cache and place == 7 else token

    monkeypatch.setattr(generation, "generate", off)
    with pytest.raises(GateError, match=f"{name}, greedy, n=9: token 8 differs"):
        BENCHMARK.run(dataclasses.replace(SHORT, models=(name,)))


@pytest.mark.parametrize("name", Config().models)
def test_both_sides_have_the_same_model(name):
    one, other = (TINY.model(name, 9) for _ in range(2))
    assert (one.context, one.vocab_size) == (9, 20)
    assert all(map(torch.equal, one.parameters(), other.parameters()))


def test_an_unknown_model_is_refused():
    with refused(ValueError, "no language model 'GPT5'", "GPT2"):
        Config(models=("GPT5",)).sized()
