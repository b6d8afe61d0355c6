"""Words of files, of their names and of models on a terminal, where some characters are orders."""

import unicodedata

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
