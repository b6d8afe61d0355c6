"""Parsing of times: numbers, or dates as people and programs write them."""

import datetime
import math
import re
from collections.abc import Sequence
from typing import NamedTuple, final

from .cells import is_number, parse_number

_TIME = r"(?:,?[ T]+(\d{1,2}:.*))?"
_YEAR_FIRST = re.compile(rf"(\d{{4}})([-/])(\d{{1,2}})\2(\d{{1,2}}){_TIME}")
_YEAR_LAST = re.compile(rf"(\d{{1,2}})([./-])(\d{{1,2}})\2(\d{{4}}){_TIME}")
_SHORT_YEAR_LAST = re.compile(rf"(\d{{1,2}}(?=/)|\d\d)([./-])(\d{{1,2}}(?=/)|\d\d)\2(\d\d){_TIME}")
"""Between points and hyphens day and month have two digits each, since 1.2.10 may be a version."""
_NAMED_MONTH = re.compile(rf"(\d{{1,2}})(?:\. ?|[ -])([A-Z]+)\.?[ -](\d{{4}}|\d\d){_TIME}", re.IGNORECASE)
_NAMED_MONTH_FIRST = re.compile(rf"([A-Z]+)\.? (\d{{1,2}}),? (\d{{4}}){_TIME}", re.IGNORECASE)
_MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_FIRST_SHORT_YEAR = 69
"""Years of two digits are 1969 to 2068, as in POSIX."""
_HALF_DAYS = re.compile(r"(\d{1,2})(:.*?)\s*([ap])\.?\s?m\.?", re.IGNORECASE)


@final
class Moment(NamedTuple):
    """A parsed time: a number, or a date in seconds since 1970, with or without a time zone."""

    time: float
    is_date: bool
    has_zone: bool


@final
class DateOrderError(ValueError):
    """The cells of a column do not show whether their days, months or years come first.

    Args:
        message: reason.
        index: index of a cell in doubt.
    """

    def __init__(self, message: str, index: int) -> None:
        super().__init__(message)
        self.index = index


def begins_with_year(cell: str) -> bool:
    """Whether a cell is a date that begins with its year, as in ISO 8601."""
    return _year_first(cell) is not None


def is_date(cell: str) -> bool:
    """Whether a cell is a date, maybe an ambiguous one."""
    return begins_with_year(cell) or bool(_orders(cell))


def shared_orders(cells: Sequence[str]) -> set[bool]:
    """Returns the orders that are possible for all dates that end with their year."""
    return {True, False}.intersection(*(_orders(cell) for cell in set(cells) if not begins_with_year(cell)))


def learn_day_first(cells: Sequence[str]) -> bool | None:
    """Returns whether days come first in these dates; None: each date is the same in both orders.

    Raises:
        DateOrderError: both orders are possible and give different dates, neither is possible for all dates, or the
            first number may be a year.
    """
    if (i := _may_begin_with_year(cells)) is not None:
        raise DateOrderError(
            f"{cells[i]!r} may begin or end with its year, and the other dates do not show which; write dates as "
            "2026-01-31",
            i,
        )
    orders = shared_orders(cells)
    if len(orders) == 1:
        return orders.pop()
    for i, cell in enumerate(cells):
        if orders and parse_date(cell, None) is None:
            raise DateOrderError(two_dates(cell), i)
        if not orders and _orders(cell) == {False}:
            days = next(other for other in cells if _orders(other) == {True})
            raise DateOrderError(f"{cell!r} has its month first, and {days!r} its day; write dates as 2026-01-31", i)
    return None


def parse_date(cell: str, day_first: bool | None) -> datetime.datetime | None:
    """Parses a date, with or without a time of day on the 12-hour or 24-hour clock.

    Dates are in ISO 8601, or such as 2026/1/31, 31.1.2026, 31/1/26, 31 Jan 2026 and January 31, 2026 9:30 PM.

    Args:
        cell: text without surrounding blanks.
        day_first: whether numbers such as 1/2/2026 begin with the day; None: unknown.

    Returns:
        the date; None where the cell is none, or where `day_first` is unknown and decides which.
    """
    if (found := _year_first(cell)) is not None:
        return found
    orders = (True, False) if day_first is None else (day_first,)
    moments = {moment for order in orders if (moment := _year_last(cell, order)) is not None}
    return moments.pop() if len(moments) == 1 else None


def two_dates(cell: str) -> str:
    """Returns the error text for an ambiguous date."""
    days, months = (moment.date() for order in (True, False) if (moment := _year_last(cell, order)) is not None)
    return (
        f"{cell!r} may be {days} or {months}, and the other dates do not show whether days or months come first; "
        "write dates as 2026-01-31"
    )


def parse_moment(text: str, day_first: bool | None = None) -> Moment:
    """Parses a finite number, or a date (`parse_date`), which becomes seconds since 1970 (UTC without a time zone).

    Raises:
        ValueError: it is neither, or an ambiguous date.
    """
    word = text.strip()
    try:
        time = parse_number(word)
    except ValueError:
        stamp = parse_date(word, day_first)
        if stamp is None and day_first is None and is_date(word):
            raise ValueError(two_dates(word)) from None
        if stamp is None:
            raise ValueError(f"{word!r} is no time; expected a number or a date such as 2026-01-31T12:00") from None
        return Moment(seconds(stamp), True, stamp.tzinfo is not None)
    if not math.isfinite(time):
        raise ValueError(f"{word!r} is no time; expected a finite number")
    return Moment(time, False, False)


