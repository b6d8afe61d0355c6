"""The chosen rows cover all pairs of levels of the whole table."""

import itertools

from tests.contracts.covering import Chosen, all_pairs, covering_subset, possible

FACTORS = {"size": list("abcdef"), "colour": ["red", "green", "blue", "grey"], "form": ["round", "square", "long"]}
CLASS = {"a": "small", "b": "small", "c": "small", "d": "large", "e": "large", "f": "large"}


def no_grey_square(row: Chosen) -> bool:
    return not (row["colour"] == "grey" and row["form"] == "square") and row["size"] != "f"


def pairs(rows: list[Chosen]) -> set[tuple[tuple[str, str], ...]]:
    return {pair for row in rows for pair in itertools.combinations(row.items(), 2)}


def test_few_rows_hold_every_allowed_pair_of_levels() -> None:
    every = [dict(zip(FACTORS, levels, strict=True)) for levels in itertools.product(*FACTORS.values())]
    rows = all_pairs(FACTORS, no_grey_square)
    assert all(map(no_grey_square, rows))
    assert pairs(rows) == pairs([row for row in every if no_grey_square(row)])
    assert len(rows) < len(every) / 2
    assert rows == all_pairs(FACTORS, no_grey_square) != all_pairs(FACTORS, no_grey_square, seed=1)


def test_rows_hold_every_pair_of_classes_and_every_level() -> None:
    def alike(name: str, level: str) -> str:
        return CLASS.get(level, level)

    rows = all_pairs(FACTORS, no_grey_square, alike=alike)
    of_classes = [{name: alike(name, level) for name, level in row.items()} for row in rows]
    assert {pair for pair in pairs(of_classes) if pair[0][0] == "size"} == {
        (("size", size), (name, level))
        for size in ("small", "large")
        for name in ("colour", "form")
        for level in FACTORS[name]
    }
    assert {row["size"] for row in rows} == set("abcde")
    assert len(rows) < len(all_pairs(FACTORS, no_grey_square))


def test_levels_in_rare_rows_are_found() -> None:
    """One row in half a million has the level "odd": the search finds it beside levels known to be possible."""
    wide = {name: [*map(str, range(130))] for name in "xyz"} | {"way": ["plain", "odd"]}

    def allowed(row: Chosen) -> bool:
        low = all(int(row[name]) < 9 for name in "xyz")
        return low if row["way"] == "plain" else low and row["x"] == row["y"] == "8"

    assert possible(wide, allowed) == {name: [*map(str, range(9))] for name in "xyz"} | {"way": ["plain", "odd"]}


def test_given_rows_are_kept_and_completed() -> None:
    half = all_pairs(FACTORS | {"form": ["round"]}, no_grey_square)
    rows = all_pairs(FACTORS, no_grey_square, given=half)
    assert rows[: len(half)] == half
    assert pairs(rows) == pairs(all_pairs(FACTORS, no_grey_square))
    assert all_pairs(FACTORS, no_grey_square, given=rows) == rows


def test_a_covering_subset_holds_every_pair_of_all_rows() -> None:
    every = [dict(zip(FACTORS, levels, strict=True)) for levels in itertools.product(*FACTORS.values())]
    every = list(filter(no_grey_square, every))
    rows = [every[number] for number in covering_subset(every)]
    assert pairs(rows) == pairs(every)
    assert len(rows) < len(every) / 2
    assert covering_subset([{"a": 1}, {"a": 2}, {"a": 1}]) == [0, 1]
    assert covering_subset([{"a": a, "b": b} for a in range(3) for b in range(2)]) == list(range(6))
