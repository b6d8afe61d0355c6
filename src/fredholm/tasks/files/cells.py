"""Parsing of numbers, and the numbers that float32 can represent."""

import math
import re
from collections.abc import Sequence

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
_WHOLE = re.compile(r"[-+]?\d+\.0+")
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
    """Describes the commas in numbers for a message, with advice on how to write them."""
    if all("," not in word or _THOUSANDS.fullmatch(word) for word in words):
        return (
            "a decimal comma, or one between thousands; write points, leave commas between thousands out, or name the "
            "decimal mark of a .csv file (csv.decimal=comma or csv.decimal=point)"
        )
    return "a decimal comma; write points, or name the decimal mark of a .csv file (csv.decimal=comma)"


def without_signs(word: str) -> str:
    """Returns a word without surrounding signs of amounts and shares, and without commas between thousands."""
    bare = word.strip(_SIGNS)
    return bare.replace(",", "") if _THOUSANDS.fullmatch(bare) else bare


def as_whole(word: str) -> str:
    """Returns a whole number without decimals, as pandas writes them where a cell of the column is missing."""
    return word.partition(".")[0] if _WHOLE.fullmatch(word) else word


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
        raise ValueError(
            f"{word!r} has a comma; write a point before decimals, and nothing between thousands, or name the decimal "
            "mark of a .csv file (csv.decimal=comma or csv.decimal=point)"
        )


def cells_of_line(line: str) -> list[str]:
    """Splits a line into cells, at commas or blanks.

    Raises:
        ValueError: cells are separated by commas and by blanks: in a line such as `0,5 0,7` commas would be decimal
            points.
    """
    if "," in line and _BLANKS_ALONE.search(line):
        raise ValueError("has commas and blanks between numbers; write one of the two, and a point before decimals")
    return line.replace(",", " ").split()


def parse_value(text: str, instead: str = "leave the place empty where it is missing") -> float:
    """Parses a finite float32 number, or returns NaN for a missing value.

    Args:
        text: the cell.
        instead: alternative to writing a number, for the message.

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
    return _held(value, word, instead)


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
    """Returns the relative rounding error of a type: equal numbers may deviate from their mean by this share of it."""
    return 1e-6 if kept == torch.float32 else 1e-12