def duration(value: datetime.timedelta | datetime.time) -> float:
    """Returns the seconds of a duration, or of a time of day since midnight."""
    if isinstance(value, datetime.time):
        value = datetime.datetime.combine(datetime.date.min, value.replace(tzinfo=None)) - datetime.datetime.min
    return value / datetime.timedelta(seconds=1)


def seconds(stamp: datetime.datetime) -> float:
    """Returns seconds since 1970; a date without a time zone is in UTC."""
    return (stamp if stamp.tzinfo is not None else stamp.replace(tzinfo=datetime.UTC)).timestamp()


def learn_order_of_times(cells: Sequence[str]) -> bool | None:
    """Returns `day_first` of a column of times for `parse_moment`; None where all are numbers or in ISO 8601.

    Cells that are no dates are ignored: `parse_moment` refuses them.

    Raises:
        DateOrderError: as of `learn_day_first`.
    """
    places = [i for i, cell in enumerate(cells) if not is_number(cell) and is_date(cell)]
    try:
        return learn_day_first([cells[i] for i in places])
    except DateOrderError as error:
        raise DateOrderError(str(error), places[error.index]) from None


def are_dates_in_digits(times: Sequence[float]) -> bool:
    """Whether numbers are dates written as 20260131 or 202601, of several months or years: steps are uneven."""
    whole = [int(time) for time in times if 100_000 < time < 100_000_000 and time == int(time)]
    if len(whole) < len(times) or not whole:
        return False
    has_days = whole[0] >= 10_000_000
    try:
        for number in whole:
            datetime.datetime.strptime(str(number), "%Y%m%d" if has_days else "%Y%m").date()
    except ValueError:
        return False
    return len({number // 100 for number in whole}) > 1


def _year_first(text: str) -> datetime.datetime | None:
    """Parses a date and time in ISO 8601, or such as 2026/1/31 and 2026-1-31 9:30 PM; None: no such date."""
    try:
        if (found := _YEAR_FIRST.fullmatch(text)) is not None:
            year, _, month, day, time = found.groups(default="")
            text = _iso(year, month, day, time)
        return datetime.datetime.fromisoformat(text)
    except ValueError:
        return None


def _year_last(cell: str, day_first: bool) -> datetime.datetime | None:
    """Parses a date that ends with its year, days first or months first if the month is a number; None: no date."""
    if (found := _YEAR_LAST.fullmatch(cell) or _SHORT_YEAR_LAST.fullmatch(cell)) is not None:
        first, mark, second, year, time = found.groups(default="")
        if mark == "." and not day_first:  # dates with points always begin with the day
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
        return datetime.datetime.fromisoformat(_iso(year, month, day, time))
    except ValueError:
        return None


def _orders(cell: str) -> set[bool]:
    """Returns the possible orders of a date that ends with its year: day first (True), month first (False).

    Both for 31 Jan 2026, and none for a cell that is no such date.
    """
    return {day_first for day_first in (True, False) if _year_last(cell, day_first) is not None}


def _month(name: str) -> str:
    """Returns the number of a month from its English name or at least three letters of it; "0": no month."""
    fits = (number for number, month in enumerate(_MONTHS, 1) if len(name) >= 3 and month.startswith(name.lower()))
    return str(next(fits, 0))


def _iso(year: str, month: str, day: str, time: str) -> str:
    """Formats the digits of a date in ISO 8601; the time "" is left out, and may be on the 12-hour clock, 9:30 PM.

    Raises:
        ValueError: an hour of the 12-hour clock is not from 1 to 12.
    """
    half_day = _HALF_DAYS.fullmatch(time)
    if half_day is not None:
        number, minutes, half = half_day.groups()
        if not 1 <= int(number) <= 12:
            raise ValueError(f"{time!r} is no time; expected an hour from 1 to 12 before AM or PM")
        time = f"{int(number) % 12 + 12 * (half in 'pP')}{minutes}"
    hour, colon, rest = time.partition(":")
    return f"{year}-{month:0>2}-{day:0>2}" + (f"T{hour:0>2}{colon}{rest}" if time else "")


def _may_begin_with_year(cells: Sequence[str]) -> int | None:
    """Returns the index of a two-digit date if all such dates may begin with the year, and their ends vary more."""
    short = {i: found for i, cell in enumerate(cells) if (found := _SHORT_YEAR_LAST.fullmatch(cell)) is not None}
    numbers = [(found[1], found[3], found[4]) for found in short.values()]
    if any(_year_first(_iso(f"20{year:0>2}", month, day, "")) is None for year, month, day in numbers):
        return None
    firsts, _, lasts = (len(set(each)) for each in zip(*numbers, strict=True)) if numbers else (0, 0, 0)
    return next(iter(short)) if lasts > firsts else None
