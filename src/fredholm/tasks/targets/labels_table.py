"""A table, labels.csv, with the targets of the files in a folder."""

import warnings
from pathlib import Path
from typing import NamedTuple, final

from fredholm.tasks.files.class_folders import files_of_kinds
from fredholm.tasks.files.table_text import columns_by_word
from fredholm.tasks.sentences.table import Table, read_table
from fredholm.tasks.splits.split_marks import MARKS, SplitMarks, marks_of_cells

from .reading import answers_of_cells
from .target import Answers, Kind

TABLE = "labels.csv"
_FILE, _LABEL = "file", "label"
_USUAL = (_FILE, _LABEL, *MARKS)


@final
class LabelledFiles(NamedTuple):
    """Content of the table."""

    files: list[Path]
    answers: Answers
    """Target of each file."""
    marks: SplitMarks


def labelled_files(root: Path, what: str, kind: Kind | None = None, *, instead: str = "") -> LabelledFiles:
    """Reads the table of a folder; column names may be in any case.

    `file` is the path of a file relative to the folder, without `..`. `label` is its class, a number, or its labels
    separated by `|`; or else all other columns are numbers, or labels of 0 and 1 (see `answers_of_cells`). The columns
    `split`, `group` and `time` are optional (see `marks_of_cells`).

    Args:
        root: the folder.
        what: noun for a file, such as image, for messages.
        kind: kind of the target; None: inferred from the cells.
        instead: the task that reads other columns beside such files, for messages.

    Raises:
        ValueError: a column or a cell is missing, a file is missing, outside the folder or repeated, there are other
            columns beside `label`, or as of `answers_of_cells` and `marks_of_cells`. The message names table and line.
    """
    table = read_table(root / TABLE)
    try:
        files = _files(root, table, what)
        answers, marks = _known(table, kind, instead)
    except ValueError as error:
        raise ValueError(f"{table.path}: {error}") from error
    return LabelledFiles(files, answers, marks)


def warn_of_unnamed(root: Path, named: list[Path], suffixes: tuple[str, ...], what: str) -> None:
    """Warns of files with these suffixes in a folder that its table does not name."""
    if unnamed := len(set(files_of_kinds(root, suffixes)) - set(named)):
        left_out = f"{unnamed} {what}{'s' * (unnamed > 1)}"
        warnings.warn(f"{root}: left out {left_out} that {TABLE} does not name", stacklevel=4)


def _known(table: Table, kind: Kind | None, instead: str) -> tuple[Answers, SplitMarks]:
    """Returns the targets and marks of the files."""
    columns = columns_by_word(table.names, _USUAL)
    others = [word for word in columns if word not in _USUAL]
    if _LABEL in columns and others:
        raise ValueError(
            f"line 1: has the column {others[0]!r} beside 'label'; leave one of them out (file, split, group and time "
            f"may stay){instead and f', or {instead}'}"
        )
    if _LABEL not in columns and not others:
        raise ValueError("line 1: no column 'label', and no columns of numbers or labels")

    def cells(word: str) -> list[str]:
        return [row.cells[columns[word]] for row in table.rows]

    def place(i: int, name: str) -> str:
        return f"line {table.rows[i].line}: column {columns.get(name, name)!r}"

    answers = {columns[word]: cells(word) for word in ([_LABEL] if _LABEL in columns else others)}
    marks = marks_of_cells({word: cells(word) for word in MARKS if word in columns}, place)
    return answers_of_cells(answers, kind, place), marks


def _files(root: Path, table: Table, what: str) -> list[Path]:
    columns = columns_by_word(table.names, _USUAL)
    if _FILE not in columns:
        raise ValueError(f"line 1: no column 'file'; the columns are {', '.join(table.names)}")
    found: dict[Path, int] = {}
    for row in table.rows:
        name = row.cells[columns[_FILE]].strip()
        if not name:
            raise ValueError(f"line {row.line}: column 'file': is empty; expected where below {root} the {what} lies")
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ValueError(f"line {row.line}: {name!r} is no path below {root}; write it from there, without '..'")
        if not (root / name).is_file():
            raise ValueError(f"line {row.line}: there is no {what} {name!r} below {root}")
        if root / name in found:
            raise ValueError(f"line {row.line}: {name!r} is also in line {found[root / name]}; keep one of them")
        found[root / name] = row.line
    return list(found)
