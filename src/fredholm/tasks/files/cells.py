"""Numbers and times from their text."""

import datetime
import math

MISSING = frozenset({"", "?", "nan", "na", "n/a", "null", "none"})
"""What stands for a missing value, in lower case."""


def parse_number(text: str) -> float:
    """A number, be it finite or not.

    Raises:
        ValueError: it is none, as 1_0, which Python takes for 10.
    """
    try:
        return float(text.replace("_", "x"))
    except ValueError:
        raise ValueError(f"{text.strip()!r} is no number; write one") from None


def parse_value(text: str) -> float:
    """A finite number, or NaN where the value is missing.

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
    if not math.isfinite(value):
        raise ValueError(f"{word!r} is no finite number; write one, or leave the place empty where it is missing")
    return value


def parse_time(text: str) -> float:
    """A finite number, or a date and time of ISO 8601, which becomes seconds since 1970 (UTC where no zone is given).

    Raises:
        ValueError: it is neither.
    """
    word = text.strip()
    try:
        time = parse_number(word)
    except ValueError:
        try:
            stamp = datetime.datetime.fromisoformat(word)
        except ValueError:
            raise ValueError(f"{word!r} is no time; expected a number or a date such as 2026-01-31T12:00") from None
        return (stamp if stamp.tzinfo else stamp.replace(tzinfo=datetime.UTC)).timestamp()
    if not math.isfinite(time):
        raise ValueError(f"{word!r} is no time; expected a finite number")
    return time


def is_date(cell: str) -> bool:
    """Whether a time is written as a date, not as a number."""
    try:
        parse_number(cell)
    except ValueError:
        return True
    return False
