"""Rows of a table, whose columns are numbers, dates, categories, texts and images, with what to predict of each."""

from .columns import Column, ColumnKind, learn_columns
from .open import open_table, read_rows_of
from .table_set import TableSet

__all__ = ["Column", "ColumnKind", "TableSet", "learn_columns", "open_table", "read_rows_of"]
