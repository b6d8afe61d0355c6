"""Labelled sentences and pairs of them: CSV, TSV and JSONL files."""

from .columns import Columns, choose_columns
from .open import SentenceSplits, open_sentences
from .sentence import Sentence, read_sentences
from .sentence_set import SentenceSet
from .table import Table, read_table

__all__ = [
    "Columns",
    "Sentence",
    "SentenceSet",
    "SentenceSplits",
    "Table",
    "choose_columns",
    "open_sentences",
    "read_sentences",
    "read_table",
]
