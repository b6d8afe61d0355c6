"""Rows of a CSV, TSV, JSONL, Parquet or Arrow file, each cell with the name of its column."""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

from fredholm.tasks.files.arrow_table import COLUMN_SUFFIXES, ArrowTable
from fredholm.tasks.files.limits import COUNTED, check_counted
from fredholm.tasks.files.table_text import first_twice
from fredholm.tasks.text import JSONL_SUFFIXES, json_lines, read_text

TABLE_SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", *JSONL_SUFFIXES, *COLUMN_SUFFIXES)


class Row(NamedTuple):
    """The line on which a row starts, counted from 1, and its cells by column.

    Where there are no lines, in .parquet and .arrow, it is the number of the row.
    """

    line: int
    cells: dict[str, str]


@final
@dataclass(frozen=True)
class Table:
    """What a file holds.

    Args:
        path: the file.
        names: the columns'; of JSONL those of the first row.
        rows: at least one; one of JSONL, Parquet or Arrow may lack columns.
    """

    path: Path
    names: tuple[str, ...]
    rows: list[Row]


def read_table(path: Path, columns: tuple[str, ...] = ()) -> Table:
    """Read a table, UTF-8; gzipped if its name ends in .gz.

    In .csv cells have commas between them and may be quoted; in .tsv they have tabs between them, and a quotation mark
    is one. Empty lines are left out. In .jsonl every line is an object; its texts, numbers and truth values are cells,
    and so are lists of them, whose items have | between; likewise in .parquet and .arrow (`ArrowTable`).

    Args:
        path: the file.
        columns: their names, where the file has no header; (): its first line has them.

    Raises:
        ValueError: the file is of no known kind, cannot be read, is no UTF-8, has no rows or no names of columns, a
            line does not parse, or a row has not as many cells as there are columns. The message names file and line.
        ImportError: it is a .parquet or .arrow file, and pyarrow is not installed.
    """
    if not path.name.endswith(TABLE_SUFFIXES):
        raise ValueError(f"{path}: is of no known kind; expected {', '.join(TABLE_SUFFIXES)}")
    has_names = path.name.endswith((*JSONL_SUFFIXES, *COLUMN_SUFFIXES))
    if has_names and columns:
        raise ValueError(f"{path}: columns={columns} has no effect here, where columns have names; leave it out")
    if path.name.endswith(JSONL_SUFFIXES):
        rows = _objects(json_lines(path))
        names = tuple(rows[0].cells) if rows else ()
    elif has_names:
        table = ArrowTable(path)
        most = max(COUNTED, table.num_bytes)
        check_counted(f"{path}: its cells", table.num_rows * len(table.names), "save it as .csv", most)
        rows, names = read_rows(table), table.names
    else:
        kind = Path(path.name.removesuffix(".gz")).suffix
        names, rows = _cells(path, read_text(path), columns, is_csv=kind != ".tsv")
    if not rows:
        raise ValueError(
            f"{path}: has no rows{'' if columns or has_names else ' below its header'}; expected at least one"
        )
    return Table(path, names, rows)


def read_rows(table: ArrowTable, columns: Sequence[str] = ()) -> list[Row]:
    """The rows of a table in columns, with those of these names; (): all. Errors are those of `ArrowTable.rows`."""
    return _objects(enumerate(table.rows(columns), 1))


def _cells(path: Path, text: str, columns: tuple[str, ...], *, is_csv: bool) -> tuple[tuple[str, ...], list[Row]]:
    quoting = csv.QUOTE_MINIMAL if is_csv else csv.QUOTE_NONE
    reader = csv.reader(io.StringIO(text, newline=""), delimiter="," if is_csv else "\t", quoting=quoting, strict=True)
    rows: list[Row] = []
    names, line = columns, 1
    try:
        for cells in reader:
            if len(cells) < 2 and not "".join(cells).strip():
                pass  # an empty line
            elif not names:
                names = _header(cells)
            elif len(cells) != len(names):
                raise ValueError(
                    f"has {len(cells)} cells; expected {len(names)}: {', '.join(names)}"
                    + (" (quote a cell that has a comma)" if is_csv else "")
                )
            elif columns and not rows and (named := [n for n, cell in zip(names, cells, strict=True) if n == cell]):
                raise ValueError(f"has {named[0]!r} in the column {named[0]!r}: a header; leave columns= out")
            else:
                rows.append(Row(line, dict(zip(names, cells, strict=True))))
            line = reader.line_num + 1
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path}, line {line}: {error}") from error
    return names, rows


def _header(cells: list[str]) -> tuple[str, ...]:
    names = tuple(cell.strip() for cell in cells)
    if (i := first_twice(names)) is not None:
        raise ValueError(f"column {names[i]!r} is there twice; where this is no header, name the columns (columns=)")
    return names


def _objects(found: Iterable[tuple[int, dict[str, Any]]]) -> list[Row]:
    """Rows of values by column, each with where it stands."""
    rows = list[Row]()
    for line, values in found:
        cells = {name: _cell(value) for name, value in values.items()}
        rows.append(Row(line, {name: cell for name, cell in cells.items() if cell is not None}))
    return rows


def _cell(value: object) -> str | None:
    """The text of a value; None: it has none."""
    if isinstance(value, list):
        items = [_cell(item) for item in value if not isinstance(item, list)]
        whole = [item for item in items if item and "|" not in item]
        return "|".join(whole) if len(whole) == len(value) else None
    if isinstance(value, str):
        return value
    return json.dumps(value) if isinstance(value, int | float) else None
