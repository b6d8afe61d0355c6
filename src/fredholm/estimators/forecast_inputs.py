"""Series to forecast, as arrays or as data frames with a row a sample."""

import csv
import datetime
import numbers
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, final

import numpy as np
import torch
from sklearn.utils import check_array
from torch import Tensor

from fredholm.tasks.files.cells import is_number
from fredholm.tasks.forecasts import Clock, LongSeries
from fredholm.tasks.forecasts.forecasting import Forecasting
from fredholm.tasks.series.csv_file import OF_SERIES, SERIES, TIME, special_columns
from fredholm.training.storage.run_folder import DATA

from .estimator import as_array, is_missing, naming_data_as_given, real_numbers
from .series import listed_series, one_series


@final
@dataclass(frozen=True, kw_only=True)
class Forecasts:
    """Forecasts of n series.

    Args:
        names: names of the series.
        channels: names of the F predicted channels.
        times: times of the predicted samples, one list of H for each series, in the unit of the clock.
        clock: the clock of the series.
        values: float64 `(n, H, F)`, or `(n, H, F, Q)` of Q quantiles.
        levels: the Q levels; () without quantiles.
    """

    names: Sequence[str]
    channels: Sequence[str]
    times: Sequence[Sequence[float]]
    clock: Clock
    values: Tensor
    levels: Sequence[float] = ()


class ForecastInput(ABC):
    """An X of a forecaster: how its series are stored and read, and how forecasts are arranged."""

    @abstractmethod
    def check(self, horizon: int, bin: float | None) -> None:
        """Raises a ValueError where rows and columns seem to be exchanged, or bins are asked for without times."""

    @abstractmethod
    def write(self, folder: Path) -> Path:
        """Writes the series to a file of the task in a folder, and returns its path."""

    @abstractmethod
    def series(self, task: Forecasting) -> list[LongSeries]:
        """The series, with the channels and on the clock of a fitted task.

        Raises:
            ValueError: they have other channels, or are on another clock.
        """

    @abstractmethod
    def without_samples(self) -> Self:
        """The form of X without its samples, to arrange forecasts."""

    @abstractmethod
    def arranged(self, forecasts: Forecasts) -> Any:
        """Arranges forecasts like X."""

    @abstractmethod
    def values_of(self, y: Any, forecasts: Forecasts) -> np.ndarray:
        """Returns the true values `(n, H, F)` from a y that is arranged like `forecasts`.

        Raises:
            ValueError: it has other rows or another shape.
        """


def forecast_input(X: Any) -> ForecastInput:
    """Parses X.

    Raises:
        ValueError: it holds no series.
    """
    return SampleTable.of(X) or SeriesArrays.of(X)


@final
@dataclass(frozen=True, kw_only=True)
class SeriesArrays(ForecastInput):
    """Series `(T, C)`, from one array of them or a list.

    Args:
        arrays: the series.
        is_one: whether X is one series.
        has_channels: whether X has an axis of channels.
    """

    arrays: Sequence[np.ndarray]
    is_one: bool
    has_channels: bool

    @classmethod
    def of(cls, X: Any) -> "SeriesArrays":
        """See `forecast_input`."""
        X = as_array(X)
        if (listed := listed_series(X)) is not None:
            if not listed:
                raise ValueError("X is empty; expected at least one series")
            arrays = [one_series(each, i) for i, each in enumerate(listed)]
            found = cls(arrays=arrays, is_one=False, has_channels=np.ndim(listed[0]) == 2)
        else:
            # a single series is allowed too; its samples are not features
            rules: dict[str, Any] = {"dtype": [np.float64, np.float32], "ensure_all_finite": "allow-nan"}
            values = np.asarray(check_array(X, ensure_2d=False, allow_nd=True, **rules))
            if values.ndim > 3 or 0 in values.shape:
                raise ValueError(f"X has shape {values.shape}; expected (T,), (n, T) or (n, C, T), none of them 0")
            whole = values[None] if values.ndim == 1 else values
            of_channels = whole.transpose(0, 2, 1) if whole.ndim == 3 else whole[..., None]
            found = cls(arrays=list(of_channels), is_one=values.ndim == 1, has_channels=values.ndim == 3)
        num_channels = found.arrays[0].shape[1]
        for i, each in enumerate(found.arrays):
            if each.shape[1] != num_channels:
                raise ValueError(f"series {i} of X has {each.shape[1]} channels, series 0 has {num_channels}")
        return found

    def check(self, horizon: int, bin: float | None) -> None:
        """See `ForecastInput.check`."""
        self._refuse_bin(bin)
        most = max(map(len, self.arrays))
        if not self.is_one and most <= horizon < len(self.arrays):
            raise ValueError(
                f"X has {len(self.arrays)} series of at most {most} samples, fewer than a horizon of {horizon} and one "
                "to learn from; if the rows of X are times, pass X.T"
            )

    def write(self, folder: Path) -> Path:
        """See `ForecastInput.write`: an .npz file."""
        path, offsets = folder / "series.npz", np.cumsum([0, *map(len, self.arrays)])
        np.savez_compressed(path, values=np.concatenate(self.arrays), offsets=offsets)
        return path

    def series(self, task: Forecasting) -> list[LongSeries]:
        """See `ForecastInput.series`; samples are one step of the clock apart, whatever it is."""
        facts = task.facts
        self._refuse_bin(task.config.bin)
        if (got := self.arrays[0].shape[1]) != (expected := len(facts.channels)):
            raise ValueError(f"X has {got} channels; SeriesForecaster was fitted on {expected}")
        if facts.groups:
            raise ValueError(
                f"X has no times; the forecast reads {', '.join(facts.groups)} from them: pass a data frame "
                "with times, as in fit"
            )
        return [
            LongSeries(name=f"series {i}", values=torch.from_numpy(each.astype(np.float64)), start=0.0)
            for i, each in enumerate(self.arrays)
        ]

    def _refuse_bin(self, bin: float | None) -> None:
        if bin is not None:
            raise ValueError(f"X has no times, and bin={bin:g} averages over them: pass a data frame with times")

    def without_samples(self) -> Self:
        """See `ForecastInput.without_samples`."""
        return replace(self, arrays=())

    def arranged(self, forecasts: Forecasts) -> np.ndarray:
        """See `ForecastInput.arranged`: F before H, or without F, and without n for a single series."""
        values = forecasts.values
        found = values.movedim(2, 1) if self.has_channels else values[:, :, 0]
        return (found[0] if self.is_one else found).numpy()

    def values_of(self, y: Any, forecasts: Forecasts) -> np.ndarray:
        """See `ForecastInput.values_of`."""
        true, shape = real_numbers(y, "y is"), self.arranged(forecasts).shape
        if true.shape != shape:
            raise ValueError(f"y has shape {true.shape}; expected {shape}, the next samples of each series")
        true = true if not self.is_one else true[None]
        return true.swapaxes(1, 2) if self.has_channels else true[..., None]


