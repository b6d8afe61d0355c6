"""Parts of reading tables as CSV text: faults of rows, names of columns, text of binary files."""

import csv
import io
from collections.abc import Collection, Sequence
from pathlib import Path

from .arrow_table import check_pyarrow
from .data_files import open_file, size_of_file
from .limits import COUNTED, check_counted


def csv_fault(error: Exception) -> str:
    """Describes a malformed row, with advice where Python's message has none."""
    reason = str(error)
    if reason.endswith("expected after '\"'"):
        return f"{reason}: a cell in quotation marks goes on behind them; double each mark within a cell"
    if reason == "unexpected end of data":
        return "a quotation mark opens a cell and none closes it; close it, or double the mark within a cell"
    if reason.startswith("field larger than field limit"):
        return f"a cell is longer than {csv.field_size_limit():,} letters; cut it, or write the rows to a .jsonl file"
    return reason


def first_repeated(names: Sequence[str]) -> int | None:
    """Returns the position of the first repeated name; None where all differ."""
    seen: set[str] = set()
    for i, name in enumerate(names):
        if name in seen:
            return i
        seen.add(name)
    return None


def columns_by_word(names: Sequence[str], usual: Collection[str]) -> dict[str, str]:
    """Maps column names to words: usual ones in lower case, all others unchanged.

    Raises:
        ValueError: two columns have the same word.
    """
    found: dict[str, str] = {}
    for name in names:
        word = name.lower() if name.lower() in usual else name
        if word in found:
            raise ValueError(f"line 1: columns {found[word]!r} and {name!r} are one; keep one")
        found[word] = name
    return found


def parquet_as_csv(path: Path) -> str:
    """Returns the rows of a .parquet file as CSV text below a header.

    Raises:
        ValueError: the file cannot be read, or exceeds the limit of cells.
        ImportError: pyarrow is not installed.
    """
    check_pyarrow(path)
    import pyarrow
    import pyarrow.csv
    import pyarrow.parquet

    written = io.BytesIO()
    try:
        with open_file(path) as file:
            source, given = pyarrow.parquet.ParquetFile(file), size_of_file(file)
            cells = source.metadata.num_rows * source.metadata.num_columns
            check_counted(f"{path}: its cells", cells, "save it as .csv", max(COUNTED, given))
            pyarrow.csv.write_csv(source.read(), written)
    except (pyarrow.ArrowException, OSError) as error:
        message = " ".join(str(error).split())
        raise ValueError(f"{path}: cannot be read as a table in .parquet ({message}); save it as .csv") from error
    return written.getvalue().decode()
