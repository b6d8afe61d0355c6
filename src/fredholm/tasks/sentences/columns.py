"""The columns of a table that hold sentences and labels."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from fredholm.tasks.splits.split_marks import MARKS

TEXTS = ("text", "sentence", "review", "comment", "content", "question", "title")
PAIRS = (
    ("text", "second"),
    ("sentence1", "sentence2"),
    ("text1", "text2"),
    ("question1", "question2"),
    ("premise", "hypothesis"),
    ("question", "sentence"),
)
LABELS = ("label", "class", "category", "target", "sentiment", "score", "rating")


@final
@dataclass(frozen=True, kw_only=True)
class Columns:
    """The names of the columns that are read; `second` is None where sentences are no pairs."""

    text: str
    second: str | None
    labels: tuple[str, ...]


def choose_columns(
    names: Sequence[str],
    *,
    text: str | None,
    second: str | None,
    labels: tuple[str, ...] = (),
    weights: str | None = None,
) -> Columns:
    """The requested columns; for None or (), the first with a usual name, in any case.

    Where no column of sentences is requested and the table has both columns of a usual pair, these are read as pairs.

    Raises:
        ValueError: a column is missing, or would have two roles; the message offers the nearest names.
    """
    by_word = {name.lower(): name for name in reversed(names)}
    pairs = [(by_word[one], by_word[two]) for one, two in PAIRS if one in by_word and two in by_word]
    if text is None and second is None and pairs:
        text, second = pairs[0]
    found = Columns(
        text=_column(names, text, TEXTS, "text"),
        second=None if second is None else _column(names, second, (), "second sentence"),
        labels=tuple(_column(names, label, LABELS, "label") for label in labels or (None,)),
    )
    weighing = None if weights is None else _column(names, weights, (), "weights")
    used = [name for name in (found.text, found.second, *found.labels, weighing) if name is not None]
    if twice := [name for i, name in enumerate(used) if name in used[:i]]:
        raise ValueError(
            f"column {twice[0]!r} would be read as two things; name text, second, label and weights columns apart"
        )
    if weighing is not None and weighing.lower() in MARKS:
        raise ValueError(f"column {weighing!r} is a mark of sentences and one of weights; give weights their own")
    return found


def _column(names: Sequence[str], wanted: str | None, usual: Sequence[str], what: str) -> str:
    if wanted is None:
        setting = "label_columns" if what == "label" else f"{what}_column"
        by_word = {name.lower(): name for name in reversed(names)}
        if found := [by_word[word] for word in usual if word in by_word]:
            return found[0]
        others = [name for name in names if name.lower() not in (*TEXTS, *LABELS, *MARKS)]
        likely = others[0] if len(others) == 1 and len(names) > 1 else ""
        raise ValueError(
            f"no column has a usual name of the {what} ({', '.join(usual)}); the columns are {', '.join(names)}: name "
            f"one ({setting}={likely}), or all where the file has no header (columns=)"
        )
    if wanted in names:
        return wanted
    close = difflib.get_close_matches(wanted, names, n=3)
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"the columns are {', '.join(names)}"
    raise ValueError(f"no column {wanted!r} for the {what}; {hint}")
