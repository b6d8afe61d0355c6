"""Attributes and labels as columns of features."""

import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from fredholm.tasks.files.limits import check_expansion
from fredholm.tasks.files.terminal_text import first_few

MOST_RARE = 20
"""Most words of a column that may differ in more than half of its rows; more look like names, not kinds."""
EXACT_INTEGERS = 2.0**53
"""float64 holds all whole numbers up to this one."""


@final
@dataclass(frozen=True)
class Columns:
    """Values `(rows, columns)` and the name of each column."""

    values: np.ndarray
    names: tuple[str, ...]


def words_as_columns(
    column: str, words: Sequence[str], *, known: Collection[str] | None, place: Callable[[int], str]
) -> dict[str, np.ndarray]:
    """One-hot columns of a column of words, called `column=word`, in alphabetical order; an empty word is in none.

    Args:
        column: its name.
        words: one per row.
        known: names of the columns to return; None: one for each word.
        place: maps a row to its place in the data, for messages.

    Raises:
        ValueError: a word is not among the known ones, or nearly every row has a word of its own.
    """
    kinds = sorted({*words} - {""})
    rows = len(words)
    if known is None and len(kinds) > max(MOST_RARE, rows / 2):
        raise ValueError(
            f"{place(0)}: column {column!r} has {len(kinds):,} different words in {rows:,} rows, such as {kinds[0]!r}; "
            "leave it out if they are names, or give kinds that recur"
        )
    values = np.array(words, np.str_)
    found = {f"{column}={kind}": (values == kind).astype(np.float64) for kind in kinds}
    if known is None:
        return found
    own = {name for name in known if name.startswith(f"{column}=")}
    for i, word in enumerate(words):
        if word and f"{column}={word}" not in own:
            names = sorted(name.removeprefix(f"{column}=") for name in own)
            raise ValueError(
                f"{place(i)}: column {column!r}: {word!r} is none that the model knows; expected "
                f"{first_few([*map(repr, names)])}, or an empty cell"
            )
    return {name: found.get(name, np.zeros(rows)) for name in sorted(own)}


def refuse_like_names(column: str, names: Iterable[str], place: str) -> None:
    """Raises a ValueError where another column is called like a one-hot feature of a column of words."""
    if like := [name for name in names if name.startswith(f"{column}=")]:
        raise ValueError(
            f"{place}: column {like[0]!r} is called like a feature of the column of words {column!r}; rename one"
        )


def columns_of(
    what: str,
    attributes: np.ndarray | None,
    labels: np.ndarray | None,
    *,
    known: tuple[str, ...] | None,
    place: Callable[[str, int], str],
    rows: int,
) -> Columns:
    """Attributes as they are, then a one-hot column for each label.

    The columns are called `node_attribute_0` and `node_label=3`, with several labels `node_label_0=3`, by `what`.

    Args:
        what: node or edge.
        attributes: numbers, `(rows, c)`; None: there are none.
        labels: numbers, `(rows, k)`; None: there are none.
        known: the columns to return, in this order; None: those of the values.
        place: maps the name of a table and a row to its place in the data, for messages.
        rows: the number of rows.

    Raises:
        ValueError: a label is unknown or too large, or the number of attributes is not the known one.
    """
    found: dict[str, np.ndarray] = {}
    if attributes is not None:
        found |= {f"{what}_attribute_{c}": attributes[:, c] for c in range(attributes.shape[1])}
    given = tuple(found)
    if labels is not None:
        check_labels(labels, functools.partial(place, f"{what}_labels"))
    for c in range(0 if labels is None else labels.shape[1]):
        assert labels is not None
        stem = f"{what}_label" if labels.shape[1] == 1 else f"{what}_label_{c}"
        column = labels[:, c]
        values = np.unique(column)
        check_expansion(
            f"{rows:,} rows with {len(values):,} labels", 8 * rows * len(values), 8 * rows, "give numbers as attributes"
        )
        for value in values.tolist():
            name = f"{stem}={label_text(value)}"
            if known is not None and name not in known:
                i = int(np.flatnonzero(column == value)[0])
                raise ValueError(f"{place(f'{what}_labels', i)}: label {value:g} is none that the model knows")
            found[name] = column == value
    if known is None:
        known = tuple(found)
    wanted = tuple(name for name in known if name.startswith(f"{what}_attribute_"))
    if wanted != given:
        where = place(f"{what}_attributes", 0)
        raise ValueError(f"{where}: there are {len(given)} attributes of a {what}; the model knows {len(wanted)}")
    absent = np.zeros(rows)
    columns = [np.asarray(found.get(name, absent), np.float64) for name in known]
    return Columns(np.stack(columns, axis=1) if columns else np.zeros((rows, 0)), known)


def check_labels(labels: np.ndarray, place: Callable[[int], str]) -> None:
    """Raises ValueError on a label that float64 does not hold exactly; `place` maps a row to its place in the data."""
    for i, c in np.argwhere(np.abs(labels) >= EXACT_INTEGERS)[:1].tolist():
        raise ValueError(f"{place(i)}: label {labels[i, c]:.0f} is too large; expected numbers below 2^53 in size")


def label_text(label: float) -> str:
    """A label as it is written in names: whole numbers without a decimal point."""
    return repr(label).removesuffix(".0")
