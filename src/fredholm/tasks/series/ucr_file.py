"""Series in the .tsv and .txt files of the UCR archive: one line a series, its class first."""

from pathlib import Path

import numpy as np

from fredholm.tasks.files.cells import cells_of_line, parse_number, parse_value
from fredholm.tasks.files.channel_names import chosen_channels
from fredholm.tasks.targets import answers_of_cells
from fredholm.tasks.text import read_text

from .series_set import LabelReading, SeriesSet

UCR = (".tsv", ".tsv.gz", ".txt", ".txt.gz")


def read_ucr(path: Path, *, channels: tuple[str, ...] | None = None, reading: LabelReading | None = None) -> SeriesSet:
    """Read lines with a class or a number, then the values of one channel, separated by blanks, tabs or commas.

    Classes that are written as whole numbers, such as 1.0000e+00, lose their decimals. NaN at the end of a line is the
    padding of a shorter series; elsewhere it is a missing value.

    Args:
        path: the file, UTF-8; gzipped if its name ends in .gz.
        channels: the name of the channel, which the format does not give; None: channel_0.
        reading: kind of the first cell of lines, by default a class: see `answers_of_cells`. None: it is not read.

    Raises:
        ValueError: the file cannot be read, has no series, a line has no values, or a number is invalid. The message
            names file and line.
    """
    labels: list[str] = []
    values: list[np.ndarray] = []
    numbers: list[int] = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        try:
            words = cells_of_line(line)
            if not words:
                continue
            found = np.array([parse_value(word) for word in words[1:]], np.float64)
        except ValueError as error:
            hint = "; expected a line a series, its class first, without a header: a table with one is a .csv file"
            raise ValueError(f"{path}, line {number}: {error}{hint * (number == 1)}") from error
        observed = np.flatnonzero(~np.isnan(found))
        if not len(observed):
            raise ValueError(f"{path}, line {number}: has no values; expected a class, and values after it")
        labels.append(_without_decimals(words[0]))
        values.append(found[: observed[-1] + 1, None])
        numbers.append(number)
    if not values:
        raise ValueError(f"{path}: has no series; expected a line a series, its class first")
    answers = None
    if reading is not None:
        kind = reading.of_series or "class"
        column = {"target" if kind == "number" else "class": labels}
        answers = answers_of_cells(column, kind, lambda i, _: f"{path}, line {numbers[i]}", reading.names)
    return SeriesSet.pack(
        values,
        answers=answers,
        channels=chosen_channels(1, own=None, known=channels)[0],
        names=tuple(f"{path.name}, line {number}" for number in numbers),
    )


def _without_decimals(label: str) -> str:
    try:
        value = parse_number(label)
    except ValueError:
        return label
    return str(int(value)) if value.is_integer() else label
