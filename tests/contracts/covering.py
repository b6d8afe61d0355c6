"""A few rows that hold all pairs of levels of a table of factors, chosen the same way every time."""

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence

Levels = Mapping[str, Sequence[str]]
Chosen = dict[str, str]
Pair = tuple[tuple[str, str], tuple[str, str]]


def all_pairs(
    factors: Levels, allowed: Callable[[Chosen], bool], *, seed: int = 0, candidates: int = 12
) -> list[Chosen]:
    """Rows, one level a factor, in which every pair of levels occurs that an allowed row can have.

    Greedy: of some random rows that hold a pair not yet seen, the one with most such pairs.

    Args:
        factors: name of a factor to its levels.
        allowed: whether levels may stand beside each other, all factors given.
        seed: of the choice.
        candidates: random rows tried for each row.
    """
    rng = random.Random(seed)
    factors = _possible(factors, allowed, rng)
    missing = dict.fromkeys(_pairs_of(factors))
    rows: list[Chosen] = []
    while missing:
        wanted = next(iter(missing))
        first = _completed(dict(wanted), factors, allowed, rng)
        if first is None:
            del missing[wanted]  # no allowed row has it
            continue
        others = (_completed(dict(wanted), factors, allowed, rng) for _ in range(candidates - 1))
        tried = [first, *(row for row in others if row is not None)]
        best = max(tried, key=lambda row: sum(pair in missing for pair in _pairs_in(row)))
        for pair in _pairs_in(best):
            missing.pop(pair, None)
        rows.append(best)
    return rows


def random_rows(factors: Levels, allowed: Callable[[Chosen], bool], count: int, *, seed: int = 0) -> Iterator[Chosen]:
    """At most `count` allowed rows, drawn evenly and independently."""
    rng = random.Random(seed)
    factors = _possible(factors, allowed, rng)
    for _ in range(count):
        row = _completed({}, factors, allowed, rng)
        if row is not None:
            yield row


def _possible(factors: Levels, allowed: Callable[[Chosen], bool], rng: random.Random) -> Levels:
    """The factors without levels that no allowed row was found for: others would be drawn beside them in vain."""
    return {
        name: [level for level in levels if _completed({name: level}, factors, allowed, rng, tries=2000) is not None]
        for name, levels in factors.items()
    }


def _pairs_of(factors: Levels) -> Iterator[Pair]:
    for (one, some), (other, more) in itertools.combinations(factors.items(), 2):
        for a, b in itertools.product(some, more):
            yield (one, a), (other, b)


def _pairs_in(row: Chosen) -> Iterator[Pair]:
    return itertools.combinations(row.items(), 2)


def _completed(
    fixed: Chosen, factors: Levels, allowed: Callable[[Chosen], bool], rng: random.Random, tries: int = 200
) -> Chosen | None:
    """An allowed row with the levels of `fixed`, the others at random; None where none was found."""
    for _ in range(tries):
        row = {name: fixed.get(name) or rng.choice(levels) for name, levels in factors.items()}
        if allowed(row):
            return row
    return None
