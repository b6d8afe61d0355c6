"""What the columns of a table hold, and the numbers that a model reads of them."""

import datetime
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
    has_commas,
    is_number,
    parse_date,
    parse_number,
    parse_value,
    without_signs,
    written_date,
)
from fredholm.tasks.images.read import IMAGE_SUFFIXES
from fredholm.tasks.series.open import ALONE

ColumnKind = Literal["number", "date", "category", "text", "image", "series"]
FILES: dict[ColumnKind, tuple[str, ...]] = {"image": IMAGE_SUFFIXES, "series": ALONE}
"""The kinds whose cells name files, and how these names end, in lower case."""
Place = Callable[[int, str], str]
"""Where row i of a column stands, for messages."""
COUNTERS = ("", "id", "index", "unnamed: 0")
"""Names, in lower case, of a column that only counts rows where its whole numbers all differ."""
MOST_LEVELS = 256
"""Categories of a column that are distinguished, the most frequent ones."""
REPEATED = 2
"""Rows a word, on average, from which a column of words is one of categories."""
PHRASES = 4
"""Words a cell, on average, from which it is a text unless it comes as often as `REPEATED_PHRASES` rows each."""
REPEATED_PHRASES = 5
MOSTLY = 0.2
"""Share of cells that are no numbers or dates, up to which a note says that the others are."""
DATE_PARTS = ("seconds since 1970", "month", "weekday", "hour")
_TIME = r"(?:,?[ T]+(\d{1,2}:.*))?"
_YEAR_LAST = re.compile(rf"(\d{{1,2}})([./-])(\d{{1,2}})\2(\d{{4}}){_TIME}")
_SHORT_YEAR_LAST = re.compile(rf"(\d{{1,2}}(?=/)|\d\d)([./-])(\d{{1,2}}(?=/)|\d\d)\2(\d\d){_TIME}")
"""With points and hyphens of two digits each: 1.2.10 may be a version."""
_NAMED_MONTH = re.compile(rf"(\d{{1,2}})(?:\. ?|[ -])([A-Z]+)\.?[ -](\d{{4}}|\d\d){_TIME}", re.IGNORECASE)
_NAMED_MONTH_FIRST = re.compile(rf"([A-Z]+)\.? (\d{{1,2}}),? (\d{{4}}){_TIME}", re.IGNORECASE)
_MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_FIRST_SHORT_YEAR = 69
"""Years of two digits are 1969 to 2068, as POSIX has them."""
_CLOCK = re.compile(r"\d{1,2}:\d\d(:\d\d)?( ?[AP]M)?", re.IGNORECASE)


@final
@dataclass(frozen=True, kw_only=True)
class Column:
    """A column that a model reads.

    Args:
        name: of the column.
        kind: what it holds.
        levels: of categories, those that are distinguished.
        parts: of numbers and dates, what is read: the number itself, "", or those of `DATE_PARTS` that vary; of series
            the channels.
        mean, deviation: of each part of numbers and dates over the training rows that have it.
        may_miss: whether some training rows lack it; of numbers, dates and files.
        day_first: of dates, whether they may be written 31/1/2026 (True) or 1/31/2026 (False); None: nothing says
            which, and dates that may be two are refused.
        observed: of series, the channels, from 0 on, of which a further one says where they are observed.
        spacing, extent: of series, the time between two samples, on the average where it changes, and that of the
            longest from its first to its last, both above 0.
        is_regular: of series, whether samples lie at the times of their numbers.
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
        """The parts of a number or date, standardised, float32 `(n, parts)`; NaN where it is missing.

        Raises:
            ValueError: a cell is none.
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
        """The numbers of the levels, int64 `(n,)`; -1 where it is missing, or none of them."""
        numbers = {level: i for i, level in enumerate(self.levels)}
        return np.array([numbers.get(cell, -1) for cell in cells], dtype=np.int64)


