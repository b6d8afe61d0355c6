"""Text tables with a mark between cells: opened here for every task, however they are written.

The mark between cells is found in each file, and so is the decimal mark of each column of numbers, unless
`CsvSettings` name them. Cells are returned with points before decimals and nothing between thousands.
"""

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple, final

from fredholm.tasks.text.read import text_chunks

from .arrow_table import PARQUET
from .cells import MISSING
from .table_text import csv_fault, parquet_as_csv

Sep = Literal["comma", "semicolon", "tab", "pipe"]
Decimal = Literal["point", "comma"]
MARKS: dict[Sep, str] = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|"}
_FIRST_ROWS = 100
"""Rows by which the mark between cells is found."""
_OF_MARKS: dict[Decimal, tuple[str, str]] = {"point": (".", ","), "comma": (",", ".")}
"""Marks before decimals and between thousands."""
_NUMBER = {
    decimal: re.compile(
        rf"[-+]?(?:(?:\d+[{point}]?\d*|[{point}]\d+)(?:[eE][-+]?\d+)?|[1-9]\d{{0,2}}(?:[{comma}]\d{{3}})+(?:[{point}]\d*)?)"
    )
    for decimal, (point, comma) in _OF_MARKS.items()
}
"""Numbers with each decimal mark, with thousands grouped or not."""


@final
@dataclass(frozen=True, kw_only=True)
class CsvSettings:
    """How .csv files are written, where it does not show.

    Args:
        sep: mark between cells: comma, semicolon, tab or pipe. None: the one that divides the header and the first rows
            into as many cells.
        decimal: mark before decimals, point or comma; the other one may group thousands. A column is read so where
            all its cells are such numbers, and as it is written elsewhere. None: with commas between cells, a point;
            else the mark that the cells of each column leave no doubt about, or those of the other columns.
        encoding: encoding of the text, such as cp1252 or latin-1. None: UTF-8, or what a byte order mark says.

    Raises:
        ValueError: a value is none of these, or the encoding is not known.
    """

    sep: Sep | None = None
    decimal: Decimal | None = None
    encoding: str | None = None

    def __post_init__(self) -> None:
        for name, value, known in (("sep", self.sep, MARKS), ("decimal", self.decimal, _OF_MARKS)):
            if value is not None and value not in known:
                raise ValueError(f"csv: {name}={value!r} is none of {', '.join(known)}; pass one of these words")
        if self.encoding is not None:
            try:
                "".encode(self.encoding)
            except LookupError:
                raise ValueError(
                    f"csv: encoding={self.encoding!r} is no known encoding of text; pass one such as cp1252, latin-1 "
                    "or utf-16"
                ) from None

    @contextmanager
    def reading(self, data: str | Path) -> Iterator[None]:
        """Reads every .csv file of this thread with these settings until the end of the block.

        Args:
            data: the data, for messages.

        Raises:
            ValueError: at the end, a setting was given and no .csv file was read.
        """
        with self.reading_any() as current:
            yield
        given = [f"csv.{each.name}={getattr(self, each.name)!r}" for each in fields(self) if getattr(self, each.name)]
        if given and not current.is_read:
            raise ValueError(f"{given[0]} has no effect on {data}, which has no .csv file; leave it out")

    @contextmanager
    def reading_any(self) -> "Iterator[_Current]":
        """Likewise, also where no .csv file is read."""
        current = _Current(self)
        token = _CURRENT.set(current)
        try:
            yield current
        finally:
            _CURRENT.reset(token)


AS_FOUND = CsvSettings()
"""What a file leaves open is found in it."""


@final
@dataclass
class _Current:
    settings: CsvSettings
    is_read: bool = False


_CURRENT: ContextVar[_Current | None] = ContextVar("csv_settings", default=None)


class Record(NamedTuple):
    """The line on which a row of cells starts, counted from 1, and its cells; none for an empty line."""

    line: int
    cells: list[str]


NO_RECORD = Record(1, [])
"""Stands for the header of a file without rows."""


