"""Text formats for rows of results."""

import csv
import io
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar, Literal, final

from fredholm.cli.json_text import json_text
from fredholm.tasks.objective import number_text

FormatName = Literal["table", "csv", "json"]
Row = Mapping[str, str | float]


class RowFormat(ABC):
    """Formats rows that arrive one after the other and have the same columns."""

    @abstractmethod
    def lines(self, row: Row) -> Iterator[str]:
        """Yields the lines for a further row."""

    def last_lines(self) -> Iterator[str]:
        """Yields the lines after the last row."""
        yield from ()


@final
class TableFormat(RowFormat):
    """A header, and cells separated by tabs; numbers by `number_text`, tabs and ends of lines in text escaped."""

    _ESCAPED: ClassVar = str.maketrans({"\t": "\\t", "\n": "\\n", "\r": "\\r"})

    def __init__(self) -> None:
        self._has_header = False

    def lines(self, row: Row) -> Iterator[str]:
        if not self._has_header:
            self._has_header = True
            yield self._line(row)
        yield self._line(number_text(value) if isinstance(value, float) else str(value) for value in row.values())

    def _line(self, cells: Iterable[str]) -> str:
        return "\t".join(cell.translate(self._ESCAPED) for cell in cells)


@final
class CsvFormat(RowFormat):
    """A header, and cells separated by commas; numbers at full precision."""

    def __init__(self) -> None:
        self._has_header = False

    def lines(self, row: Row) -> Iterator[str]:
        if not self._has_header:
            self._has_header = True
            yield self._line(row)
        yield self._line(row.values())

    def _line(self, cells: object) -> str:
        written = io.StringIO()
        csv.writer(written, lineterminator="").writerow(cells)  # pyright: ignore[reportArgumentType]
        return written.getvalue()


@final
class JsonFormat(RowFormat):
    """A list with one object per row."""

    def __init__(self) -> None:
        self._waiting: str | None = None
        self._start = "["

    def lines(self, row: Row) -> Iterator[str]:
        if self._waiting is not None:
            yield f"{self._start}{self._waiting},"
            self._start = " "
        self._waiting = json_text(row)

    def last_lines(self) -> Iterator[str]:
        yield "[]" if self._waiting is None else f"{self._start}{self._waiting}]"


FORMATS: dict[FormatName, type[RowFormat]] = {"table": TableFormat, "csv": CsvFormat, "json": JsonFormat}
