"""Rows of a CSV, TSV, JSONL, Parquet or Arrow file, each cell with the name of its column."""

import datetime
import decimal
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

from fredholm.tasks.files.arrow_table import COLUMN_SUFFIXES, ArrowTable
from fredholm.tasks.files.dates import duration
from fredholm.tasks.files.delimited import DelimitedFile, Record
from fredholm.tasks.files.limits import COUNTED, check_counted
from fredholm.tasks.files.table_text import first_repeated
from fredholm.tasks.text import JSONL_SUFFIXES, json_lines

TABLE_SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", *JSONL_SUFFIXES, *COLUMN_SUFFIXES)


class Row(NamedTuple):
    """The line on which a row starts, counted from 1, and its cells by column.

    In .parquet and .arrow, which have no lines, `line` is the number of the row.
    """

    line: int
    cells: dict[str, str]


@final
@dataclass(frozen=True)
class Table:
    """All rows of a file.

    Args:
        path: the file.
        names: names of the columns; for JSONL those of the first row.
        rows: at least one row; rows of JSONL, Parquet or Arrow may lack columns.
    """

    path: Path
    names: tuple[str, ...]
    rows: list[Row]


def read_table(path: Path, columns: tuple[str, ...] = ()) -> Table:
    """Reads all rows of a file; arguments and errors are those of `TableFile`.

    Raises:
        ValueError: also where .parquet or .arrow have more cells than memory should hold.
    """
    file = TableFile(path, columns)
    file.check_cells()
    return Table(path, file.names, list(file.rows()))


@final
class TableFile:
    """A table whose rows are read one after the other; gzipped if its name ends in .gz.

    Marks between cells of .csv and .tsv, decimal marks and encodings are those of `DelimitedFile`, and `CsvSettings`
    name them where they do not show. Empty lines are skipped; in a table of one column, those between rows are rows
    with an empty cell. In .jsonl every line is an object; its texts, numbers and booleans are cells, and so are lists
    of them, with items joined by |. So they are in .parquet and .arrow (`ArrowTable`), where dates are cells in ISO
    8601, and times of day and durations are numbers of seconds. Whole numbers are equal cells, saved as integers or
    not.

    Args:
        path: the file.
        columns: names of the columns of a file without a header; (): its first line names them.

    Raises:
        ValueError: the file is of no known kind, cannot be read, is no UTF-8, has no rows or no names of columns, a
            line does not parse, or a row does not have one cell for each column. The message names file and line.
        ImportError: it is a .parquet or .arrow file, and pyarrow is not installed.
    """

    def __init__(self, path: Path, columns: tuple[str, ...] = ()) -> None:
        if not path.name.lower().endswith(TABLE_SUFFIXES):
            raise ValueError(f"{path}: is of no known kind; expected {', '.join(TABLE_SUFFIXES)}")
        self.path, self._columns = path, columns
        self._is_jsonl = path.name.lower().endswith(JSONL_SUFFIXES)
        self._arrow = ArrowTable(path) if path.name.lower().endswith(COLUMN_SUFFIXES) else None
        if columns and (self._is_jsonl or self._arrow is not None):
            raise ValueError(f"{path}: columns={columns} has no effect here, where columns have names; leave it out")
        self._delimited: DelimitedFile | None = None
        if self._arrow is not None:
            self.names: tuple[str, ...] = self._arrow.names
        elif self._is_jsonl:
            self.names = tuple(next(self.rows()).cells)
        else:
            self._delimited = DelimitedFile(path, columns)
            self.names = columns or _names(path, self._delimited.records())

    def rows(self, columns: Sequence[str] = ()) -> Iterator[Row]:
        """Yields the rows, at least one; errors are raised when reading reaches them.

        Args:
            columns: columns to read; (): all. A row may have others.
        """
        found = -1
        for found, row in enumerate(self._rows(columns)):  # noqa: B007 - whether there was one
            yield row
        if found < 0:
            has_header = self._delimited is not None and not self._columns
            where = " below its header" if has_header else ""
            raise ValueError(f"{self.path}: has no rows{where}; expected at least one")

    @property
    def form(self) -> tuple[str, ...]:
        """See `DelimitedFile.form`; () for other kinds of files."""
        return () if self._delimited is None else self._delimited.form

    def all_names(self) -> tuple[str, ...]:
        """Names of the columns of any row, even with an empty cell; for .jsonl, reads all lines."""
        if not self._is_jsonl:
            return self.names
        return tuple(dict.fromkeys(name for _, values in json_lines(self.path) for name in values))

    def check_cells(self) -> None:
        """Raises ValueError where a small .parquet or .arrow file has more cells than memory should hold."""
        if (table := self._arrow) is not None:
            cells, most = table.num_rows * len(table.names), max(COUNTED, table.num_bytes)
            check_counted(f"{self.path}: its cells", cells, "save it as .csv", most)

    def _rows(self, columns: Sequence[str]) -> Iterator[Row]:
        if self._arrow is not None:
            return read_rows(self._arrow, columns)
        if self._delimited is None:
            return _objects(json_lines(self.path))
        return _below_header(self._delimited, self._columns)


