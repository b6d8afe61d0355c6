"""Kinds of table columns, inferred from their cells, and the numbers and categories that a model reads."""

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, final

import numpy as np

from fredholm.tasks.files.cells import (
    MISSING,
    about_commas,
    as_single,
    as_whole,
    has_commas,
    is_number,
    parse_number,
    parse_value,
    without_signs,
)
from fredholm.tasks.files.dates import (
    DateOrderError,
    is_date,
    learn_day_first,
    parse_date,
    seconds,
    shared_orders,
    two_dates,
)
from fredholm.tasks.images.read import IMAGE_SUFFIXES
from fredholm.tasks.series.open import ALONE

ColumnKind = Literal["number", "date", "category", "text", "image", "series"]
FILES: dict[ColumnKind, tuple[str, ...]] = {"image": IMAGE_SUFFIXES, "series": ALONE}
"""The kinds whose cells name files, with the suffixes of the files in lower case."""
Place = Callable[[int, str], str]
"""Returns the place of row i of a column, for messages."""
COUNTERS = ("", "id", "index", "unnamed: 0")
"""Names, in lower case, of a column that is a row counter if its whole numbers all differ."""
MOST_LEVELS = 256
"""Largest number of categories of a column; rarer ones count as missing."""
REPEATED = 2
"""Average number of rows per distinct cell from which a column of words is one of categories."""
PHRASES = 4
"""Average number of words from which cells are phrases, which are categories from `REPEATED_PHRASES` rows each."""
REPEATED_PHRASES = 5
MOSTLY = 0.2
"""Largest share of cells that are no numbers (or no dates) at which a note reports that all other cells are."""
DATE_PARTS = ("seconds since 1970", "month", "weekday", "hour")
_CLOCK = re.compile(r"\d{1,2}:\d\d(:\d\d)?( ?[AP]M)?", re.IGNORECASE)


@final
@dataclass(frozen=True, kw_only=True)
class Column:
    """A column that a model reads.

    Args:
        name: name of the column.
        kind: kind of its cells.
        levels: the distinguished categories of a column of categories.
        parts: the parts of a number or date that are read: "" for the number itself, or those of `DATE_PARTS` that
            vary. For series: names of the channels.
        mean, deviation: mean and standard deviation of each part of numbers and dates over the training rows that have
            one.
        may_miss: whether some training rows lack a number, date or file.
        day_first: whether dates with the year last are written 31/1/2026 (True) or 1/31/2026 (False); None: unknown,
            and ambiguous dates are refused.
        observed: indices of the channels of series with a further channel that marks their observed samples.
        spacing: average time between two samples of series, above 0.
        extent: longest time from the first to the last sample of a series, above 0.
        is_regular: whether all samples of series are one spacing apart.
    """

    name: str
    kind: ColumnKind
    levels: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()
    may_miss: bool = False
    day_first: bool | None = None
    observed: tuple[int, ...] = ()
    spacing: float = 1.0
    extent: float = 1.0
    is_regular: bool = True

    def numbers(self, cells: Sequence[str], place: Place) -> np.ndarray:
        """Returns the parts of numbers or dates, standardised, float32 `(n, parts)`; NaN where missing.

        Raises:
            ValueError: a cell is not a number or date.
        """
        values = _parts(self.name, self.kind, cells, place, self.day_first)
        if self.kind == "date":
            values = values[:, [DATE_PARTS.index(part) for part in self.parts]]
        found = as_single((values - np.array(self.mean)) / np.array(self.deviation))
        beyond = np.isinf(found).any(1)
        if beyond.any():
            i = int(beyond.argmax())
            raise ValueError(f"{place(i, self.name)}: {cells[i]!r} is too far from the training rows to compute with")
        return found

    def categories(self, cells: Sequence[str]) -> np.ndarray:
        """Returns the indices of levels, int64 `(n,)`; -1 for cells that are missing or not among the levels.

        4000.0 is the category 4000.
        """
        numbers = {level: i for i, level in enumerate(self.levels)}
        return np.array([numbers.get(as_whole(cell), -1) for cell in cells], dtype=np.int64)


