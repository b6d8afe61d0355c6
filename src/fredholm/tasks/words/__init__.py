"""Sentences of words with a label for each."""

from .spans import Span, mark_spans, spans_of
from .word_file import LabelledWords, WordColumns, read_words
from .word_set import WordSet, open_words

__all__ = ["LabelledWords", "Span", "WordColumns", "WordSet", "mark_spans", "open_words", "read_words", "spans_of"]