_EMPTY: tuple[list[str], ...] = ([], [""])
"""The cells of a line without a letter, and of one with an empty cell in quotation marks."""


def _names(path: Path, records: Iterator[Record]) -> tuple[str, ...]:
    """The names of the columns in the first line."""
    for line, cells in records:
        if cells in _EMPTY:
            continue
        names = tuple(cell.strip() for cell in cells)
        if (i := first_repeated(names)) is not None:
            raise ValueError(
                f"{path}, line {line}: column {names[i]!r} is there twice; where this is no header, name the columns "
                "(columns=)"
            )
        return names
    raise ValueError(f"{path}: has no rows; expected a header and rows below it")


def _below_header(file: DelimitedFile, columns: tuple[str, ...]) -> Iterator[Row]:
    path, records = file.path, file.records()
    names, is_first = columns or _names(path, records), True
    empty = list[int]()
    for line, cells in records:
        if cells == [] or (cells in _EMPTY and len(names) > 1):
            empty.append(line)
            continue
        if len(names) == 1:  # a skipped row would shift all later ones
            yield from (Row(each, {names[0]: ""}) for each in empty)
        empty.clear()
        if len(cells) != len(names):
            hint = "" if file.sep == "\t" else f" (quote a cell that has {file.sep!r})"
            raise ValueError(
                f"{path}, line {line}: has {len(cells)} cells; expected {len(names)}: {', '.join(names)}{hint}"
            )
        if columns and is_first and (named := [n for n, cell in zip(names, cells, strict=True) if n == cell]):
            raise ValueError(
                f"{path}, line {line}: has {named[0]!r} in the column {named[0]!r}: a header; leave columns= out"
            )
        is_first = False
        yield Row(line, dict(zip(names, cells, strict=True)))


def read_rows(table: ArrowTable, columns: Sequence[str] = ()) -> Iterator[Row]:
    """Yields the rows of a columnar table with these columns; (): all. Errors are those of `ArrowTable.rows`."""
    return _objects(enumerate(table.rows(columns), 1))


def _objects(found: Iterable[tuple[int, dict[str, Any]]]) -> Iterator[Row]:
    """Yields rows from their lines and their values by column."""
    for line, values in found:
        cells = {name: _cell(value) for name, value in values.items()}
        yield Row(line, {name: cell for name, cell in cells.items() if cell is not None})


def _cell(value: object) -> str | None:
    """The text of a value; None: it has none."""
    if isinstance(value, list):
        items = [_cell(item) for item in value if not isinstance(item, list)]
        whole = [item for item in items if item and "|" not in item]
        return "|".join(whole) if len(whole) == len(value) else None
    if isinstance(value, str):
        return value
    if isinstance(value, datetime.date):  # also a datetime
        return value.isoformat()
    if isinstance(value, datetime.time | datetime.timedelta):
        value = duration(value)
    if isinstance(value, float) and math.isnan(value):  # a missing value of NumPy and pandas
        return None
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))  # pandas turns integers with missing values into floats
    if isinstance(value, decimal.Decimal):
        return str(value)
    return json.dumps(value) if isinstance(value, int | float) else None