@final
class LearntColumns(NamedTuple):
    """Columns that are read, and names of others with the reason.

    Args:
        columns: columns that are read.
        left_out: columns that are not read, with the reason.
        doubtful: columns of a kind that a person may not expect, with the reason.
    """

    columns: tuple[Column, ...]
    left_out: dict[str, str]
    doubtful: dict[str, str]


def learn_columns(
    cells: Mapping[str, Sequence[str]],
    place: Place,
    *,
    categories: Sequence[str] = (),
    texts: Sequence[str] = (),
) -> LearntColumns:
    """Infers the kinds of columns from their cells in the training rows.

    The kind is the first that fits all cells that are not missing: numbers; dates in ISO 8601, or as 2026/1/31,
    31.1.2026 or 31 Jan 2026, or as 31/1/2026 or 1/31/2026 if some date is unambiguous; names of image or series files
    (`FILES`). A column of words is one of categories if each word occurs in at least REPEATED rows on average, or in
    REPEATED_PHRASES if cells have at least PHRASES words on average. Otherwise it is one of texts.
    Columns that are empty, constant or row counters (`COUNTERS`) are left out.

    Args:
        cells: cells of each column, without surrounding blanks.
        place: place of a cell, for messages.
        categories, texts: names of columns that have this kind in any case.

    Raises:
        ValueError: no column is left, numbers have decimal commas, dates are ambiguous, or a number does not fit into
            float32.
    """
    found, left_out, doubtful = [], dict[str, str](), dict[str, str]()
    for name, column in cells.items():
        known = [cell for cell in column if cell.lower() not in MISSING]
        given: ColumnKind | None = "category" if name in categories else "text" if name in texts else None
        kind = given or _kind(name, column, known, place)
        if not known:
            left_out[name] = "has no texts or numbers in the training rows"
        elif len(set(known)) == 1 and len(known) == len(column):
            left_out[name] = "is the same in all training rows"
        elif kind == "number" and name.strip().lower() in COUNTERS and _counts(known):
            left_out[name] = "counts the rows"
        else:
            found.append(_learnt(name, kind, column, known, place))
            if given is None and (doubt := _doubt(name, kind, column, known, place)):
                doubtful[name] = doubt
    if not found:
        why = "; ".join(f"{name} {reason}" for name, reason in left_out.items())
        raise ValueError(f"no column is left to learn from: {why}")
    return LearntColumns(tuple(found), left_out, doubtful)


def _doubt(name: str, kind: ColumnKind, cells: Sequence[str], known: list[str], place: Place) -> str:
    """Returns why a person may expect another kind of a column; empty: there is no reason."""
    if kind == "category" and (count := len(set(known))) > MOST_LEVELS:
        return f"has {count:,} categories; the {MOST_LEVELS} most frequent are distinguished"
    if kind in ("number", "date", *FILES):
        return ""
    if all(is_number(without_signs(cell)) for cell in known):
        signed = next(cell for cell in known if not is_number(cell))
        return f"is no column of numbers, since cells have signs ({signed!r}); write {without_signs(signed)}"
    if all(_CLOCK.fullmatch(cell) for cell in known):
        return f"is no column of numbers, since cells are times ({known[0]!r}); write them in hours or minutes"
    if all(map(is_date, known)):
        return "is no column of dates, since days come first in some of its cells and months in others"
    for kinds, fits in (("numbers", is_number), ("dates", is_date)):
        odd = [cell for cell in known if not fits(cell)]
        if len(odd) <= MOSTLY * len(known):
            where = place(list(cells).index(odd[0]), name)
            return f"is no column of {kinds}, since {len(odd)} of {len(known):,} cells are none ({where}: {odd[0]!r})"
    return ""


