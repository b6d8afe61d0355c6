"""Pairwise testing: a deterministic choice of few rows that hold all pairs of levels of a table of factors."""

import itertools
import random
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

Levels = Mapping[str, Sequence[str]]
Chosen = dict[str, str]
Classes = Callable[[str, str], str]
Met = tuple[tuple[str, ...], ...]
"""A combination in one row: levels or classes of levels, each with its factor."""


def all_pairs(
    factors: Levels,
    allowed: Callable[[Chosen], bool],
    *,
    alike: Classes | None = None,
    given: Sequence[Chosen] = (),
    seed: int = 0,
    candidates: int = 12,
) -> list[Chosen]:
    """Rows with one level per factor that hold every pair of levels which an allowed row can have.

    Greedy: draws random rows that hold a missing pair, and keeps the one with the most missing pairs.

    Args:
        factors: levels by factor.
        allowed: whether a full row is valid.
        alike: the class of a factor's level. With it, a pair of classes is covered where any of their levels meet, and
            every single level has a row.
        given: rows to start with; only the pairs that they lack are added.
        seed: seed of the random rows.
        candidates: random rows tried for each chosen row.
    """
    rng = random.Random(seed)
    factors = possible(factors, allowed, rng)
    classes: dict[str, dict[str, list[str]]] = {name: {} for name in factors}
    for name, levels in factors.items():
        for level in levels:
            classes[name].setdefault(alike(name, level) if alike else level, []).append(level)

    def met(row: Chosen) -> Iterator[Met]:
        classes_of_row = {name: alike(name, level) for name, level in row.items()} if alike else row
        yield from itertools.combinations(classes_of_row.items(), 2)
        yield from ((("level", *item),) for item in row.items()) if alike else ()

    missing: dict[Met, Levels] = {}
    for first, second in itertools.combinations(classes, 2):
        for a, b in itertools.product(classes[first], classes[second]):
            missing[(first, a), (second, b)] = {first: classes[first][a], second: classes[second][b]}
    if alike:
        for name, levels in factors.items():
            missing |= {(("level", name, level),): {name: [level]} for level in levels}
    rows = list(given)
    for pair in itertools.chain.from_iterable(map(met, rows)):
        missing.pop(pair, None)
    while missing:
        combination, among = next(iter(missing.items()))
        drawn = _completed(among, factors, allowed, rng)
        if drawn is None:
            del missing[combination]  # no allowed row has it
            continue
        more = (_completed(among, factors, allowed, rng) for _ in range(candidates - 1))
        tried = [drawn, *(row for row in more if row is not None)]
        best = max(tried, key=lambda row: sum(pair in missing for pair in met(row)))
        for pair in met(best):
            missing.pop(pair, None)
        rows.append(best)
    return rows


def covering_subset(rows: Sequence[Mapping[str, Hashable]]) -> list[int]:
    """Indices of a subset of rows that covers every pair of levels in the rows, in ascending order.

    Greedy: repeatedly takes the row with the most pairs that are still missing, the first one on ties.
    """
    pairs = [set(itertools.combinations(sorted(row.items()), 2)) or {tuple(row.items())} for row in rows]
    missing = set[object]().union(*pairs)
    chosen: list[int] = []
    while missing:
        best = max(range(len(rows)), key=lambda number: len(pairs[number] & missing))
        missing -= pairs[best]
        chosen.append(best)
    return sorted(chosen)


def random_rows(factors: Levels, allowed: Callable[[Chosen], bool], count: int, *, seed: int = 0) -> Iterator[Chosen]:
    """At most `count` allowed rows, drawn evenly and independently."""
    rng = random.Random(seed)
    factors = possible(factors, allowed, rng)
    for _ in range(count):
        row = _completed({}, factors, allowed, rng)
        if row is not None:
            yield row


def possible(
    factors: Levels, allowed: Callable[[Chosen], bool], rng: random.Random | None = None
) -> dict[str, list[str]]:
    """The factors without the levels for which no allowed row was found, so that no draw is spent on them.

    The search takes hundreds of draws for each such level: call this once before building several tables of the same
    factors.
    """
    rng = rng or random.Random(0)
    pairs = [(name, level) for name, levels in factors.items() for level in levels]
    rows = [_completed({name: [level]}, factors, allowed, rng) for name, level in pairs]
    found = {pair for row in rows if row is not None for pair in row.items()}

    def kept() -> dict[str, list[str]]:
        return {name: [level for level in levels if (name, level) in found] for name, levels in factors.items()}

    rare = [pair for pair in pairs if pair not in found]  # tried again beside levels that are possible
    for name, level in rare:
        row = _completed({name: [level]}, kept() | {name: [level]}, allowed, rng)
        found |= set() if row is None else set(row.items())
    return kept()


def _completed(
    among: Levels, factors: Levels, allowed: Callable[[Chosen], bool], rng: random.Random, tries: int = 200
) -> Chosen | None:
    """A random allowed row whose levels come from `among` where it lists the factor; None if no row was found."""
    tables = [(name, among.get(name, levels)) for name, levels in factors.items()]
    if not all(levels for _, levels in tables):
        return None
    for _ in range(tries):
        row = {name: rng.choice(levels) for name, levels in tables}
        if allowed(row):
            return row
    return None