@final
class LearntColumns(NamedTuple):
    """The columns that are read, which are not, with the reason, and of which a person may think otherwise."""

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
    """What columns hold, by their cells in the training rows.

    A column is one of numbers or of dates if all cells that are not missing are; of dates in ISO 8601, or as 2026/1/31,
    31.1.2026, 31 Jan 2026, or 31/1/2026 or 1/31/2026 where some date tells what comes first; of images or series if all
    are names of such files (`FILES`). It is one of categories if words come back, in REPEATED rows each on average, or
    phrases, of PHRASES words on average, in REPEATED_PHRASES; else of texts.
    Columns that are empty, the same in all rows or count rows (`COUNTERS`) are left out.

    Args:
        cells: of each column, without blanks round them.
        place: where a cell stands.
        categories, texts: columns that are said to be such.

    Raises:
        ValueError: no column is left, numbers have decimal commas, dates may be read in two ways, or a number is one
            that float32 does not hold.
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
    """Why a person may think otherwise of what a column holds; empty: there is no reason."""
    if kind == "category" and (count := len(set(known))) > MOST_LEVELS:
        return f"has {count:,} categories; the {MOST_LEVELS} most frequent are distinguished"
    if kind in ("number", "date", *FILES):
        return ""
    if all(is_number(without_signs(cell)) for cell in known):
        signed = next(cell for cell in known if not is_number(cell))
        return f"is no column of numbers, since cells have signs ({signed!r}); write {without_signs(signed)}"
    if all(_CLOCK.fullmatch(cell) for cell in known):
        return f"is no column of numbers, since cells are times ({known[0]!r}); write them in hours or minutes"
    if all(_is_year_first(cell) or _orders(cell) for cell in known):
        return "is no column of dates, since days come first in some of its cells and months in others"
    for what, fits in (("numbers", is_number), ("dates", lambda cell: _is_year_first(cell) or bool(_orders(cell)))):
        odd = [cell for cell in known if not fits(cell)]
        if len(odd) <= MOSTLY * len(known):
            where = place(list(cells).index(odd[0]), name)
            return f"is no column of {what}, since {len(odd)} of {len(known):,} cells are none ({where}: {odd[0]!r})"
    return ""


def _learnt(name: str, kind: ColumnKind, cells: Sequence[str], known: list[str], place: Place) -> Column:
    if kind == "text":
        return Column(name=name, kind=kind)
    if kind in FILES:
        return Column(name=name, kind=kind, may_miss=len(known) < len(cells))
    if kind == "category":
        levels = [level for level, _ in sorted(Counter(known).items(), key=lambda each: (-each[1], each[0]))]
        return Column(name=name, kind=kind, levels=tuple(sorted(levels[:MOST_LEVELS])))
    day_first = _day_first(name, cells, known, place) if kind == "date" else None
    values = _parts(name, kind, cells, place, day_first)
    is_known = ~np.isnan(values[:, 0])
    # by how far they are from the first, in units of the farthest: numbers far from 0 are distinguished, and tiny ones
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
            f"{where}: {decimal[0]!r} looks like a number with {about_commas(known)}, or say that the column is one of "
            "categories"
        )
    if all(_is_year_first(cell) or _orders(cell) for cell in known) and _shared_orders(known):
        return "date"
    if (named := kind_of_files(known)) is not None:
        return named
    repeats = len(known) / max(1, len(set(known)))
    words = sum(len(cell.split()) for cell in known) / max(1, len(known))
    return "category" if repeats >= (REPEATED_PHRASES if words >= PHRASES else REPEATED) else "text"


def kind_of_files(known: Sequence[str]) -> ColumnKind | None:
    """The kind of files that all of these cells, none of which is missing, are names of; None: they are not."""
    named: list[ColumnKind] = [
        kind for kind, suffixes in FILES.items() if all(cell.lower().endswith(suffixes) for cell in known)
    ]
    return named[0] if known and named else None


def _counts(known: list[str]) -> bool:
    """Whether these are whole numbers that all differ."""
    numbers = [parse_number(cell) for cell in known]
    return len(set(numbers)) == len(numbers) and all(math.isfinite(n) and n.is_integer() for n in numbers)


def _is_year_first(cell: str) -> bool:
    """Whether this is a date that begins with its year (`parse_date`)."""
    try:
        parse_date(cell)
    except ValueError:
        return False
    return True


def _written(cell: str, day_first: bool) -> datetime.datetime | None:
    """A date that ends with its year, read in this order where its month has no name; None: it is none."""
    if (found := _YEAR_LAST.fullmatch(cell) or _SHORT_YEAR_LAST.fullmatch(cell)) is not None:
        first, mark, second, year, time = found.groups(default="")
        if mark == "." and not day_first:  # points are written behind days alone
            return None
        day, month = (first, second) if day_first else (second, first)
    elif (found := _NAMED_MONTH.fullmatch(cell)) is not None:
        day, name, year, time = found.groups(default="")
        month = _month(name)
    elif (found := _NAMED_MONTH_FIRST.fullmatch(cell)) is not None:
        name, day, year, time = found.groups(default="")
        month = _month(name)
    else:
        return None
    if len(year) == 2:
        year = f"{19 if int(year) >= _FIRST_SHORT_YEAR else 20}{year}"
    try:
        return parse_date(written_date(year, month, day, time))
    except ValueError:
        return None


def _month(name: str) -> str:
    """The number of a month by its English name or the start of it; 0: it is none."""
    fits = (number for number, month in enumerate(_MONTHS, 1) if len(name) >= 3 and month.startswith(name.lower()))
    return str(next(fits, 0))


def _moment(cell: str, day_first: bool | None) -> datetime.datetime | None:
    """A date, read as those of its column (`Column.day_first`); None: it is none, or may be two."""
    try:
        return parse_date(cell)
    except ValueError:
        orders = (True, False) if day_first is None else (day_first,)
        found = {moment for order in orders if (moment := _written(cell, order)) is not None}
        return found.pop() if len(found) == 1 else None


def _orders(cell: str) -> set[bool]:
    """What may come first in a date that ends with its year, the day (True) or the month."""
    return {day_first for day_first in (True, False) if _written(cell, day_first) is not None}


def _shared_orders(known: Sequence[str]) -> set[bool]:
    """What may come first in all dates."""
    return {True, False}.intersection(*(_orders(cell) for cell in set(known) if not _is_year_first(cell)))


def _day_first(name: str, cells: Sequence[str], known: list[str], place: Place) -> bool | None:
    """What comes first in these dates; None: all are the same in either order.

    Raises:
        ValueError: it may be either, and some are not; or it may be a year of two digits.
    """
    if (cell := _may_begin_with_year(known)) is not None:
        where = place(list(cells).index(cell), name)
        raise ValueError(
            f"{where}: {cell!r} may begin or end with its year, and the dates of the training rows do not say which; "
            "write dates as 2026-01-31, or say that the column is one of categories or texts"
        )
    orders = _shared_orders(known)
    if len(orders) == 1:
        return orders.pop()
    if (cell := next((cell for cell in known if _moment(cell, None) is None), None)) is not None:
        where = place(list(cells).index(cell), name)
        raise ValueError(f"{where}: {_two_dates(cell)}, or say that the column is one of categories or texts")
    return None


def _may_begin_with_year(known: Sequence[str]) -> str | None:
    """One of some dates with years of two digits, if all may begin with them and their last numbers vary more."""
    short = {cell: found for cell in known if (found := _SHORT_YEAR_LAST.fullmatch(cell)) is not None}
    numbers = [(found[1], found[3], found[4]) for found in short.values()]
    try:
        for year, month, day in numbers:
            parse_date(written_date(f"20{year:0>2}", month, day, ""))
    except ValueError:
        return None
    firsts, _, lasts = (len(set(each)) for each in zip(*numbers, strict=True)) if numbers else (0, 0, 0)
    return next(iter(short)) if lasts > firsts else None


def _two_dates(cell: str) -> str:
    """That a cell may be two dates."""
    days, months = (moment.date() for order in (True, False) if (moment := _written(cell, order)) is not None)
    return (
        f"{cell!r} may be {days} or {months}, and no date of the training rows says whether days or months come first; "
        "write dates as 2026-01-31"
    )


def _parts(
    name: str, kind: ColumnKind, cells: Sequence[str], place: Place, day_first: bool | None = None
) -> np.ndarray:
    """All parts of numbers or dates, float64 `(n, parts)`, NaN where one is missing."""
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
        moment = _moment(cell, day_first)
        if moment is None and day_first is None and _orders(cell):
            raise ValueError(f"{place(i, name)}: {_two_dates(cell)}")
        if moment is None:
            such = {None: "2026-01-31", True: "31/1/2026", False: "1/31/2026"}[day_first]
            raise ValueError(f"{place(i, name)}: {cell!r} is no date; expected one such as {such} or leave it empty")
        since = moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)
        found[i] = since.timestamp(), moment.month, moment.weekday(), moment.hour
    return found