@final
@dataclass(frozen=True, kw_only=True)
class SampleTable(ForecastInput):
    """A data frame with a row for each sample, and its times in a column or as the index.

    Args:
        kind: class of the data frame, of pandas or polars.
        channels: values of the channels by name.
        times: times of the samples, as in the data frame.
        time: name of their column; None: they are the index.
        index_name: name of the index.
        names: series of each sample; None: there is one series.
        series_column: name of their column.
        is_column: whether X is one column of a data frame.
        is_local: whether times follow a wall clock: they have a time zone, and all the same time of day in it.
    """

    kind: Any
    channels: dict[str, list[Any]]
    times: list[Any]
    time: str | None
    index_name: Any
    names: list[Any] | None
    series_column: str
    is_column: bool
    is_local: bool

    @classmethod
    def of(cls, X: Any) -> "SampleTable | None":
        """See `forecast_input`; None for an X without times."""
        index = getattr(X, "index", None)
        has_index = str(getattr(index, "dtype", "")).startswith(("datetime64", "period"))
        is_column = has_index and not hasattr(X, "columns")
        if is_column:
            X = X.to_frame("value" if X.name is None else X.name)
        if not all(hasattr(X, name) for name in ("shape", "columns", "to_numpy")):
            return None
        names = [str(name) for name in X.columns]
        special = special_columns(names) if has_index or not all(map(is_number, names)) else {}
        if not has_index and TIME not in special:
            return None
        for word in (*OF_SERIES, *((TIME,) if has_index else ())):
            if word in special:
                has = "times as its index and " if word == TIME else ""
                raise ValueError(
                    f"X has {has}a column {names[special[word]]!r}, which is no channel; drop or rename it"
                )
        values = {name: X[own].to_list() for name, own in zip(names, X.columns, strict=True)}
        time, series = (names[special[word]] if word in special else None for word in (TIME, SERIES))
        channels = {name: values[name] for name in names if name not in (time, series)}
        if not channels or not X.shape[0]:
            raise ValueError(f"X has {X.shape[0]} rows and {len(channels)} columns of values; expected some of each")
        times = index.to_list() if index is not None and has_index else values[str(time)]
        return cls(
            kind=type(X),
            channels=channels,
            times=times,
            time=time,
            index_name=index.name if index is not None and has_index else None,
            names=None if series is None else values[series],
            series_column=series or SERIES,
            is_column=is_column,
            is_local=bool(times)
            and all(getattr(each, "tzinfo", None) is not None for each in times)
            and len({each.time() for each in times}) == 1,
        )

    def check(self, horizon: int, bin: float | None) -> None:
        """See `ForecastInput.check`; the task names series that are too short."""

    def write(self, folder: Path) -> Path:
        """See `ForecastInput.write`: a .csv file."""
        columns = [[self._cell(time, row) for row, time in enumerate(self.times)]]
        if self.names is not None:
            of = f"column {self.series_column!r}"
            columns.append([_name(name, f"X, row {row}: {of}") for row, name in enumerate(self.names)])
        columns += [_numbers(values, name) for name, values in self.channels.items()]
        path = folder / "series.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            rows = csv.writer(file)
            rows.writerow([TIME, *([] if self.names is None else [SERIES]), *self.channels])
            rows.writerows(zip(*columns, strict=True))
        return path

    def _cell(self, time: Any, row: int) -> str:
        """Formats a time as in a file."""
        if is_missing(time):
            raise ValueError(f"X, row {row}: the time is missing")
        time = getattr(time, "start_time", time)  # a period's start
        if isinstance(time, datetime.datetime) and time.tzinfo is not None:
            time = time.replace(tzinfo=None) if self.is_local else time.astimezone(datetime.UTC)
        return time.isoformat() if isinstance(time, datetime.date) else str(time)

    def series(self, task: Forecasting) -> list[LongSeries]:
        """See `ForecastInput.series`."""
        with tempfile.TemporaryDirectory(prefix="fredholm-") as name, naming_data_as_given("X", Path(name)):
            folder = Path(name) / DATA
            folder.mkdir()
            found = task.read(self.write(folder))
        return found if self.names is not None else [replace(each, name="the series") for each in found]

    def without_samples(self) -> Self:
        """See `ForecastInput.without_samples`; one time is kept, for its type and zone."""
        names = None if self.names is None else list(dict.fromkeys(self.names))
        return replace(self, channels={}, times=self.times[-1:], names=names)

    def arranged(self, forecasts: Forecasts) -> Any:
        """See `ForecastInput.arranged`: a row for each predicted sample, series after series."""
        times, columns = [self._like_own(time, forecasts.clock) for each in forecasts.times for time in each], {}
        if self.names is not None:
            known = {_name(name, "X"): name for name in self.names}
            pairs = zip(forecasts.names, forecasts.times, strict=True)
            columns[self.series_column] = [known[name] for name, each in pairs for _ in each]
        if self.time is not None:
            columns[self.time] = times
        for f, name in enumerate(forecasts.channels):
            values = forecasts.values[:, :, f].flatten(0, 1).numpy()
            of_levels = {f"{name} at {tau:g}": values[:, q] for q, tau in enumerate(forecasts.levels)}
            columns |= of_levels or {name: values}
        if self.time is not None:
            return self.kind(columns)
        frame = self.kind(columns, index=times)
        frame.index.name = self.index_name
        return frame[forecasts.channels[0]] if self.is_column and not forecasts.levels else frame

    def _like_own(self, time: float, clock: Clock) -> Any:
        """Converts a time of the clock to the type and time zone of the times of X."""
        own = self.times[-1]
        if not clock.is_dated:
            return round(time) if isinstance(own, numbers.Integral) and time == round(time) else time
        if isinstance(own, str):
            return clock.text(time)
        moment = datetime.datetime.fromtimestamp(time, tz=datetime.UTC)
        if hasattr(own, "start_time"):
            return type(own)(moment.replace(tzinfo=None), freq=own.freq)
        if not isinstance(own, datetime.datetime):
            return moment.date()
        if own.tzinfo is None:
            return moment.replace(tzinfo=None)
        return moment.replace(tzinfo=own.tzinfo) if self.is_local else moment.astimezone(own.tzinfo)

    def values_of(self, y: Any, forecasts: Forecasts) -> np.ndarray:
        """See `ForecastInput.values_of`; times and series of a data frame must equal those of the forecasts."""
        n, horizon, num_channels = forecasts.values.shape
        if (given := SampleTable.of(y)) is None:
            true = real_numbers(y, "y is")
            if true.size != forecasts.values.numel() or len(true) != n * horizon:
                raise ValueError(f"y has shape {true.shape}; expected {(n * horizon, num_channels)}, as of `predict`")
            return true.reshape(n, horizon, num_channels)
        wanted = SampleTable.of(self.arranged(forecasts))
        assert wanted is not None
        if (given.times, given.names) != (wanted.times, wanted.names):
            raise ValueError("y has other times or series than the predicted samples; expected the rows of `predict`")
        if absent := [name for name in wanted.channels if name not in given.channels]:
            raise ValueError(f"y has no column {absent[0]!r}; expected {', '.join(wanted.channels)}")
        true = [[float(cell or "nan") for cell in _numbers(given.channels[name], name)] for name in wanted.channels]
        return np.array(true).T.reshape(n, horizon, num_channels)


def _name(value: Any, place: str) -> str:
    """Formats the name of a series as in a file."""
    if is_missing(value) or not (name := str(value).strip()):
        raise ValueError(f"{place} is missing; expected the series of the row")
    return name


def _numbers(values: Sequence[Any], name: str) -> list[str]:
    """Formats the values of a channel as in a file."""
    cells = list[str]()
    for row, value in enumerate(values):
        try:
            cell = "" if is_missing(value) else repr(float(value))
        except (TypeError, ValueError) as error:
            raise ValueError(f"X, row {row}: column {name!r}: {value!r} is no number") from error
        cells.append(cell)
    return cells
