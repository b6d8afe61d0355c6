"""Series in a CSV file: one row a sample."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

import numpy as np

from fredholm.tasks.cells import parse_time, parse_value
from fredholm.tasks.table_text import csv_text

from .naming import ClassNames
from .series_set import SeriesSet

TIME, SERIES, LABEL = "time", "series", "label"
"""The columns that are no channels, in small or capital letters."""


def read_csv(
    path: Path, *, channels: tuple[str, ...] | None = None, classes: tuple[str, ...] | None = None
) -> SeriesSet:
    """Read a table with a header, a column `time`, and a column of numbers a channel.

    `series` tells which series a row belongs to; without it all rows are one. `label` is the class, the same in every
    row of a series. Rows of one series stand in order of time, those of several may alternate. Empty cells and ?, NaN,
    NA are missing values. Times are numbers of any unit, or ISO 8601 dates, which become seconds.

    Args:
        path: the file, UTF-8; gzipped if its name ends in .gz; or a .parquet file with these columns.
        channels: those to read, in this order; None: all columns that are left, in theirs.
        classes: the known ones; None: those of the file, sorted.

    Raises:
        ValueError: the file cannot be read, a column is missing or there twice, a row has another number of cells, a
            number or time is none, times do not increase, or a label is missing, changes or is unknown. The message
            names file, line and column.
    """
    rows = csv.reader(io.StringIO(csv_text(path), newline=""))
    try:
        header = next(rows, [])
        columns = _Columns.of(header, channels)
        names = ClassNames(classes)
        found: dict[str, _Series] = {}
        for cells in rows:
            if not cells:
                continue
            if len(cells) != len(header):
                raise ValueError(f"has {len(cells)} cells; the header has {len(header)}")
            key = cells[columns.series].strip() if columns.series is not None else ""
            found.setdefault(key, _Series()).add(cells, columns, header, names)
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path}, line {max(rows.line_num, 1)}: {error}") from error
    if not found:
        raise ValueError(f"{path}: has no rows below its header; expected at least one sample")
    numbered = None if columns.label is None else names.number([series.label for series in found.values()])
    return SeriesSet.pack(
        [np.array(series.values, np.float64) for series in found.values()],
        times=[np.array(series.times, np.float64) for series in found.values()],
        labels=None if numbered is None else numbered[0],
        classes=(classes or ()) if numbered is None else numbered[1],
        channels=columns.channels,
        names=tuple(f"{path.name}, series {key}" if key else path.name for key in found),
    )


@final
@dataclass(frozen=True)
class _Columns:
    """Which column holds what."""

    time: int
    series: int | None
    label: int | None
    values: tuple[int, ...]
    channels: tuple[str, ...]

    @classmethod
    def of(cls, header: Sequence[str], channels: tuple[str, ...] | None) -> "_Columns":
        names = [name.strip() for name in header]
        words = [name.lower() if name.lower() in (TIME, SERIES, LABEL) else name for name in names]
        if twice := [name for i, name in enumerate(names) if words[i] in words[:i]]:
            raise ValueError(f"column {twice[0]!r} is there twice")
        special = {word: i for i, word in enumerate(words) if word in (TIME, SERIES, LABEL)}
        if TIME not in special:
            raise ValueError(f"no column {TIME!r}; the columns are {', '.join(names) or 'none'}")
        others = {name: i for i, name in enumerate(names) if i not in special.values()}
        if channels is None and not others:
            raise ValueError(f"no column with values; the columns are {', '.join(names)}")
        wanted = tuple(others) if channels is None else channels
        if absent := [name for name in wanted if name not in others]:
            raise ValueError(f"no column {', '.join(map(repr, absent))}; the columns are {', '.join(names)}")
        values = tuple(others[name] for name in wanted)
        return cls(special[TIME], special.get(SERIES), special.get(LABEL), values, wanted)


@final
@dataclass
class _Series:
    """The rows of one series so far."""

    times: list[float] = field(default_factory=list)
    values: list[list[float]] = field(default_factory=list)
    label: str = ""

    def add(self, cells: Sequence[str], columns: _Columns, header: Sequence[str], names: ClassNames) -> None:
        at = columns.time
        try:
            time = parse_time(cells[at])
            if self.times and not time > self.times[-1]:
                raise ValueError(f"{time:g} after {self.times[-1]:g}; sort the rows of a series by time, one a time")
            row = []
            for at in columns.values:
                row.append(parse_value(cells[at]))
            if columns.label is not None:
                at = columns.label
                self._take_label(cells[at].strip(), names)
        except ValueError as error:
            raise ValueError(f"column {header[at].strip()!r}: {error}") from error
        self.times.append(time)
        self.values.append(row)

    def _take_label(self, label: str, names: ClassNames) -> None:
        if not label:
            raise ValueError("is empty; expected the series' class")
        if self.times and label != self.label:
            raise ValueError(f"{label!r} after {self.label!r}; expected one class a series")
        self.label = names.check(label)
