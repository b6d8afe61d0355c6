"""Signals from which points are drawn."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from fredholm.domains import Domain, Points
from fredholm.operators.integral import IntegralOperator

Sample = Tensor | tuple[Tensor, Domain]
"""A signal `(B, N, C)` on `Sequence(N)`, or one and its domain."""


class Signal(NamedTuple):
    """One signal `(1, N, C)`, where it lives, and the places of the points that may be drawn."""

    u: Tensor
    domain: Points
    drawn: Tensor


class Split(NamedTuple):
    """Signals to learn from, and signals, or at least points, kept apart."""

    train: list[Signal]
    test: list[Signal]


def signals_of(name: str, operator: IntegralOperator, data: Iterable[Sample]) -> list[Signal]:
    """Every signal in the data that has a point, one by one.

    Raises:
        ValueError, TypeError: in the name of a function, on no data, or samples that the operator refuses.
    """
    found = []
    for item in data:
        u, domain = item if isinstance(item, tuple) else (item, None)
        # the operator checks shapes as in a call; queries it has none, so that their signal is not asked for
        integral = operator.prepare(u, domain)
        u, domain = integral.u, integral.domain
        for b in range(len(u)):
            pos, weights = (t[b] if t.ndim > n else t for t, n in ((domain.pos, 2), (domain.weights, 1)))
            exists = torch.ones(len(pos)) if domain.mask is None else domain.mask.expand(len(u), -1)[b]
            if bool(exists.any()):
                own = Points.derived(domain, pos[None], weights[None])
                found.append(Signal(u[b : b + 1].detach(), own, exists.nonzero()[:, 0]))
    if not found:
        raise ValueError(f"{name}: data holds no signal with a point; give at least one")
    if len({signal.domain.is_periodic for signal in found}) > 1:
        raise ValueError(f"{name}: some domains are periodic and some are not; use one kind")
    return found


def split(signals: list[Signal], generator: torch.Generator | None) -> Split:
    """A fifth of the signals is kept apart; of a single signal a quarter of its points, if it has two."""
    if len(signals) > 1:
        order = torch.randperm(len(signals), generator=generator).tolist()
        count = max(1, len(signals) // 5)
        return Split([signals[i] for i in order[count:]], [signals[i] for i in order[:count]])
    (one,) = signals
    if len(one.drawn) == 1:
        return Split([one], [one])
    order = torch.randperm(len(one.drawn), generator=generator)
    shuffled, count = one.drawn[order.to(one.drawn.device)], max(1, len(order) // 4)
    return Split([one._replace(drawn=shuffled[count:])], [one._replace(drawn=shuffled[:count])])


def draw(signals: list[Signal], count: int, points: int, generator: torch.Generator | None) -> tuple[Tensor, Points]:
    """Some points of some signals, `(count, m, C)`, and where they are; as many of each, at most `points`."""
    picked = torch.randint(len(signals), (count,), generator=generator).tolist()
    chosen = [signals[i] for i in picked]
    m = min(points, *(len(signal.drawn) for signal in chosen))
    u, pos, weights = [], [], []
    for signal in chosen:
        order = torch.randperm(len(signal.drawn), generator=generator)[:m]
        index = signal.drawn[order.to(signal.drawn.device)]
        u.append(signal.u[:, index])
        pos.append(signal.domain.pos[:, index])
        weights.append(signal.domain.weights[:, index])
    return torch.cat(u), Points.derived(chosen[0].domain, torch.cat(pos), torch.cat(weights))
