"""Tables as CSV text, also from binary files."""

import csv
import io
from collections.abc import Collection, Sequence
from pathlib import Path

from fredholm.tasks.text import read_text

from .arrow_table import PARQUET, check_pyarrow
from .data_files import open_file, size_of_file
from .limits import COUNTED, check_counted


def csv_text(path: Path) -> str:
    """Returns a table as CSV text: the rows of a .parquet file below a header, or the content of other files.

    Raises:
        ValueError: the file cannot be read, see `read_text`; or a .parquet file exceeds the limit of cells.
        ImportError: it is a .parquet file, and pyarrow is not installed.
    """
    return _of_parquet(path) if path.suffix.lower() == PARQUET else read_text(path)


def csv_fault(error: Exception) -> str:
    """Describes a malformed row, with advice where Python's message has none."""
    reason = str(error)
    if reason == "unexpected end of data":
        return "a quotation mark opens a cell and none closes it; close it, or double the mark within a cell"
    if reason.startswith("field larger than field limit"):
        return f"a cell is longer than {csv.field_size_limit():,} letters; cut it, or write the rows to a .jsonl file"
    return reason


def check_commas(names: Sequence[str], tabs: str = "tabs") -> None:
    """Raises a ValueError where the header of a .csv file is one cell that contains other separators.

    Args:
        names: cells of the header.
        tabs: description of tabs for the message.
    """
    for mark, separators in (("\t", tabs), (";", "semicolons")):
        if len(names) == 1 and mark in names[0]:
            raise ValueError(f"has one cell, {names[0].strip()!r}; expected commas between cells, not {separators}")


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


def _of_parquet(path: Path) -> str:
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
