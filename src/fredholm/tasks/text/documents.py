"""Documents: the stretches of text between which an end-of-text token stands."""

import re
from collections.abc import Sequence
from typing import Literal

Separator = Literal["file", "blank line", "line"]
"""What ends a document: the end of its file, one or more blank lines, or the end of a line."""


def split_documents(text: str, separator: Separator) -> list[str]:
    """The documents of one file in order, without what separates them; those without text are left out.

    Raises:
        ValueError: there are none, or no such separator.
    """
    if separator == "file":
        return [text]
    if separator not in ("blank line", "line"):
        raise ValueError(f"documents is {separator!r}; expected 'file', 'blank line' or 'line'")
    pattern = r"\r?\n" if separator == "line" else r"\r?\n(?:[ \t]*\r?\n)+"
    parts = [part for part in re.split(pattern, text) if part.strip()]
    if not parts:
        raise ValueError("there is no document: the text is blank")
    return parts


def cut_documents(documents: Sequence[str], fraction: float) -> tuple[list[str], list[str]]:
    """Splits off the end, about so large a share of all characters.

    Several documents are cut between two of them, at the place nearest to the share; a single one at the start of the
    next line, or where that is too late for anything to be left, within the line.

    Args:
        documents: in order.
        fraction: of the characters that go to the second part, above 0 and below 1.

    Returns:
        What comes before the cut and what comes after, at least one document each.

    Raises:
        ValueError: the fraction is out of range, or a single document has fewer than two characters.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"a share of {fraction} cannot be split off; pass a number above 0 and below 1")
    whole = sum(map(len, documents))
    wanted = whole * (1 - fraction)
    if len(documents) > 1:
        ends = [len(documents[0])]
        for document in documents[1:-1]:
            ends.append(ends[-1] + len(document))
        first = 1 + min(range(len(ends)), key=lambda i: abs(ends[i] - wanted))
        return list(documents[:first]), list(documents[first:])
    (text,) = documents
    if len(text) < 2:
        raise ValueError(f"a text of {len(text)} characters cannot be split; pass more text")
    at = min(max(round(wanted), 1), len(text) - 1)
    line = text.find("\n", at - 1) + 1
    if 0 < line < len(text):
        at = line
    return [text[:at]], [text[at:]]