@final
class DelimitedFile:
    """Cells of a .csv or .tsv file, gzipped if its name ends in .gz, or of a .parquet file as text below a header.

    In .csv, cells may be quoted. In .tsv tabs are between cells, and quotation marks are part of a cell.

    Args:
        path: the file.
        columns: names of the columns of a file without a header; (): its first line names them.

    Raises:
        ValueError: a setting has no effect on this kind of file.
    """

    def __init__(self, path: Path, columns: Sequence[str] = ()) -> None:
        self.path, self._columns, self._line = path, columns, 1
        name = path.name.lower().removesuffix(".gz")
        self._is_tsv, self._is_parquet = name.endswith(".tsv"), name.endswith(PARQUET)
        current = _CURRENT.get() or _Current(AS_FOUND)
        self.settings = current.settings
        current.is_read |= not self._is_parquet
        if self._is_tsv and self.settings.sep is not None:
            raise ValueError(f"{path}: csv.sep has no effect on .tsv, where tabs are between cells; leave it out")

    def records(self) -> Iterator[Record]:
        """Yields the rows of cells from the header on; errors are raised when reading reaches them.

        Raises:
            ValueError: the file cannot be read or decoded, quotation marks are amiss, or it is ambiguous which mark is
                between cells, or before the decimals of a column. The message names file and line.
        """
        decimals, header = self._decimals, list[str]()
        for line, cells in self._divided(self.sep):
            self._line = line
            if not self._columns and not any(header):
                if not cells:
                    continue
                header = cells
            else:
                for i, decimal in decimals.items():
                    if i < len(cells):
                        cells[i] = _plain(cells[i], decimal)
                if len(cells) > 1 and cells == header:
                    raise ValueError(f"{self.path}, line {line}: repeats the header; leave the line out")
            if len(header) > 1 and not header[-1].strip() and len(cells) == len(header):  # each line ends with a mark
                if cells[-1].strip():
                    raise ValueError(f"{self.path}, line {line}: the last column has no name; give it one")
                cells = cells[:-1]
            yield Record(line, cells)

    @property
    def form(self) -> tuple[str, ...]:
        """What distinguishes this reading of the file from others: marks and encoding, as given or found."""
        return tuple(map(str, (self.sep, self.settings.decimal, self.settings.encoding)))

    @contextmanager
    def naming_lines(self) -> Iterator[None]:
        """Puts the file and the line of the row read last in front of the errors of a block that lack them."""
        try:
            yield
        except ValueError as error:
            if str(error).startswith(str(self.path)):
                raise
            raise ValueError(f"{self.path}, line {self._line}: {error}") from error

    @cached_property
    def sep(self) -> str:
        """The mark between cells."""
        if self._is_tsv:
            return "\t"
        if self._is_parquet:
            return ","
        if self.settings.sep is not None:
            return MARKS[self.settings.sep]
        found, fit = list[str](), list[str]()
        first = next((line for line in _lines(self._chunks()) if line.strip()), "")
        if first.strip() in {f"sep={mark}" for mark in MARKS.values()}:  # a line that Excel reads and writes
            return first.strip()[-1]
        marks = [mark for mark in MARKS.values() if mark in first or '"' in first]  # a quoted name may go on below
        if len(marks) == 1 and not self._columns:
            return marks[0]
        for mark in marks:
            widths = self._first_widths(mark)
            if widths[0] > 1 and widths[0] == (len(self._columns) or widths[0]):
                found.append(mark)
                fit += [mark] if len({*widths}) == 1 else []
        if len(fit) > 1:
            one, other = (next(name for name, mark in MARKS.items() if mark == each) for each in fit[:2])
            raise ValueError(
                f"{self.path}: its rows are divided into cells by each {one}, and likewise by each {other}; name the "
                f"mark between cells: csv.sep={one} or csv.sep={other}"
            )
        return (fit or found or [","])[0]

    def _first_widths(self, mark: str) -> list[int]:
        """Numbers of cells of the first rows with this mark between them; 0 after them where a row cannot be read."""
        widths = list[int]()
        try:
            for record in islice((each for each in self._divided(mark) if each.cells), _FIRST_ROWS):
                widths.append(len(record.cells))
        except ValueError:
            widths.append(0)
        return widths

    @cached_property
    def _decimals(self) -> dict[int, Decimal]:
        """The decimal marks of the columns whose cells have to be rewritten, by place."""
        named, is_comma = self.settings.decimal, self.sep == ","
        if self._is_parquet or (is_comma and named is None and not self._has_commas):
            return {}
        columns = [each for each in self._numbers() if each.line]
        if named is not None:
            return {each.place: named for each in columns if named in each.fits}
        if is_comma:  # where a comma in a cell may stand between two numbers
            return {each.place: "point" for each in columns if each.fits == {"point"}}
        sure: set[Decimal] = {decimal for each in columns for decimal in each.fits if len(each.fits) == 1}
        found = dict[int, Decimal]()
        for each in columns:
            left = each.fits if len(each.fits) == 1 or len(sure) != 1 else sure
            if len(left) == 1:
                found[each.place] = next(iter(left))
            elif left and ("," in each.first or sure or self.sep == ";"):
                one, other = (float(_plain(each.first, decimal)) for decimal in _OF_MARKS)
                raise ValueError(
                    f"{self.path}, line {each.line}: column {each.name!r}: {each.first!r} is {one:g} with a decimal "
                    f"point and {other:g} with a decimal comma; name the mark: csv.decimal=point or csv.decimal=comma"
                )
        return found

    @property
    def _has_commas(self) -> bool:
        """Whether a cell has a comma in quotation marks; much faster than `_numbers`."""
        if not any('"' in chunk for chunk in self._chunks()):
            return False
        try:
            return any(",".join(cells).count(",") >= len(cells) for _, cells in self._divided(",") if cells)
        except ValueError:  # which reading raises again
            return False

    def _numbers(self) -> "list[_Numbers]":
        """The columns of numbers of the file, as far as its rows can be read."""
        columns: list[_Numbers] | None = None
        names: Sequence[str] = self._columns
        try:
            for line, cells in self._divided(self.sep):
                if not any(cells):
                    continue
                if not names:
                    names = cells
                    continue
                if columns is None:
                    columns = [_Numbers(place, name.strip()) for place, name in enumerate(names)]
                if len(cells) == len(names):
                    columns = [each for each in columns if each.takes(cells[each.place].strip(), line)]
                if not columns:
                    break
        except ValueError:  # which reading raises again
            return []
        return columns or []

    def _divided(self, mark: str) -> Iterator[Record]:
        """Yields rows of cells with this mark between them, as they are written."""
        quoting, line = csv.QUOTE_NONE if self._is_tsv else csv.QUOTE_MINIMAL, 1
        reader = csv.reader(_lines(self._chunks()), delimiter=mark, quoting=quoting, strict=True)
        try:
            for cells in reader:
                if line == 1 and mark.join(cells) == f"sep={mark}":
                    line = 2
                    continue
                yield Record(line, cells if len(cells) > 1 or "".join(cells).strip() else [""] * (cells == [""]))
                line = reader.line_num + 1
        except csv.Error as error:
            raise ValueError(f"{self.path}, line {line}: {csv_fault(error)}") from error

    def _chunks(self) -> Iterator[str]:
        if self._is_parquet:
            yield parquet_as_csv(self.path)
            return
        encoding, line = self.settings.encoding, 1
        advice = (
            "or name its encoding, such as csv.encoding=cp1252" if encoding is None else "or name another csv.encoding"
        )
        for chunk in text_chunks(self.path, encoding, f"convert the file, {advice}"):
            if (at := chunk.find("\0")) >= 0:
                line += chunk.count("\n", 0, at)
                raise ValueError(
                    f"{self.path}, line {line}: has a NUL character; the file is damaged, "
                    "or in UTF-16 without a byte order mark (csv.encoding=utf-16-le)"
                )
            line += chunk.count("\n")
            yield chunk


