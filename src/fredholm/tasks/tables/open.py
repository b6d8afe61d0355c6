"""Tables as sets of rows: a file, a folder, or files that share the start of their names."""

import difflib
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import final

from fredholm.tasks.files.cells import MISSING, is_number, parse_number
from fredholm.tasks.files.data_files import data_path
from fredholm.tasks.files.read_errors import reads_data
from fredholm.tasks.sentences.columns import LABELS
from fredholm.tasks.sentences.table import TABLE_SUFFIXES, TableFile
from fredholm.tasks.splits.split_files import SPLITS, Split, find_split_files
from fredholm.tasks.splits.split_marks import MARKS, marks_of_cells
from fredholm.tasks.splits.splits import Splits
from fredholm.tasks.splits.weights import weights_of_cells
from fredholm.tasks.targets import Kind, answers_of_cells
from fredholm.tasks.targets.reading import MOST_CLASSES
from fredholm.tasks.text.tokenizer import utf8

from .table_set import Rows, TableSet


@reads_data
def open_table(
    data: str | Path,
    *,
    label_columns: tuple[str, ...] = (),
    ignore: tuple[str, ...] = (),
    weights: str | None = None,
    columns: tuple[str, ...] = (),
    kind: Kind | None = None,
) -> Splits[TableSet]:
    """Open a table with its splits, or all rows as one set.

    Splits follow from the names of files or, if these name none, from a column `split`. Columns `group` and `time` also
    determine how rows are divided (see `marks_of_cells`). A model reads all other columns.

    Args:
        data: a file (`TableFile`), a folder of them, or the start of the names of files with splits
            (`find_split_files`).
        label_columns: columns to predict; (): the first column with a usual name, such as label.
        ignore: columns that are not read.
        weights: column of the weights of rows; rows of weight 0 are left out. Files of a held-out split may lack it.
            None: rows have no weights.
        columns: names of all columns of files without a header.
        kind: kind of the answers; None: inferred from the cells of the training set (`answers_of_cells`), where more
            than MOST_CLASSES different whole numbers are numbers.

    Raises:
        ValueError: there is no such file, a column is missing or has two roles, or `TableFile`, `answers_of_cells` or
            `marks_of_cells` refuses the data. The message names file and line.
        ImportError: the file is .parquet or .arrow, and pyarrow is not installed.
    """
    path = data_path(data)
    found = find_split_files(path, TABLE_SUFFIXES, what="table", example=".csv", may_be_alone=True)
    tables: dict[Split, list[TableFile]] = {
        split: [TableFile(file, columns) for file in files] for split, files in found.parts.items()
    }
    first = tables["train"][0]
    names = tuple(dict.fromkeys(name for table in tables["train"] for name in table.all_names()))
    try:
        labels = _labels(names, label_columns)
        for name in ignore:
            _present(name, names, "to ignore (ignore=)")
            if name in labels:
                raise ValueError(f"column {name!r} is both to be predicted and ignored; leave it out of one of them")
        if weights is not None:
            _present(weights, names, "of weights (weights=, or None without any)")
            roles = {"to be predicted": labels, "ignored": ignore, "a mark of rows": _marks_of(names)}
            for role, own in roles.items():
                if weights in own:
                    raise ValueError(f"column {weights!r} is both {role} and one of weights; give weights their own")
    except ValueError as error:
        raise ValueError(f"{first.path}: {error}") from error
    if place := [name for name in labels if name in ("file", "line")]:
        raise ValueError(
            f"{first.path}: predictions have a column {place[0]!r} for the row's place; rename this column to predict "
            "it"
        )
    taken = {*labels, *ignore, *_marks_of(names), weights}
    features = tuple(name for name in names if name not in taken)
    if not features:
        raise ValueError(f"{first.path}: no column is left to read beside what to predict ({', '.join(labels)})")
    parts: dict[Split, TableSet] = {}
    for split in SPLITS:
        if split in tables:
            train = parts.get("train")
            parts[split] = _table_set(tables[split], features, labels, kind, train, weights)
    if found.by_split:
        return Splits(parts["train"], parts.get("test"), parts.get("valid"))
    whole = parts["train"]
    try:
        return whole.marks.divided(whole)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


