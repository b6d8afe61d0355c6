"""Safe output of texts from files and models on a terminal, which acts on some characters."""

import re
import unicodedata
from collections.abc import Sequence

LONGEST = 480
"""Largest number of characters in a line about an error or a warning."""

_ORDERS = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories of control and format characters, surrogates, and line and paragraph separators."""
_JOINERS = "\u200c\u200d"
"""Format characters that belong to the spelling of some languages."""


def counted(count: int, what: str) -> str:
    """Formats a count with its noun: 1 epoch, 1,440 steps."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def is_order(letter: str) -> bool:
    """Whether a character may move the cursor, change colours, begin a line, or reorder what is read."""
    return unicodedata.category(letter) in _ORDERS and letter not in _JOINERS


def visible(text: str, *, keep: str = "") -> str:
    r"""Escapes control and similar characters (`is_order`) in a text, such as \x1b, \n or \u202e.

    Args:
        text: text to show.
        keep: characters to keep, such as tabs.
    """
    if text.isprintable():
        return text
    return "".join(
        letter.encode("unicode_escape").decode("ascii") if is_order(letter) and letter not in keep else letter
        for letter in text
    )


def one_line(message: str) -> str:
    """Returns a message as one line of at most `LONGEST` characters, with control characters escaped (`visible`).

    A longer message is cut in the middle: it begins with the fault and ends with the advice.
    """
    shown, end = visible(re.sub(r"\s+", _blank, message.strip())), LONGEST // 3
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST - end - 5]} ... {shown[-end:]}"


def first_few(names: Sequence[str], most: int = 6) -> str:
    """Joins names with commas; of many only the first, followed by dots."""
    return f"{', '.join(names[:most])}{', ...' if len(names) > most else ''}"


def _blank(space: re.Match[str]) -> str:
    """Returns a blank for the end of a line or a wide space; blanks within a name are unchanged."""
    return " " if set(space[0]) != {" "} else space[0]
