"""Labelled sentences and pairs of them: CSV, TSV and JSONL files."""

from .columns import Columns, choose_columns
from .open import OpenedSentences, open_sentences
from .sentence import Sentence, read_sentences
from .sentence_set import SentenceSet, with_answers
from .table import Table, read_table

__all__ = [
    "Columns",
    "OpenedSentences",
    "Sentence",
    "SentenceSet",
    "Table",
    "choose_columns",
    "open_sentences",
    "read_sentences",
    "read_table",
    "with_answers",
]
