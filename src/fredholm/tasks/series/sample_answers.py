"""Classes of samples for people and for other programs: tables, and views."""

import csv
import datetime
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from fredholm.tasks.outputs import Outputs
from fredholm.tasks.prediction import Prediction
from fredholm.tasks.targets import UNKNOWN
from fredholm.tasks.views import MOST_LINES, Line, SeriesView, View

from .csv_file import LABEL, TIME
from .series_set import SeriesSet


def rows_of(
    file: Path,
    names: Sequence[str],
    series: SeriesSet,
    predicted: Sequence[Tensor],
    classes: tuple[str, ...],
    outputs: Outputs,
) -> Iterator[Prediction]:
    """Yields a row for each sample of each series of a file; where tables are saved, one for each series.

    Args:
        file: the file.
        names: names of the series in it.
        series: its series.
        predicted: of each series the probabilities `(length, classes)`.
        classes: the classes.
        outputs: where tables are saved.
    """
    for i, (name, shares) in enumerate(zip(names, predicted, strict=True)):
        times = times_of(series, i)
        if outputs.save is None:
            for time, own in zip(times, shares.tolist(), strict=True):
                yield Prediction(file, {"series": name, "time": time}, dict(zip(classes, own, strict=True)))
            continue
        path = outputs.save / f"{file.stem}{f'-{name}' if name else ''}.csv"
        outputs.write("--save", path, table_of(times, shares, classes))
        yield Prediction(file, {"series": name, "saved": str(path), "samples": float(len(times))})


def times_of(series: SeriesSet, number: int) -> list[float | str]:
    """Time of each sample of a series, as its file had it; dates in ISO 8601."""
    times = series.sample_times[number, : int(series.lengths[number])]
    if series.times is None and series.marks.times is not None:
        times = times + series.marks.times[number]
    if not series.is_dated:
        return times.tolist()
    return [_date(time, has_zone=series.has_zone) for time in times.tolist()]


def _date(time: float, *, has_zone: bool) -> str:
    moment = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(seconds=time)
    text = moment.replace(tzinfo=None).isoformat(sep=" ")
    return f"{text}Z" if has_zone else text


def table_of(times: list[float | str], predicted: Tensor, names: tuple[str, ...]) -> bytes:
    """A table with the time, the likeliest class and the probability of every class of each sample.

    Args:
        times: of the samples.
        predicted: probabilities `(length, classes)`.
        names: the classes.
    """
    content = io.StringIO(newline="")
    rows = csv.writer(content)
    rows.writerow([TIME, LABEL, *(f"probability of {name}" for name in names)])
    likeliest = predicted.argmax(-1).tolist()
    rows.writerows(
        [time, names[k], *(f"{share:.6g}" for share in shares)]
        for time, k, shares in zip(times, likeliest, predicted.tolist(), strict=True)
    )
    return content.getvalue().encode()


def views_of(series: SeriesSet, names: tuple[str, ...], predicted: Tensor | None) -> tuple[View, ...]:
    """The channels of one series over time, and below them the numbers of the known and of the predicted classes.

    Args:
        series: the series, alone.
        names: the classes.
        predicted: probabilities `(length, classes)`; None: only known classes are shown.
    """
    length = int(series.lengths[0])
    x = series.sample_times[0, :length]
    channels = series.channels[:MOST_LINES]
    lines = tuple(Line(name, "seen", x, series.values[0, :length, c]) for c, name in enumerate(channels))
    classes = list[Line]()
    if series.sample_labels is not None:
        known = series.sample_labels.values[0, :length]
        classes.append(Line("known", "truth", x, torch.where(known == UNKNOWN, torch.nan, known.double())))
    if predicted is not None:
        classes.append(Line("predicted", "answer", x, predicted.argmax(-1).double()))
    numbered = ", ".join(f"{k} {name}" for k, name in enumerate(names))
    return (SeriesView(lines=lines), SeriesView(title=f"class: {numbered}", lines=tuple(classes)))