@final
@dataclass
class _Numbers:
    """A column whose cells so far are numbers with decimal marks of `fits`, or missing."""

    place: int
    name: str
    fits: set[Decimal] = field(default_factory=lambda: {*_OF_MARKS})
    first: str = ""
    """First cell with a point or a comma."""
    line: int = 0
    """Its line; 0: there is none."""

    def takes(self, cell: str, line: int) -> bool:
        """Reads another cell; returns whether the column still is one of numbers."""
        if cell.isdecimal() or cell.lower() in MISSING:
            return True
        fits = {decimal for decimal, number in _NUMBER.items() if number.fullmatch(cell)}
        if "," in cell or "." in cell:
            self.fits &= fits
            if not self.line:
                self.first, self.line = cell, line
        return bool(fits)


def _plain(cell: str, decimal: Decimal) -> str:
    """A number with a point before decimals, and nothing between thousands."""
    point, comma = _OF_MARKS[decimal]
    return cell.replace(comma, "").replace(point, ".")


_LINE = re.compile(r"[^\r\n]*(?:\r\n|[\r\n])|[^\r\n]+")


def _lines(chunks: Iterable[str]) -> Iterator[str]:
    """Yields the lines of a text with their ends: CRLF, LF or CR."""
    waiting = ""
    for chunk in chunks:
        lines: list[str] = _LINE.findall(waiting + chunk)
        waiting = "" if chunk.endswith("\n") else lines.pop()  # where it ends in \r, \n may follow
        yield from lines
    if waiting:
        yield waiting