def _learnt(name: str, kind: ColumnKind, cells: Sequence[str], known: list[str], place: Place) -> Column:
    if kind == "text":
        return Column(name=name, kind=kind)
    if kind in FILES:
        return Column(name=name, kind=kind, may_miss=len(known) < len(cells))
    if kind == "category":
        levels = [
            level for level, _ in sorted(Counter(map(as_whole, known)).items(), key=lambda each: (-each[1], each[0]))
        ]
        return Column(name=name, kind=kind, levels=tuple(sorted(levels[:MOST_LEVELS])))
    try:
        day_first = learn_day_first(known) if kind == "date" else None
    except DateOrderError as error:
        where = place(list(cells).index(known[error.index]), name)
        raise ValueError(f"{where}: {error}, or list the column under categories or texts") from None
    values = _parts(name, kind, cells, place, day_first)
    is_known = ~np.isnan(values[:, 0])
    # relative to the first value and the largest distance from it, so that neither huge nor tiny values lose digits
    first = values[is_known][0]
    apart = values[is_known] - first
    farthest = np.abs(apart).max(0)
    apart /= np.where(farthest > 0, farthest, 1.0)
    mean, deviation = first + farthest * apart.mean(0), farthest * apart.std(0)
    varies = deviation > 0
    varies[0] = True
    parts = ("",) if kind == "number" else DATE_PARTS
    return Column(
        name=name,
        kind=kind,
        parts=tuple(part for part, own in zip(parts, varies, strict=True) if own),
        mean=tuple(mean[varies].tolist()),
        deviation=tuple(np.where(deviation > 0, deviation, 1.0)[varies].tolist()),
        may_miss=not bool(is_known.all()),
        day_first=day_first,
    )


def _kind(name: str, cells: Sequence[str], known: list[str], place: Place) -> ColumnKind:
    if all(is_number(cell) for cell in known):
        return "number"
    decimal = [cell for cell in known if has_commas(cell)]
    if decimal and all(is_number(cell) or has_commas(cell) for cell in known):
        where = place(list(cells).index(decimal[0]), name)
        raise ValueError(
            f"{where}: {decimal[0]!r} looks like a number with {about_commas(known)}, or list the column under "
            "categories"
        )
    if all(map(is_date, known)) and shared_orders(known):
        return "date"
    if (named := kind_of_files(known)) is not None:
        return named
    repeats = len(known) / max(1, len(set(known)))
    words = sum(len(cell.split()) for cell in known) / max(1, len(known))
    return "category" if repeats >= (REPEATED_PHRASES if words >= PHRASES else REPEATED) else "text"


def kind_of_files(known: Sequence[str]) -> ColumnKind | None:
    """Returns the kind of files that all of these non-missing cells name; None: there is no such kind."""
    named: list[ColumnKind] = [
        kind for kind, suffixes in FILES.items() if all(cell.lower().endswith(suffixes) for cell in known)
    ]
    return named[0] if known and named else None


def _counts(known: list[str]) -> bool:
    """Whether all are different whole numbers."""
    numbers = [parse_number(cell) for cell in known]
    return len(set(numbers)) == len(numbers) and all(math.isfinite(n) and n.is_integer() for n in numbers)


def _parts(
    name: str, kind: ColumnKind, cells: Sequence[str], place: Place, day_first: bool | None = None
) -> np.ndarray:
    """Returns all parts of numbers or dates, float64 `(n, parts)`; NaN where missing."""
    found = np.full((len(cells), 1 if kind == "number" else len(DATE_PARTS)), np.nan)
    for i, cell in enumerate(cells):
        if cell.lower() in MISSING:
            continue
        if kind == "number":
            try:
                found[i] = parse_value(cell)
            except ValueError as error:
                raise ValueError(f"{place(i, name)}: {error}") from error
            continue
        moment = parse_date(cell, day_first)
        if moment is None and day_first is None and is_date(cell):
            raise ValueError(f"{place(i, name)}: {two_dates(cell)}")
        if moment is None:
            example = {None: "2026-01-31", True: "31/1/2026", False: "1/31/2026"}[day_first]
            raise ValueError(f"{place(i, name)}: {cell!r} is no date; write one such as {example} or leave it empty")
        found[i] = seconds(moment), moment.month, moment.weekday(), moment.hour
    return found
