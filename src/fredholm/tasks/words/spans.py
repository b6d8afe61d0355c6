"""Spans of words that labels mark, such as names of several words.

A label is O outside of spans, or a letter and a kind, such as B-place, or a letter alone; the letters are B at the
beginning of a span, I inside, E or L at its end, S or U for a span of one word. A span is a run of words that

    begins   with B, S or U; with I, E or L after O, after E, L, S or U, or after another kind; and with the sentence
    ends     after E, L, S or U; before O, B, S or U, or another kind; and with the sentence

so that every sequence of labels has its spans, also one that no annotator would write: I after O begins a span.

Source: the rules of conlleval (Tjong Kim Sang and Buchholz, Introduction to the CoNLL-2000 shared task, 2000).
Deviation: L, S and U, which it does not know, and E always ends a span.
"""

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple, final, get_args

SpanScoreName = Literal["span_f1", "span_precision", "span_recall"]
SPAN_SCORES: tuple[SpanScoreName, ...] = get_args(SpanScoreName)
"""Scores of predicted spans, the first the one to compare by."""
OUTSIDE = "O"
_FIRST, _LAST = "BSU", "ELSU"
_MARKED = re.compile(r"([BIELSU])(?:-(.*))?")


@final
class Span(NamedTuple):
    """The words from `start` to before `end`, of a kind."""

    start: int
    end: int
    kind: str


def mark_spans(names: Sequence[str]) -> bool:
    """Whether labels of these names mark spans: O and B, I, E, L, S or U, one of them of a beginning or an inside."""
    found = [_parts(name) for name in names if name != OUTSIDE]
    return all(found) and any(parts is not None and parts[0] in "BIS" for parts in found)


def spans_of(labels: Sequence[str | None]) -> list[Span]:
    """The spans of a sentence in their order; a label that is None is outside of all.

    Args:
        labels: for which `mark_spans` holds.
    """
    found, start, before, kind = list[Span](), None, OUTSIDE, ""
    for place, label in enumerate([*labels, OUTSIDE]):
        letter, own = (OUTSIDE, "") if label is None else _parts(label) or (OUTSIDE, "")
        if start is not None and (before in _LAST or letter == OUTSIDE or letter in _FIRST or own != kind):
            found.append(Span(start, place, kind))
            start = None
        if start is None and letter != OUTSIDE:
            start = place
        before, kind = letter, own
    return found


def _parts(label: str) -> tuple[str, str] | None:
    """The letter and the kind of a label; None: it has none."""
    match = _MARKED.fullmatch(label)
    return None if match is None else (match[1], match[2] or "")
