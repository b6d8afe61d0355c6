"""Reference implementation of documents for texts in memory."""

import re
from collections.abc import Sequence

from fredholm.tasks.text import Documents, Tokenizer


def split_documents(text: str, separator: str) -> list[str]:
    """The documents of one file in order, without separators; blank ones are left out."""
    if separator == "file":
        return [text]
    pattern = r"\r?\n" if separator == "line" else r"\r?\n(?:[ \t]*\r?\n)+"
    return [part for part in re.split(pattern, text) if part.strip()]


def cut_documents(documents: Sequence[str], fraction: float) -> tuple[list[str], list[str]]:
    """Splits off the end, nearest to this fraction of all characters; see `Documents.cut`."""
    target = sum(map(len, documents)) * (1 - fraction)
    if len(documents) > 1:
        ends = [sum(map(len, documents[:count])) for count in range(1, len(documents))]
        first = 1 + min(range(len(ends)), key=lambda i: abs(ends[i] - target))
        return list(documents[:first]), list(documents[first:])
    (text,) = documents
    at = min(max(round(target), 1), len(text) - 1)
    line = text.find("\n", at - 1) + 1
    if 0 < line < len(text):
        at = line
    return [text[:at]], [text[at:]]


def texts(documents: Documents) -> tuple[str, ...]:
    """The text of each document."""
    found: list[list[str]] = []
    for part in documents.parts():
        if part.is_first:
            found.append([])
        found[-1].append(part.text)
    return tuple(map("".join, found))


def join(tokenizer: Tokenizer, documents: Sequence[str], mark: int) -> list[int]:
    """The tokens of all documents, with a mark before each."""
    return [token for text in documents for token in (mark, *tokenizer.encode(text).tolist())]
