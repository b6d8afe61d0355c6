"""Rows of results as lines of text."""

import csv
import io
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar, Literal, final

from fredholm.cli.json_text import json_text

FormatName = Literal["table", "csv", "json"]
Row = Mapping[str, str | float]


class RowFormat(ABC):
    """Lines of rows that come one after the other and have the same columns."""

    @abstractmethod
    def lines(self, row: Row) -> Iterator[str]:
        """What is written once there is a further row."""

    def last_lines(self) -> Iterator[str]:
        """What is written once there are no more."""
        yield from ()


@final
class TableFormat(RowFormat):
    """A header, and cells with tabs between them; numbers to four decimals, tabs and ends of lines in text escaped."""

    _ESCAPED: ClassVar = str.maketrans({"\t": "\\t", "\n": "\\n", "\r": "\\r"})

    def __init__(self) -> None:
        self._has_header = False

    def lines(self, row: Row) -> Iterator[str]:
        if not self._has_header:
            self._has_header = True
            yield self._line(row)
        yield self._line(f"{value:.4f}" if isinstance(value, float) else str(value) for value in row.values())

    def _line(self, cells: Iterable[str]) -> str:
        return "\t".join(cell.translate(self._ESCAPED) for cell in cells)


@final
class CsvFormat(RowFormat):
    """A header, and cells with commas between them; numbers whole."""

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
    """A list of objects, one a row."""

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
