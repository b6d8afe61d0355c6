"""Reading targets from the cells of a table and from arrays."""

import math
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from fredholm.tasks.files.cells import (
    MISSING,
    about_commas,
    has_commas,
    is_number,
    parse_number,
    parse_value,
    without_signs,
)
from fredholm.tasks.files.limits import check_counted, check_expansion

from .class_names import ClassNames
from .classes import ClassAnswers
from .labels import LabelAnswers
from .numbers import NumberAnswers
from .target import Answers, Kind

MOST_CLASSES = 20
"""Largest number of different integers that may be classes; above it the user must set the kind."""
BAR = "|"
"""Separator of the labels in a cell."""
_FEWER = "leave out labels that are rare"
_WHOLE = re.compile(r"[-+]?\d+")
Place = Callable[[int, str], str]
"""Returns the location of row i of a column, for messages."""


def answers_of_cells(
    columns: Mapping[str, Sequence[str]], kind: Kind | None, place: Place, known: tuple[str, ...] | None = None
) -> Answers:
    """Reads the targets in one or several columns.

    One column holds classes, numbers, or labels separated by `|`, none in an empty cell. Several columns hold a number
    each or, where all cells are 0 and 1, mark whether a row has the label that the column is named after.

    Args:
        columns: cells of each column, n of them.
        kind: kind of the target; None: one column has numbers, where all cells are numbers and one is not an integer,
            else classes; several columns have labels, where all cells are 0 or 1, else numbers.
        place: location of a cell, for messages.
        known: names of the classes or labels in order, or of the columns; None: the names that occur, sorted.

    Raises:
        ValueError: a cell is empty or of another kind, a name is unknown, or the kind is ambiguous.
    """
    cells = {name: [cell.strip() for cell in column] for name, column in columns.items()}
    if len(cells) > 1:
        return _of_several(cells, kind, place, known)
    [(name, words)] = cells.items()
    if kind == "labels":
        return _labels(name, words, place, known)
    if kind == "number" or (kind is None and _has_fractions(words)):
        return _numbers(cells, place)
    if kind is None and known is None:
        _refuse_commas(name, words, place)
        _refuse_counts(name, words, place)
    for i, word in enumerate(words):
        if not word:
            raise ValueError(f"{place(i, name)}: is empty; expected a class")
        if kind is None and BAR in word:
            raise ValueError(
                f"{place(i, name)}: {word!r} may be one class or several labels; set target to 'labels', or to 'class'"
            )
        try:
            ClassNames(known).check(word)
        except ValueError as error:
            raise ValueError(f"{place(i, name)}: {error}, those of the training data") from error
    numbers, classes = ClassNames(known).number(words)
    return ClassAnswers(names=classes, values=torch.tensor(numbers, dtype=torch.int64))


def _refuse_commas(name: str, words: list[str], place: Place) -> None:
    """Raises a ValueError where all cells are numbers with commas, or with signs and too many to be classes."""
    comma = next((i for i, word in enumerate(words) if has_commas(word)), None)
    if comma is not None and all(has_commas(word) or is_number(word) for word in words):
        raise ValueError(
            f"{place(comma, name)}: {words[comma]!r} looks like a number with {about_commas(words)}, or set target to "
            "'class' where it is the name of one"
        )
    if len(set(words)) > MOST_CLASSES and all(is_number(without_signs(word)) for word in words):
        signed = next((i for i, word in enumerate(words) if not is_number(word)), None)
        if signed is not None:
            raise ValueError(
                f"{place(signed, name)}: {words[signed]!r} looks like a number with a sign; write "
                f"{without_signs(words[signed])}, or set target to 'class' where it is the name of one"
            )


def _refuse_counts(name: str, words: list[str], place: Place) -> None:
    """Raises a ValueError where integers hardly repeat, since each would become a class."""
    if not words or len(set(words)) <= max(MOST_CLASSES, len(words) / 2):
        return
    whole = [word for word in words if word.lower() not in MISSING]
    if all(_WHOLE.fullmatch(word) for word in whole):
        raise ValueError(
            f"{place(0, name)}: {len(set(whole)):,} different whole numbers in {len(words):,} rows; set target to "
            "'number' to predict numbers, or to 'class' where they are names of classes"
        )


def _of_several(cells: dict[str, list[str]], kind: Kind | None, place: Place, known: tuple[str, ...] | None) -> Answers:
    names = tuple(cells)
    if kind == "class":
        raise ValueError(f"classes are of one column; there are {len(names)}: {', '.join(names)}")
    if known is not None and names != known:
        raise ValueError(f"the columns are {', '.join(names)}; the training data have {', '.join(known)}")
    other = next(
        ((i, name) for name, column in cells.items() for i, cell in enumerate(column) if cell not in ("0", "1")), None
    )
    if kind == "labels" and other is not None:
        i, name = other
        raise ValueError(f"{place(i, name)}: is {cells[name][i]!r}; expected 1 where the row has this label, else 0")
    if kind == "number" or other is not None:
        return _numbers(cells, place)
    return LabelAnswers(
        names=names, values=torch.tensor([[cell == "1" for cell in row] for row in zip(*cells.values(), strict=True)])
    )


def _labels(name: str, words: list[str], place: Place, known: tuple[str, ...] | None) -> LabelAnswers:
    rows = [[label.strip() for label in word.split(BAR)] if word else [] for word in words]
    names = ClassNames(known).number([label for row in rows for label in row])[1] if known is None else known
    number = {label: i for i, label in enumerate(names)}
    check_expansion(
        f"{len(rows):,} rows with {len(names):,} labels", len(rows) * len(names), sum(map(len, words)), _FEWER
    )
    values = torch.zeros(len(rows), len(names), dtype=torch.bool)
    for i, row in enumerate(rows):
        for label in row:
            if not label:
                raise ValueError(f"{place(i, name)}: {words[i]!r} has an empty label; write names with one | between")
            if label not in number:
                raise ValueError(
                    f"{place(i, name)}: label {label!r} is none of {', '.join(names)}, those of the training data"
                )
            if values[i, number[label]]:
                raise ValueError(f"{place(i, name)}: has the label {label!r} twice")
            values[i, number[label]] = True
    return LabelAnswers(names=names, values=values)


