"""Parsing of numbers and times, and the numbers that float32 can represent."""

import datetime
import math
import re
from collections.abc import Sequence
from typing import NamedTuple, final

import numpy as np
import torch

LARGEST = float(np.finfo(np.float32).max)
"""Largest number of float32, the type that models compute in."""
FINITE = f"a finite number of at most {LARGEST:.2g} in size, as float32 holds"
"""Description of a valid number, for messages."""
ROUNDED = 1e-4
"""Fraction of a column's deviation below which rounding to float32 is negligible."""
MISSING = frozenset({"", "?", "nan", "na", "n/a", "null", "none"})
"""Spellings of a missing value, in lower case."""
_WITH_COMMA = re.compile(r"[-+]?[\d.]*\d,\d[\d.,]*")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(,\d{3})+(\.\d+)?")
_SIGNS = "$€£¥% "
"""Signs of amounts and shares, which may precede or follow a number."""
_BLANKS_ALONE = re.compile(r"[^\s,]\s+[^\s,]")
"""Blanks without a comma between two cells."""


def parse_number(text: str) -> float:
    """Parses a number, finite or not.

    Raises:
        ValueError: it is no number, such as 1_0, which Python reads as 10.
    """
    try:
        return float(text.replace("_", "x"))
    except ValueError:
        _refuse_commas(text.strip())
        raise ValueError(f"{text.strip()!r} is no number; write one") from None


def has_commas(word: str) -> bool:
    """Whether this is a number with commas, before decimals or between thousands."""
    return _WITH_COMMA.fullmatch(word) is not None


def about_commas(words: Sequence[str]) -> str:
    """Names the commas of such numbers for a message, and the way to write them without."""
    if all("," not in word or _THOUSANDS.fullmatch(word) for word in words):
        return "a decimal comma, or one between thousands; write points, or leave commas between thousands out"
    return "a decimal comma; write points"


def without_signs(word: str) -> str:
    """Returns a word without surrounding signs of amounts and shares, and without commas between thousands."""
    bare = word.strip(_SIGNS)
    return bare.replace(",", "") if _THOUSANDS.fullmatch(bare) else bare


def is_number(word: str) -> bool:
    """Whether `parse_number` accepts a word."""
    try:
        parse_number(word)
    except ValueError:
        return False
    return True


def _refuse_commas(word: str) -> None:
    """Raises a ValueError where a number has commas, as decimal or thousands separators."""
    if has_commas(word):
        raise ValueError(f"{word!r} has a comma; write a point before decimals, and nothing between thousands")


def cells_of_line(line: str) -> list[str]:
    """Splits a line into cells, at commas or blanks.

    Raises:
        ValueError: cells are separated by commas and by blanks: in a line such as `0,5 0,7` commas would be decimal
            points.
    """
    if "," in line and _BLANKS_ALONE.search(line):
        raise ValueError("has commas and blanks between numbers; write one of the two, and a point before decimals")
    return line.replace(",", " ").split()


def parse_value(text: str) -> float:
    """Parses a finite float32 number, or returns NaN for a missing value.

    Raises:
        ValueError: it is neither.
    """
    word = text.strip()
    if word.lower() in MISSING:
        return math.nan
    try:
        value = parse_number(word)
    except ValueError:
        value = math.inf
    return _held(value, word, "leave the place empty where it is missing")


def parse_present(text: str) -> float:
    """Parses a finite float32 number, which must not be missing.

    Raises:
        ValueError: it is no such number.
    """
    return _held(parse_number(text), text.strip(), "leave the row out")


def _held(value: float, word: str, instead: str) -> float:
    """Returns the value if it is finite and within the range of float32; else raises a ValueError."""
    if not math.isfinite(value):
        _refuse_commas(word)
        raise ValueError(f"{word!r} is no finite number; write one, or {instead}")
    if abs(value) > LARGEST:
        raise ValueError(f"{word!r} is beyond {LARGEST:.2g}, the largest number of float32; use another unit")
    return value


