"""Series in CSV files with a row for each sample: in one file, or in a folder with a subfolder for each class."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import final

import numpy as np
import torch

from fredholm.tasks.files.arrow_table import PARQUET
from fredholm.tasks.files.cells import has_commas, is_number, parse_value
from fredholm.tasks.files.class_folders import class_folders
from fredholm.tasks.files.dates import (
    DateOrderError,
    are_dates_in_digits,
    begins_with_year,
    learn_order_of_times,
    parse_moment,
)
from fredholm.tasks.files.delimited import NO_RECORD, DelimitedFile
from fredholm.tasks.files.read_every import read_every
from fredholm.tasks.files.table_text import first_repeated
from fredholm.tasks.splits.split_files import Split
from fredholm.tasks.splits.split_marks import SplitMarks, marks_of_cells
from fredholm.tasks.splits.splits import Splits
from fredholm.tasks.targets import Answers, ClassAnswers, answers_of_cells

from .sample_labels import UNKNOWN_WORDS, SampleLabels, sample_labels
from .series_set import LabelReading, SeriesSet

CSV_SUFFIXES = (".csv", ".csv.gz", PARQUET)
TIME, SERIES, LABEL, GROUP, SPLIT = "time", "series", "label", "group", "split"
OF_SERIES = (LABEL, GROUP, SPLIT)
"""Columns whose cells are the same in all rows of a series."""
SPECIAL = (TIME, SERIES, *OF_SERIES)
"""Columns that are not channels, in upper or lower case."""
OTHER_NAMES = {TIME: ("timestamp", "datetime", "date", "ds"), SERIES: ("unique_id", "item_id")}
"""Alternative names of these columns, for tables without the usual one."""


def read_csv(path: Path, *, channels: tuple[str, ...] | None = None, reading: LabelReading | None = None) -> SeriesSet:
    """Read a table with a header, a column `time`, and a column of numbers for each channel.

    `series` names the series of a row; without it all rows are one series. `label`, `group` and `split` are the same in
    all rows of a series: `label` is a class, several labels separated by |, or a number; `group` names series that are
    split together, such as those of a patient; `split` is train, valid or test. Rows of a series are in order of time;
    rows of several series may alternate. Where a `label` changes within a series, it is the class of each sample, of
    all series, unknown where it is empty, ? or NaN. Empty cells and ?, NaN, NA are missing values. Times are numbers
    of any unit, or dates (`parse_date`), which become seconds. Without a column `time`, one called timestamp, datetime,
    date or ds is taken, and without `series` one called unique_id or item_id.

    Args:
        path: the file (`DelimitedFile`), or a .parquet file with these columns.
        channels: columns to read as channels, in this order; None: all other columns, in the order of the table.
        reading: kind and names of `label`, see `answers_of_cells`; None: `label`, `group` and `split` are ignored.

    Raises:
        ValueError: the file cannot be read, a column is missing or repeated, a row has another number of cells, a
            number or time is invalid, times do not increase, or a label is missing, changes although it is of a series,
            or is unknown. The message names file, line and column.
    """
    return read_tables([path], channels=channels, reading=reading)


def read_tables(
    files: Sequence[Path], *, channels: tuple[str, ...] | None = None, reading: LabelReading | None = None
) -> SeriesSet:
    """Read tables with the same columns as one set, each as `read_csv` does; a series is in one table.

    Raises:
        ValueError: see `read_csv`; or tables have other columns than the first.
    """
    tables = list[_Rows]()

    def read(file: Path) -> None:
        rows = _Rows.of(file, tables[0].columns.channels if tables else channels, has_answers=reading is not None)
        if tables:
            tables[0].check_alike(rows)
        tables.append(rows)

    read_every(files, read, "reading series")
    names, words = [file.name for file in files], tables[0].columns.of_series
    if reading is None:
        return _packed(tables, names, None, SplitMarks())
    every = [(rows, each) for rows in tables for each in rows.series.values()]

    def place(i: int, word: str) -> str:
        rows, each = every[i]
        return rows.place(each.line, word)

    cells = {word: [each.own_cells[word] for _, each in every] for word in words if word != LABEL}
    marks = marks_of_cells(cells, place)
    if LABEL not in words:
        return _packed(tables, names, None, marks)
    if reading.kind == "samples" or (reading.kind is None and any(each.changes_class for _, each in every)):
        return _packed(tables, names, _labels_of_samples(tables, reading.names), marks)
    labels = [each.one_label(rows) for rows, each in every]
    answers = answers_of_cells({LABEL: labels}, reading.of_series, place, reading.names)
    return _packed(tables, names, answers, marks)


def read_class_folders(root: Path) -> Splits[SeriesSet]:
    """Read the tables of class folders (`class_folders`) as `read_csv` does; the folder names the class of a series.

    Raises:
        ValueError: `class_folders` refuses the folder; a table cannot be read, has other channels than the first, or
            has a column `label`, `group` or `split`.
    """
    classes, parts = class_folders(root, CSV_SUFFIXES, "series", "walking/1.csv")
    first = list[_Rows]()

    def read(tables: list[_Rows], file: Path) -> None:
        rows = _Rows.of(file, first[0].columns.channels if first else None, has_answers=False)
        if rows.columns.of_series:
            word = next(iter(rows.columns.of_series))
            raise ValueError(f"{file}: has a column {word!r}, and its folder is the class; leave the column out")
        first.extend([] if first else [rows])
        first[0].check_alike(rows)
        tables.append(rows)

    found = dict[Split, SeriesSet]()
    for split, (files, labels) in parts.items():
        tables = list[_Rows]()
        read_every(files, partial(read, tables), "reading series")
        values = [label for rows, label in zip(tables, labels, strict=True) for _ in rows.series]
        answers = ClassAnswers(names=classes, values=torch.tensor(values, dtype=torch.int64))
        found[split] = _packed(tables, [file.relative_to(root).as_posix() for file in files], answers, SplitMarks())
    return Splits(found["train"], found.get("test"), found.get("valid"), is_given=len(parts) > 1)


def _labels_of_samples(tables: "Sequence[_Rows]", known: tuple[str, ...] | None) -> SampleLabels:
    """The class of each row of tables.

    Raises:
        ValueError: a class is unknown.
    """
    every = [(rows, each) for rows in tables for each in rows.series.values()]

    def place(i: int, k: int) -> str:
        rows, each = every[i]
        return rows.place(each.lines[k], LABEL)

    return sample_labels([np.array(each.labels, np.str_) for _, each in every], known, place)


def _packed(
    tables: "Sequence[_Rows]", names: Sequence[str], answers: Answers | SampleLabels | None, marks: SplitMarks
) -> SeriesSet:
    """The series of tables with the same channels; `names` are the names of their files."""
    every = [each for rows in tables for each in rows.series.values()]
    if len({each.kind_of_times for each in every}) > 1:
        others = next(each for each in every if each.kind_of_times != every[0].kind_of_times)
        one, other = every[0].kind_of_times, others.kind_of_times
        raise ValueError(f"{names[0]}: times of one series are {one}, of another {other}; write one kind")
    return SeriesSet.pack(
        [np.array(each.values, np.float64) for each in every],
        times=[np.array(each.times, np.float64) for each in every],
        is_dated=any(each.is_dated for each in every),
        has_zone=any(each.has_zone for each in every),
        answers=answers if isinstance(answers, Answers) else None,
        sample_labels=answers if isinstance(answers, SampleLabels) else None,
        channels=tables[0].columns.channels,
        names=tuple(
            f"{name}, series {key}" if key else name
            for rows, name in zip(tables, names, strict=True)
            for key in rows.series
        ),
        marks=marks,
    )


@final
@dataclass(frozen=True)
class _Rows:
    """The rows of a table by their series, in the order in which the series begin."""

    path: Path
    header: list[str]
    columns: "_Columns"
    series: "dict[str, _Series]"

    def check_alike(self, other: "_Rows") -> None:
        """Raises a ValueError unless another table has the same columns."""
        if len(other.header) != len(self.header) or other.columns.of_series.keys() != self.columns.of_series.keys():
            raise ValueError(
                f"{other.path}: has the columns {', '.join(other.header)}, and {self.path} {', '.join(self.header)}; "
                "give all tables the same"
            )

    def place(self, line: int, word: str) -> str:
        """Location of a cell of a column of `OF_SERIES`, for messages."""
        return f"{self.path}, line {line}: column {self.header[self.columns.of_series[word]].strip()!r}"

    @classmethod
    def of(cls, path: Path, channels: tuple[str, ...] | None, *, has_answers: bool) -> "_Rows":
        file = DelimitedFile(path)
        rows = file.records()
        with file.naming_lines():
            header = next(rows, NO_RECORD).cells
            columns = _Columns.of(header, channels)
            day_first = _learn_day_first(file, columns.time)
            found: dict[str, _Series] = {}
            for line, cells in rows:
                if not cells:
                    continue
                if len(cells) != len(header):
                    raise ValueError(f"has {len(cells)} cells; the header has {len(header)}")
                key = cells[columns.series].strip() if columns.series is not None else ""
                if columns.series is not None and not key:
                    column = header[columns.series].strip()
                    raise ValueError(f"column {column!r}: is empty; expected the series that the row is of")
                series = found.setdefault(key, _Series(line=line))
                series.add(cells, columns, header, day_first, line, has_answers=has_answers)
        if not found:
            raise ValueError(f"{path}: has no rows below its header; expected at least one sample")
        first = next(iter(found.values()))
        if not first.is_dated and are_dates_in_digits(first.times):
            cell, column = f"{first.times[0]:.0f}", header[columns.time].strip()
            date = f"{cell[:4]}-{cell[4:6]}-{cell[6:] or '01'}"
            raise ValueError(
                f"{path}, line {first.line}: column {column!r}: {cell} looks like a date, and numbers of them have no "
                f"even steps; write {date}"
            )
        return cls(path, header, columns, found)


def special_columns(names: Sequence[str]) -> dict[str, int]:
    """Returns the indices of the columns that are not channels, by their words in SPECIAL.

    Raises:
        ValueError: two columns have the same name or meaning.
    """
    words = [name.lower() if name.lower() in SPECIAL else name for name in names]
    for word, others in OTHER_NAMES.items():
        instead = next((name for other in others for name in names if name.lower() == other), None)
        if word not in words and instead is not None:
            words[names.index(instead)] = word
    if (i := first_repeated(words)) is not None:
        raise ValueError(f"column {names[i]!r} is there twice")
    return {word: i for i, word in enumerate(words) if word in SPECIAL}


@final
@dataclass(frozen=True)
class _Columns:
    """The indices of the columns by their use."""

    time: int
    series: int | None
    of_series: Mapping[str, int]
    values: tuple[int, ...]
    channels: tuple[str, ...]

    @classmethod
    def of(cls, header: Sequence[str], channels: tuple[str, ...] | None) -> "_Columns":
        names = [name.strip() for name in header]
        special = special_columns(names)
        if TIME not in special:
            raise ValueError(
                f"no column {TIME!r}; the columns are {', '.join(names) or 'none'}; expected when each row was "
                f"sampled, in a column {TIME} (or {', '.join(OTHER_NAMES[TIME])}): name it so, or add one with 0, 1, "
                "2, ... at even steps"
            )
        others = {name: i for i, name in enumerate(names) if i not in special.values()}
        if channels is None and not others:
            raise ValueError(f"no column with values; the columns are {', '.join(names)}")
        wanted = tuple(others) if channels is None else channels
        if absent := [name for name in wanted if name not in others]:
            raise ValueError(f"no column {', '.join(map(repr, absent))}; the columns are {', '.join(names)}")
        values, of_series = tuple(others[name] for name in wanted), {w: i for w, i in special.items() if w in OF_SERIES}
        return cls(special[TIME], special.get(SERIES), of_series, values, wanted)


@final
@dataclass
class _Series:
    """The rows of one series so far; `line` is the line of its first row, `last` the text of its newest time."""

    line: int
    times: list[float] = field(default_factory=list)
    values: list[list[float]] = field(default_factory=list)
    own_cells: dict[str, str] = field(default_factory=dict)
    labels: list[str] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    is_dated: bool = False
    has_zone: bool = False
    last: str = ""

    @property
    def kind_of_times(self) -> str:
        """Kind of the times, for messages."""
        return f"dates {'with' if self.has_zone else 'without'} a zone" if self.is_dated else "numbers"

    @property
    def changes_class(self) -> bool:
        """Whether rows have different labels, apart from those that have none."""
        return len({label for label in self.labels if label.lower() not in UNKNOWN_WORDS}) > 1

    def one_label(self, rows: "_Rows") -> str:
        """The label of all rows; raises a ValueError where they differ."""
        first = self.labels[0]
        for label, line in zip(self.labels, self.lines, strict=True):
            if label != first:
                hint = "of a series, or set target to 'samples' where each row has a class of its own, or none"
                raise ValueError(f"{rows.place(line, LABEL)}: {label!r} after {first!r}; expected one label {hint}")
        return first

    def add(
        self,
        cells: Sequence[str],
        columns: _Columns,
        header: Sequence[str],
        day_first: bool | None,
        line: int,
        *,
        has_answers: bool,
    ) -> None:
        at = columns.time
        try:
            time, is_dated, has_zone = parse_moment(cells[at], day_first)
            if self.times and (is_dated, has_zone) != (self.is_dated, self.has_zone):
                raise ValueError(f"{cells[at].strip()!r} stands among {self.kind_of_times}; write one kind")
            if self.times and time == self.times[-1] and cells[at].strip() != self.last and not is_dated:
                raise ValueError(f"{cells[at].strip()!r} is {self.last!r} in float64; subtract what all times share")
            if self.times and not time > self.times[-1]:
                hint = "sort the rows of a series by time, one a time"
                if columns.series is None:
                    hint += f"; of several series, say in a column {SERIES!r} which one each row is of"
                raise ValueError(f"{cells[at].strip()!r} after {self.last!r}; {hint}")
            row = []
            for at in columns.values:
                row.append(_value(cells[at], may_be_name=columns.series is None and not self.times))
            for word, at in columns.of_series.items() if has_answers else ():
                cell = cells[at].strip()
                if word == LABEL:
                    self.labels.append(cell)
                    self.lines.append(line)
                elif self.own_cells.setdefault(word, cell) != cell:
                    raise ValueError(f"{cell!r} after {self.own_cells[word]!r}; expected one {word} a series")
        except ValueError as error:
            raise ValueError(f"column {header[at].strip()!r}: {error}") from error
        self.is_dated, self.has_zone, self.last = is_dated, has_zone, cells[columns.time].strip()
        self.times.append(time)
        self.values.append(row)


def _learn_day_first(file: DelimitedFile, time: int) -> bool | None:
    """See `learn_order_of_times`; reads the table once more if the first time is neither a number nor in ISO 8601.

    Raises:
        ValueError: times are ambiguous dates.
    """
    rows = file.records()
    header = next(rows, NO_RECORD).cells
    lines, cells = list[int](), list[str]()
    for line, row in rows:
        if len(row) > time:
            lines.append(line)
            cells.append(row[time].strip())
            if len(cells) == 1 and (is_number(cells[0]) or begins_with_year(cells[0])):
                return None
    try:
        return learn_order_of_times(cells)
    except DateOrderError as error:
        place = f"{file.path}, line {lines[error.index]}: column {header[time].strip()!r}"
        raise ValueError(f"{place}: {error}") from error


def _value(cell: str, *, may_be_name: bool) -> float:
    """See `parse_value`; where a cell may be the name of a series, the error suggests the name of its column."""
    try:
        return parse_value(cell)
    except ValueError as error:
        if not may_be_name or has_commas(cell.strip()):
            raise
        others = ", ".join(OTHER_NAMES[SERIES])
        raise ValueError(
            f"{error}; if this is the series that the row is of, call the column {SERIES} (or {others})"
        ) from error