@reads_data
def read_rows_of(path: Path, features: Sequence[str], columns: tuple[str, ...] = ()) -> Rows:
    """Reads some columns of one file, which may have others.

    Raises:
        ValueError: the file is refused by `TableFile`, or lacks a column.
    """
    return _Reading([TableFile(path, columns)], features).rows


def _table_set(
    tables: list[TableFile],
    features: tuple[str, ...],
    labels: tuple[str, ...],
    kind: Kind | None,
    train: TableSet | None,
    weights: str | None,
) -> TableSet:
    marks = {name.lower(): name for table in tables for name in reversed(_marks_of(table.names))}
    if train is not None and not any(weights in table.all_names() for table in tables):
        weights = None
    read = _Reading(tables, features, (*labels, *marks.values(), *(() if weights is None else (weights,))))
    given = None
    if weights is not None:
        given = weights_of_cells(read.others[weights], lambda i: read.rows.place(i, weights))
        read.select(given.nonzero()[:, 0].tolist())
    cells = {name: read.others[name] for name in labels}
    if train is not None:
        answers = answers_of_cells(cells, train.answers.kind, read.rows.place, train.answers.names)
    else:
        answers = answers_of_cells(cells, kind or _numbers_beyond_classes(cells), read.rows.place)
    of_marks = {word: read.others[name] for word, name in marks.items()}
    found = marks_of_cells(of_marks, read.rows.place)
    if given is not None:
        found = replace(found, weights=given[given > 0])
    return TableSet(rows=read.rows, answers=answers, marks=found)


def _marks_of(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name.lower() in MARKS)


@final
class _Reading:
    """The cells of several tables, by column; cells that a row lacks are empty."""

    def __init__(self, tables: Sequence[TableFile], features: Sequence[str], others: Sequence[str] = ()) -> None:
        cells: dict[str, list[str]] = {name: [] for name in (*features, *others)}
        places: list[tuple[Path, int]] = []
        for table in tables:
            table.check_cells()
            names = table.all_names()
            for name in cells:
                _present(name, names, f"in {table.path}")
            for row in table.rows(list(cells)):
                places.append((table.path, row.line))
                for name, column in cells.items():
                    cell = row.cells.get(name, "").strip()
                    try:
                        utf8(name)
                        utf8(cell)
                    except ValueError as error:
                        raise ValueError(f"{table.path}, line {row.line}: column {name!r}: {error}") from error
                    column.append(sys.intern(cell))
        self.rows = Rows(cells={name: cells[name] for name in features}, places=places)
        self.others = {name: cells[name] for name in others}

    def select(self, numbers: Sequence[int]) -> None:
        """Keeps the rows at these indices, in this order."""
        self.rows = self.rows.select(numbers)
        self.others = {name: [column[i] for i in numbers] for name, column in self.others.items()}


def _labels(names: Sequence[str], wanted: tuple[str, ...]) -> tuple[str, ...]:
    if wanted:
        for name in wanted:
            _present(name, names, "to predict (label_columns=)")
        return wanted
    by_word = {name.lower(): name for name in reversed(names)}
    usual = [by_word[word] for word in LABELS if word in by_word]
    if not usual:
        raise ValueError(
            f"no column has a usual name of what to predict ({', '.join(LABELS)}); the columns are "
            f"{', '.join(names)}: name one (label_columns=), or all where the file has no header (columns=)"
        )
    return (usual[0],)


def _present(name: str, names: Sequence[str], what: str) -> None:
    if name not in names:
        close = difflib.get_close_matches(name, names, n=3)
        hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"the columns are {', '.join(names)}"
        if not close and any(map(is_number, names)):  # a first row with numbers
            hint += ": if the file has no header, name all columns (columns=)"
        raise ValueError(f"no column {name!r} {what}; {hint}")


def _numbers_beyond_classes(cells: dict[str, list[str]]) -> Kind | None:
    """Returns "number" for a column of more than MOST_CLASSES different whole numbers, otherwise None."""
    if len(cells) > 1:
        return None
    [column] = cells.values()
    known = {cell for cell in column if cell.lower() not in MISSING}
    if len(known) <= MOST_CLASSES:
        return None
    try:
        return "number" if all(parse_number(cell).is_integer() for cell in known) else None
    except ValueError:
        return None
