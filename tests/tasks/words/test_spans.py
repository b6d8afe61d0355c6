import math

import pytest

from fredholm.tasks.words.span_scores import SpanScore
from fredholm.tasks.words.spans import SPAN_SCORES, Span, mark_spans, spans_of

CASES: dict[str, list[tuple[int, int, str]]] = {
    "O O": [],
    "B-a I-a O B-b": [(0, 2, "a"), (3, 4, "b")],
    "B-a B-a I-a": [(0, 1, "a"), (1, 3, "a")],
    "O I-a I-a": [(1, 3, "a")],  # I after O begins a span
    "I-a I-b": [(0, 1, "a"), (1, 2, "b")],  # another kind begins one
    "B-a I-b I-b": [(0, 1, "a"), (1, 3, "b")],
    "I-a O I-a": [(0, 1, "a"), (2, 3, "a")],
    "B-a I-a E-a S-b": [(0, 3, "a"), (3, 4, "b")],
    "S-a S-a": [(0, 1, "a"), (1, 2, "a")],
    "E-a I-a": [(0, 1, "a"), (1, 2, "a")],  # E ends a span, also alone
    "B-a S-a": [(0, 1, "a"), (1, 2, "a")],
    "B-a L-a U-b": [(0, 2, "a"), (2, 3, "b")],
    "B I O B": [(0, 2, ""), (3, 4, "")],
    "B-a-b I-a-b": [(0, 2, "a-b")],
}


@pytest.mark.parametrize("labels", CASES)
def test_labels_mark_spans_as_conlleval_reads_them(labels: str) -> None:
    assert spans_of(labels.split()) == [Span(*each) for each in CASES[labels]]


def test_a_label_that_is_not_known_is_in_no_span() -> None:
    assert spans_of(["B-a", None, "I-a"]) == [Span(0, 1, "a"), Span(2, 3, "a")]


def test_names_of_labels_tell_whether_they_mark_spans() -> None:
    assert mark_spans(["O", "B-x", "I-x"])
    assert mark_spans(["I-x", "O"])
    assert mark_spans(["B", "I", "O"])
    for names in (["O", "NOUN"], ["O"], ["B-x", "I-x", "NOUN"], ["E-x", "O"], ["0", "1"]):
        assert not mark_spans(names)


def test_scores_are_of_counted_spans() -> None:
    """Of three predicted spans one is right, of two true ones: the other has the wrong kind, or an end too early."""
    scores = {name: SpanScore(name) for name in SPAN_SCORES}
    for score in scores.values():
        score.update(["B-a", "I-a", "O", "B-b"], ["B-a", "I-a", "O", "B-c"])
        score.update(["O", "B-a", "O"], ["O", "O", "O"])
    found = [float(scores[name].compute()) for name in ("span_precision", "span_recall", "span_f1")]
    assert found == pytest.approx([1 / 3, 1 / 2, 2 / 5])


def test_scores_without_spans() -> None:
    for name in SPAN_SCORES:
        score = SpanScore(name)
        score.update(["O"], ["O"])
        assert math.isnan(float(score.compute()))
        score.update(["O"], ["B-a"])
        assert float(score.compute()) == 0
