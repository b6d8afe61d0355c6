"""Labelled sentences and pairs of them, in tables."""

from .columns import Columns, choose_columns
from .open import OpenedSentences, open_sentences
from .sentence import Sentence, SentenceCells, Sentences, read_sentences
from .sentence_set import SentenceSet, with_answers
from .table import Table, TableFile, read_table

__all__ = [
    "Columns",
    "OpenedSentences",
    "Sentence",
    "SentenceCells",
    "SentenceSet",
    "Sentences",
    "Table",
    "TableFile",
    "choose_columns",
    "open_sentences",
    "read_sentences",
    "read_table",
    "with_answers",
]
