"""Sentences and pairs of them, as the rows of a table have them."""

from dataclasses import dataclass
from pathlib import Path
from typing import final

from fredholm.tasks.files.read_errors import reads_data
from fredholm.tasks.splits.split_marks import MARKS

from .columns import Columns
from .table import Row, Table, read_table


@final
@dataclass(frozen=True)
class Sentence:
    """A sentence or pair, the cells of its labels if it has some, and where it stands."""

    first: str
    second: str | None
    labels: tuple[str, ...] | None
    path: Path
    line: int
    marks: tuple[tuple[str, str], ...] = ()
    """The cells of those of `MARKS` that the table has, with their columns' names."""


@reads_data
def read_sentences(path: Path, columns: Columns, names: tuple[str, ...] = ()) -> list[Sentence]:
    """The sentences of one file, whose labels may be absent; see `read_table` for `names`.

    Raises:
        ValueError: what `read_table` refuses; a column of sentences is not there, or a text is empty.
    """
    return sentences_of(read_table(path, names), columns)


def sentences_of(table: Table, columns: Columns, *, need_labels: bool = False) -> list[Sentence]:
    """The sentences of a table.

    Raises:
        ValueError: likewise; or a label is not there where labels are needed.
    """
    needed = [columns.text] + ([columns.second] if columns.second is not None else [])
    for name in needed + (list(columns.labels) if need_labels else []):
        if name not in table.names:
            raise ValueError(f"{table.path}: has no column {name!r}; the columns are {', '.join(table.names)}")
    has_labels = all(name in table.names for name in columns.labels)
    marks = {name.lower(): name for name in reversed(table.names) if name.lower() in MARKS}
    return [
        Sentence(
            _text(table, row, columns.text),
            None if columns.second is None else _text(table, row, columns.second),
            tuple(_cell(table, row, name).strip() for name in columns.labels) if has_labels else None,
            table.path,
            row.line,
            tuple((word, _cell(table, row, name)) for word, name in marks.items()) if need_labels else (),
        )
        for row in table.rows
    ]


def _text(table: Table, row: Row, column: str) -> str:
    text = _cell(table, row, column)
    if not text.strip():
        raise ValueError(f"{table.path}, line {row.line}: column {column!r}: the text is empty; leave the row out")
    return text


def _cell(table: Table, row: Row, column: str) -> str:
    if column not in row.cells:
        raise ValueError(f"{table.path}, line {row.line}: has no text or number {column!r}; give each row one")
    return row.cells[column]
