"""Numbers and times from their text."""

import datetime
import math

MISSING = frozenset({"", "?", "nan", "na", "n/a", "null", "none"})
"""What stands for a missing value, in lower case."""


def parse_value(text: str) -> float:
    """A finite number, or NaN where the value is missing.

    Raises:
        ValueError: it is neither.
    """
    word = text.strip()
    if word.lower() in MISSING:
        return math.nan
    try:
        value = float(word) if "_" not in word else math.inf
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
        time = float(word.replace("_", "x"))  # which Python reads over: 1_0 would be 10
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
        float(cell)
    except ValueError:
        return True
    return False
