"""Series in the .ts format of the UEA and UCR archives: one line a series."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import numpy as np

from fredholm.tasks.files.cells import parse_value
from fredholm.tasks.files.channel_names import chosen_channels
from fredholm.tasks.files.dates import parse_moment
from fredholm.tasks.files.limits import check_expansion
from fredholm.tasks.targets import Answers, answers_of_cells
from fredholm.tasks.text import read_text

from .series_set import LabelReading, SeriesSet

_PARENTHESIS = re.compile(r"([()])")
_SAMPLE = re.compile(r"\(([^(),]+),([^(),]*)\)")


def read_ts(path: Path, *, channels: tuple[str, ...] | None = None, reading: LabelReading | None = None) -> SeriesSet:
    """Read a file of lines `values:values:...:class`, with or without times.

    Of the header, `@classLabel`, `@targetLabel`, `@timeStamps` and `@dimensions` are read. With `@targetLabel true` a
    line ends with a number. Values of a channel are separated by commas, or are pairs `(time,value)`; ? and NaN are
    missing values. Channels with different times are missing at the times of the others; without times a shorter
    channel is missing at the end.

    Args:
        path: the file, UTF-8; gzipped if its name ends in .gz.
        channels: names of the channels, which the format does not give; None: channel_0, channel_1, ...
        reading: kind of the answers at the ends of lines, unless the header says number: see `answers_of_cells`. The
            classes are the known ones, or those of the header, or of the lines, sorted. None: answers are not read.

    Raises:
        ValueError: the file cannot be read, or has no data; a line has another number of channels, a number or time is
            invalid, times do not increase, or a class is unknown. The message names file and line.
    """
    header, number, lines = _Header(), 0, read_text(path).splitlines()
    values: list[np.ndarray] = []
    times: list[np.ndarray] = []
    labels: list[str] = []
    numbers: list[int] = []
    names: list[str] = []
    try:
        for number, line in enumerate(lines, 1):
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            if text.startswith("@"):
                header = header.with_line(text)
                continue
            parts = _parts(text)
            if header.has_labels:
                labels.append(parts.pop().strip())
                numbers.append(number)
            if channels is None and header.num_channels not in (None, len(parts)):
                raise ValueError(f"has {len(parts)} channels; expected {header.num_channels}, as @dimensions says")
            given = chosen_channels(len(parts), own=None, known=channels)[0]
            if channels is None:
                channels = given
            sampled = [_channel(part, c, has_times=header.has_times) for c, part in enumerate(parts)]
            joined, stamps = _join(sampled)
            values.append(joined)
            times.append(stamps)
            names.append(f"{path.name}, line {number}")
    except ValueError as error:
        raise ValueError(f"{path}, line {number}: {error}") from error
    if channels is None or not values:
        raise ValueError(f"{path}: has no series; expected lines with values after @data")
    return SeriesSet.pack(
        values,
        times=times if header.has_times else None,
        answers=header.answers(labels, reading, lambda i: f"{path}, line {numbers[i]}"),
        channels=channels,
        names=tuple(names),
    )


@final
@dataclass(frozen=True)
class _Header:
    """The settings of the header lines (with an @) read so far."""

    has_times: bool = False
    has_labels: bool = False
    is_regression: bool = False
    classes: tuple[str, ...] | None = None
    num_channels: int | None = None

    def with_line(self, line: str) -> "_Header":
        word, *rest = line.split()
        word = word.lower()
        is_true = bool(rest) and rest[0].lower() == "true"
        if word == "@timestamps":
            return replace(self, has_times=is_true)
        if word == "@classlabel":
            return replace(self, has_labels=is_true, classes=tuple(rest[1:]) or None)
        if word == "@targetlabel":
            return replace(self, has_labels=is_true, is_regression=is_true)
        if word in ("@dimensions", "@dimension"):
            if len(rest) != 1 or not rest[0].isdigit() or int(rest[0]) < 1:
                raise ValueError(f"{word} is {' '.join(rest) or 'empty'}; expected a number of channels")
            return replace(self, num_channels=int(rest[0]))
        return self

    def answers(self, labels: list[str], reading: LabelReading | None, place: Callable[[int], str]) -> Answers | None:
        if not self.has_labels or reading is None:
            return None
        if self.is_regression and reading.of_series not in (None, "number"):
            raise ValueError(
                f"{place(0)}: @targetLabel says that numbers are predicted; leave target={reading.kind!r} out"
            )
        kind = reading.of_series or ("number" if self.is_regression else "class")
        name = "target" if kind == "number" else "class"
        known = self.classes if reading.names is None and kind == "class" else reading.names
        return answers_of_cells({name: labels}, kind, lambda i, _: place(i), known)


def _parts(line: str) -> list[str]:
    """The parts of a line between colons, except for the colons of dates within parentheses."""
    if "(" not in line and ")" not in line:
        return line.split(":")
    found = [""]
    pieces = _PARENTHESIS.split(line)
    for piece, after in zip(pieces, [*pieces[1:], ""], strict=True):
        if after == ")":
            found[-1] += piece
            continue
        first, *others = piece.split(":")
        found[-1] += first
        found += others
    return found


def _channel(text: str, c: int, *, has_times: bool) -> tuple[np.ndarray, np.ndarray]:
    """Times and values of one channel; without times, they are 0, 1, 2, ..."""
    try:
        if not has_times:
            values = np.array([parse_value(word) for word in text.split(",")], np.float64) if text.strip() else _NONE
            return np.arange(len(values), dtype=np.float64), values
        samples = _SAMPLE.findall(text)
        if _SAMPLE.sub("", text).strip(", \t"):
            raise ValueError(f"{text.strip()[:40]!r} are no pairs (time,value)")
        times = np.array([parse_moment(time).time for time, _ in samples], np.float64)
        for k in np.flatnonzero(~(np.diff(times) > 0))[:1]:
            raise ValueError(f"time {times[k + 1]:g} after {times[k]:g}; sort the samples by time, one a time")
        return times, np.array([parse_value(value) for _, value in samples], np.float64)
    except ValueError as error:
        raise ValueError(f"channel {c}: {error}") from error


def _join(channels: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Values `(samples, C)` at every time of any channel, NaN where a channel has none, and these times."""
    times = np.unique(np.concatenate([stamps for stamps, _ in channels]))
    if not len(times):
        raise ValueError("the series has no samples; expected at least one")
    needed, given = len(times) * len(channels), sum(len(values) for _, values in channels)
    check_expansion(f"{len(channels):,} channels at {len(times):,} times", 8 * needed, 8 * given, _THIN)
    joined = np.full((len(times), len(channels)), np.nan)
    for c, (stamps, values) in enumerate(channels):
        joined[np.searchsorted(times, stamps), c] = values
    return joined, times


_THIN = "sample the channels at the same times"
_NONE = np.empty(0, np.float64)
