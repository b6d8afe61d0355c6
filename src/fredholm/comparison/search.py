"""Learning-rate search by synchronous successive halving.

All rates are tried for some epochs, and the better half of them for twice as many (Jamieson and Talwalkar, 2016). A
rung begins when the one before it has ended. Asynchronous searches, such as Optuna's pruning, compare a run with those
that happen to be done, so with several processes the result depends on their speed; here it depends only on settings,
data and seed. Every run of a rung is complete, with the full decay of its learning rate.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

from fredholm.tasks.objective import Objective

from .budget import num_kept
from .comparison import Budget, Row
from .job import Outcome


class Rung(NamedTuple):
    """Runs of equal length."""

    epochs: int
    rates: tuple[float, ...]


def next_rung(row: Row, budget: Budget) -> Rung | None:
    """Returns the next rung of a row; None where the search has ended, or no rate is left."""
    rates = budget.rates
    for epochs in budget.rungs:
        found = [(rate, value) for rate, length, value in row.tried if length == epochs]
        if not found:
            return Rung(epochs, rates) if rates else None
        rates = tuple(rate for rate, value in found if value is not None)[: num_kept(len(found))]
    return None


def best_rate(row: Row, budget: Budget) -> float | None:
    """Returns the best rate of the last rung; None where none had a result."""
    last = [(rate, value) for rate, length, value in row.tried if length == budget.rungs[-1]]
    return last[0][0] if last and last[0][1] is not None else None


def ranked(outcomes: Mapping[float, Outcome], objective: Objective, usual: float) -> list[float]:
    """Ranks rates from best to worst by the objective, then by the loss, then by closeness to the usual rate.

    Args:
        outcomes: outcomes by rate.
        objective: objective on the validation split.
        usual: rate that suits the task.
    """

    def key(rate: float) -> tuple[float, ...]:
        outcome = outcomes[rate]
        if outcome.valid is None:
            return (1.0, 0.0, 0.0, abs(math.log(rate / usual)), rate)
        value = -outcome.valid if objective.maximise else outcome.valid
        return (0.0, value, math.inf if outcome.loss is None else outcome.loss, abs(math.log(rate / usual)), rate)

    return sorted(outcomes, key=key)
