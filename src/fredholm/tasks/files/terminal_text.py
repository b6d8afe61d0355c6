"""Words of files, of their names and of models on a terminal, where some characters are orders."""

import re
import unicodedata
from collections.abc import Sequence

LONGEST = 480
"""Characters of a line about an error or a warning."""

_ORDERS = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Categories of control and format characters, halves of surrogate pairs, and separators of lines and paragraphs."""
_JOINERS = "\u200c\u200d"
"""Format characters that belong to the spelling of some languages."""


def is_order(letter: str) -> bool:
    """Whether a character may move the cursor, change colours, begin a line, or reorder what is read."""
    return unicodedata.category(letter) in _ORDERS and letter not in _JOINERS


def visible(text: str, *, keep: str = "") -> str:
    r"""The text with an escape such as \x1b, \n or \u202e for every character that is an order.

    Args:
        text: what to show.
        keep: orders that stay, such as tabs.
    """
    if text.isprintable():
        return text
    return "".join(
        letter.encode("unicode_escape").decode("ascii") if is_order(letter) and letter not in keep else letter
        for letter in text
    )


def one_line(message: str) -> str:
    """The message in one line of at most `LONGEST` characters, none of which is an order (`visible`).

    What is too long is cut in the middle: what came stands at the start, what to do at the end.
    """
    shown, end = visible(re.sub(r"\s+", _blank, message.strip())), LONGEST // 3
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST - end - 5]} ... {shown[-end:]}"


def first_few(names: Sequence[str], most: int = 6) -> str:
    """Names with commas between them, of many the first and dots."""
    return f"{', '.join(names[:most])}{', ...' if len(names) > most else ''}"


def _blank(space: re.Match[str]) -> str:
    """A blank for what ends a line or stands apart; blanks of a name stay as they are."""
    return " " if set(space[0]) != {" "} else space[0]
