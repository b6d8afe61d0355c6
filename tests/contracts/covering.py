"""A few rows that hold all pairs of levels of a table of factors, chosen the same way every time."""

import itertools
import random
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

Levels = Mapping[str, Sequence[str]]
Chosen = dict[str, str]
Classes = Callable[[str, str], str]
Met = tuple[tuple[str, ...], ...]
"""Levels, each with its factor, or classes of levels, that stand in one row."""


def all_pairs(
    factors: Levels,
    allowed: Callable[[Chosen], bool],
    *,
    alike: Classes | None = None,
    given: Sequence[Chosen] = (),
    seed: int = 0,
    candidates: int = 12,
) -> list[Chosen]:
    """Rows, one level a factor, in which every pair of levels occurs that an allowed row can have.

    Greedy: of some random rows that hold a pair not yet seen, the one with most such pairs.

    Args:
        factors: name of a factor to its levels.
        allowed: whether levels may stand beside each other, all factors given.
        alike: the class of a factor's level. With it a pair of classes is seen where any of their levels meet, and
            every level by itself has a row.
        given: rows to start with; only what they lack is added.
        seed: of the choice.
        candidates: random rows tried for each row.
    """
    rng = random.Random(seed)
    factors = possible(factors, allowed, rng)
    classes: dict[str, dict[str, list[str]]] = {name: {} for name in factors}
    for name, levels in factors.items():
        for level in levels:
            classes[name].setdefault(alike(name, level) if alike else level, []).append(level)

    def met(row: Chosen) -> Iterator[Met]:
        of_row = {name: alike(name, level) for name, level in row.items()} if alike else row
        yield from itertools.combinations(of_row.items(), 2)
        yield from ((("level", *one),) for one in row.items()) if alike else ()

    missing: dict[Met, Levels] = {}
    for one, other in itertools.combinations(classes, 2):
        for a, b in itertools.product(classes[one], classes[other]):
            missing[(one, a), (other, b)] = {one: classes[one][a], other: classes[other][b]}
    if alike:
        for name, levels in factors.items():
            missing |= {(("level", name, level),): {name: [level]} for level in levels}
    rows = list(given)
    for pair in itertools.chain.from_iterable(map(met, rows)):
        missing.pop(pair, None)
    while missing:
        wanted, among = next(iter(missing.items()))
        first = _completed(among, factors, allowed, rng)
        if first is None:
            del missing[wanted]  # no allowed row has it
            continue
        others = (_completed(among, factors, allowed, rng) for _ in range(candidates - 1))
        tried = [first, *(row for row in others if row is not None)]
        best = max(tried, key=lambda row: sum(pair in missing for pair in met(row)))
        for pair in met(best):
            missing.pop(pair, None)
        rows.append(best)
    return rows


def covering_subset(rows: Sequence[Mapping[str, Hashable]]) -> list[int]:
    """Numbers of rows, in order, that hold together every pair of levels of two factors that any of the rows holds.

    Greedy: always the first of the rows with most pairs that are still missing.
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
    """The factors without levels that no allowed row was found for: others would be drawn beside them in vain.

    To find none takes hundreds of draws: who wants several tables of the same factors leaves these levels out first.
    """
    rng = rng or random.Random(0)
    pairs = [(name, level) for name, levels in factors.items() for level in levels]
    rows = [_completed({name: [level]}, factors, allowed, rng) for name, level in pairs]
    found = {pair for row in rows if row is not None for pair in row.items()}

    def kept() -> dict[str, list[str]]:
        return {name: [level for level in levels if (name, level) in found] for name, levels in factors.items()}

    rare = [pair for pair in pairs if pair not in found]  # found, if at all, beside levels that are possible
    for name, level in rare:
        row = _completed({name: [level]}, kept() | {name: [level]}, allowed, rng)
        found |= set() if row is None else set(row.items())
    return kept()


def _completed(
    among: Levels, factors: Levels, allowed: Callable[[Chosen], bool], rng: random.Random, tries: int = 200
) -> Chosen | None:
    """An allowed row, with levels of some factors from fewer than all; None where none was found."""
    tables = [(name, among.get(name, levels)) for name, levels in factors.items()]
    if not all(levels for _, levels in tables):
        return None
    for _ in range(tries):
        row = {name: rng.choice(levels) for name, levels in tables}
        if allowed(row):
            return row
    return None
