"""Numbers and times from their text, and which of them float32 holds."""

import datetime
import math

import numpy as np

LARGEST = float(np.finfo(np.float32).max)
"""The largest number of float32, in which models compute."""
FINITE = f"a finite number of at most {LARGEST:.2g} in size, as float32 holds"
"""What is expected."""
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
    """A finite number that float32 holds, or NaN where the value is missing.

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
    """A finite number that float32 holds, where none may be missing.

    Raises:
        ValueError: it is none.
    """
    return _held(parse_number(text), text.strip(), "leave the row out")


def _held(value: float, word: str, instead: str) -> float:
    """The value, if it is finite and float32 holds it; else raises ValueError."""
    if not math.isfinite(value):
        raise ValueError(f"{word!r} is no finite number; write one, or {instead}")
    if abs(value) > LARGEST:
        raise ValueError(f"{word!r} is beyond {LARGEST:.2g}, the largest number of float32; use another unit")
    return value


def as_single(values: np.ndarray) -> np.ndarray:
    """Numbers in float32; what that does not hold is infinite, and is to be refused."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


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
