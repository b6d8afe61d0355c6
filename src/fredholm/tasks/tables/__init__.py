"""Tables with columns of numbers, dates, categories, texts, images and series, and targets of each row."""

from .columns import Column, ColumnKind, learn_columns
from .open import open_table, read_rows_of
from .table_set import TableSet

__all__ = ["Column", "ColumnKind", "TableSet", "learn_columns", "open_table", "read_rows_of"]