def kept_type(*parts: np.ndarray) -> type[np.float32 | np.float64]:
    """Returns the type to store numbers in before centring: float64 where float32 would round a column noticeably.

    Args:
        parts: arrays `(..., C)` that are stored together, NaN where a value is missing.
    """
    if np.result_type(np.float32, *(part.dtype for part in parts)) == np.float32:
        return np.float32
    count, total, most = (np.zeros(()) for _ in range(3))
    for part in parts:
        rows, known = _finite_rows(part)
        count, total = count + known.sum(0), total + rows.sum(0)
        most = np.maximum(most, np.abs(rows - as_single(rows)).max(0, initial=0.0))
    mean, squares = total / np.maximum(count, 1), np.zeros(())
    for part in parts:
        rows, known = _finite_rows(part)
        squares = squares + (np.where(known, rows - mean, 0.0) ** 2).sum(0)
    return np.float64 if (most > ROUNDED * np.sqrt(squares / np.maximum(count, 1))).any() else np.float32


def _finite_rows(part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns float64 rows, with 0 for values that are not finite in float32, and a mask of the others."""
    rows = part.reshape(math.prod(part.shape[:-1]), part.shape[-1]).astype(np.float64)
    known = np.abs(rows) <= LARGEST
    return np.where(known, rows, 0.0), known


def as_single(values: np.ndarray) -> np.ndarray:
    """Converts numbers to float32; those beyond its range become infinite: refuse them."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def as_kept(values: np.ndarray, kept: type[np.float32 | np.float64] | None = None) -> np.ndarray:
    """Converts numbers `(..., C)` to their `kept_type`; those beyond float32's range become infinite: refuse them."""
    kept = kept or kept_type(values)
    single = as_single(values)
    return single if kept is np.float32 else np.where(np.isinf(single), single, values.astype(np.float64))


def rounding_of(kept: torch.dtype) -> float:
    """Returns the relative rounding error of a type: equal numbers may deviate from their mean by so much of it."""
    return 1e-6 if kept == torch.float32 else 1e-12


@final
class Moment(NamedTuple):
    """A parsed time: a number, or a date in seconds since 1970, with or without a time zone."""

    time: float
    is_date: bool
    has_zone: bool


_YEAR_FIRST = re.compile(r"(\d{4})([-/])(\d{1,2})\2(\d{1,2})(?:,?[ T]+(\d{1,2}:.*))?")
_HALF_DAYS = re.compile(r"(\d{1,2})(:.*?)\s*([ap])\.?\s?m\.?", re.IGNORECASE)


def parse_date(text: str) -> datetime.datetime:
    """Parses a date and time in ISO 8601, or such as 2026/1/31 and 2026-1-31 9:30 PM.

    Raises:
        ValueError: it is no date.
    """
    if (found := _YEAR_FIRST.fullmatch(text)) is not None:
        year, _, month, day, time = found.groups(default="")
        text = written_date(year, month, day, time)
    return datetime.datetime.fromisoformat(text)


def written_date(year: str, month: str, day: str, time: str) -> str:
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


def parse_moment(text: str) -> Moment:
    """Parses a finite number, or a date (`parse_date`), which becomes seconds since 1970 (UTC without a time zone).

    Raises:
        ValueError: it is neither.
    """
    word = text.strip()
    try:
        time = parse_number(word)
    except ValueError:
        try:
            stamp = parse_date(word)
        except ValueError:
            raise ValueError(f"{word!r} is no time; expected a number or a date such as 2026-01-31T12:00") from None
        has_zone = stamp.tzinfo is not None
        return Moment((stamp if has_zone else stamp.replace(tzinfo=datetime.UTC)).timestamp(), True, has_zone)
    if not math.isfinite(time):
        raise ValueError(f"{word!r} is no time; expected a finite number")
    return Moment(time, False, False)


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


def parse_time(text: str) -> float:
    """Returns the time of `parse_moment`."""
    return parse_moment(text).time


def is_date(cell: str) -> bool:
    """Whether a time is written as a date, not as a number."""
    return not is_number(cell)