def _numbers(cells: dict[str, list[str]], place: Place) -> NumberAnswers:
    found = torch.empty(len(next(iter(cells.values()))), len(cells), dtype=torch.float64)
    for c, (name, column) in enumerate(cells.items()):
        for i, word in enumerate(column):
            try:
                value = parse_value(word)
            except ValueError as error:
                raise ValueError(f"{place(i, name)}: {error}") from error
            if math.isnan(value):
                raise ValueError(f"{place(i, name)}: {word!r} is no finite number; write one, or leave the row out")
            found[i, c] = value
    return NumberAnswers(names=tuple(cells), values=found)


def _has_fractions(words: list[str]) -> bool:
    """Whether all cells are numbers, one of them no integer; missing or too large ones are refused later as numbers."""
    try:
        numbers = [parse_number(word) for word in words if word.lower() not in MISSING]
    except ValueError:
        return False
    return any(math.isfinite(number) and not number.is_integer() for number in numbers)


def answers_of_array(
    array: np.ndarray,
    what: str,
    kind: Kind | None,
    *,
    classes: np.ndarray | None = None,
    labels: np.ndarray | None = None,
    numbers: np.ndarray | None = None,
    known: tuple[str, ...] | None = None,
) -> Answers:
    """Reads the targets in an array, one row per example.

    Args:
        array: integers or texts `(n,)` or `(n, 1)` are classes; booleans, or integers that are all 0 or 1, `(n, L)`
            with L above 1 are labels; floats `(n,)` or `(n, T)` are numbers.
        what: name of the array, for messages.
        kind: kind of the target, where it is another: integers may be numbers, floats of 0 and 1 labels, booleans
            `(n,)` classes; None: as above.
        classes, labels, numbers: names in the file of the classes from 0 on, of the L labels or of the T numbers; None:
            classes go up to the largest one, and labels and numbers are numbered.
        known: names of another part, in place of generated ones.

    Raises:
        ValueError: the type or shape is wrong, or values are out of range.
    """
    width = array.shape[1] if array.ndim == 2 else 1
    if array.ndim not in (1, 2) or array.dtype.kind not in "biufU":
        raise ValueError(f"{what} is {array.dtype} {array.shape}; expected integers (n,), labels (n, L) or numbers")
    is_binary = array.dtype.kind == "b" or (array.dtype.kind in "iuf" and bool(np.isin(array, (0, 1)).all()))
    if kind is None:
        is_labels = array.dtype.kind in "biu" and width > 1 and is_binary
        kind = "number" if array.dtype.kind == "f" else "labels" if is_labels else "class"
    rows = array.reshape(len(array), width)
    if kind == "labels":
        if not is_binary:
            raise ValueError(
                f"{what} is {array.dtype} {array.shape} with values beside 0 and 1; expected labels (n, L)"
            )
        names = _names("label", labels, width, known)
        return LabelAnswers(names=names, values=torch.from_numpy(rows.astype(bool)))
    if kind == "number":
        if array.dtype.kind not in "iuf":
            raise ValueError(f"{what} is {array.dtype} {array.shape}; expected numbers (n,) or (n, T)")
        names = _names("target", numbers, width, known)
        try:
            return NumberAnswers(names=names, values=torch.from_numpy(rows.astype(np.float64)))
        except ValueError as error:
            raise ValueError(f"{what}: {error}") from error
    if width != 1 or array.dtype.kind == "f":
        raise ValueError(
            f"{what} is {array.dtype} {array.shape}; expected integers ({len(array)},), one an example: floats are "
            "numbers, and several columns labels of 0 and 1"
        )
    return _classes(rows[:, 0], what, classes, known)


def _classes(codes: np.ndarray, what: str, classes: np.ndarray | None, known: tuple[str, ...] | None) -> ClassAnswers:
    names = known if classes is None else tuple(map(str, classes.ravel()))
    if codes.dtype.kind == "U":
        words = [str(code) for code in codes.tolist()]
        for i, word in enumerate(words):
            try:
                ClassNames(names).check(word)
            except ValueError as error:
                raise ValueError(f"{what}[{i}]: {error}") from error
        numbers, names = ClassNames(names).number(words)
        return ClassAnswers(names=names, values=torch.tensor(numbers, dtype=torch.int64))
    values = torch.from_numpy(codes.astype(np.int64))
    if len(values) and int(values.min()) < 0:
        raise ValueError(f"{what} has the label {int(values.min())}; expected 0 and above")
    largest = int(values.max()) if len(values) else -1
    if names is None:
        check_counted(f"classes up to the label {largest}", largest + 1, "name the classes, or number them from 0 on")
    names = tuple(map(str, range(largest + 1))) if names is None else names
    if largest >= len(names):
        raise ValueError(f"a label is {largest}, but there are {len(names)} classes")
    return ClassAnswers(names=names, values=values)


def _names(what: str, given: np.ndarray | None, count: int, known: tuple[str, ...] | None) -> tuple[str, ...]:
    if given is None:
        counted = (what,) if count == 1 else tuple(f"{what}_{i}" for i in range(count))
        given_names = known or counted
    else:
        given_names = tuple(map(str, given.ravel()))
    if len(given_names) != count:
        raise ValueError(f"there are {len(given_names)} names ({', '.join(given_names)}) of {count} {what}s")
    return given_names
