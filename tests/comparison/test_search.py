"""Successive halving of learning rates."""

import dataclasses

from fredholm.comparison.comparison import Budget, Row
from fredholm.comparison.job import Outcome
from fredholm.comparison.search import Rung, best_rate, next_rung, ranked
from fredholm.tasks.objective import Objective

BUDGET = Budget(minutes=None, epochs=16, rungs=(4, 8), rates=(1.0, 2.0, 4.0, 8.0, 16.0))
ROW = Row(name="mlp", title="MLP", kernel=None, embed_dim=8, expansion=4.0, parameters=10)


def after(*tried: tuple[float, int, float | None]) -> Row:
    return dataclasses.replace(ROW, tried=tried)


def test_the_better_half_continues_and_the_best_of_the_last_rung_is_chosen() -> None:
    assert next_rung(ROW, BUDGET) == Rung(4, BUDGET.rates)
    first = tuple((rate, 4, value) for rate, value in ((4.0, 0.9), (2.0, 0.8), (1.0, 0.7), (8.0, 0.6), (16.0, None)))
    assert next_rung(after(*first), BUDGET) == Rung(8, (4.0, 2.0))
    done = after(*first, (2.0, 8, 0.95), (4.0, 8, 0.9))
    assert next_rung(done, BUDGET) is None
    assert best_rate(done, BUDGET) == 2.0


def test_rates_without_a_result_do_not_continue() -> None:
    one = after(*((rate, 4, 0.5 if rate == 1.0 else None) for rate in BUDGET.rates))
    assert next_rung(one, BUDGET) == Rung(8, (1.0,))
    none = after(*((rate, 4, None) for rate in BUDGET.rates))
    assert next_rung(none, BUDGET) is None
    assert best_rate(none, BUDGET) is None


def test_ties_are_broken_by_the_loss_and_then_by_nearness_to_the_default() -> None:
    found = {
        1.0: Outcome(valid=0.9, loss=0.3),
        2.0: Outcome(valid=0.9, loss=0.2),
        4.0: Outcome(reason="diverged"),
        8.0: Outcome(valid=0.9, loss=0.3),
        0.5: Outcome(valid=0.95, loss=9.0),
    }
    assert ranked(found, Objective("accuracy"), usual=2.0) == [0.5, 2.0, 1.0, 8.0, 4.0]
    assert ranked(found, Objective("error", maximise=False), usual=2.0) == [2.0, 1.0, 8.0, 0.5, 4.0]
