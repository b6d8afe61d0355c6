"""An estimator for forecasting time series."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, final

import numpy as np
import torch
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from fredholm.tasks.forecasts import LongSeries
from fredholm.tasks.forecasts.forecasting import Forecasting
from fredholm.tasks.forecasts.long_series import observed_before

from .estimator import Estimator, as_array, real_numbers
from .regressor import checked_quantiles, refuse_none
from .series import listed_series, one_series


@final
@dataclass(kw_only=True, eq=False, repr=False)
class SeriesForecaster(Estimator):
    """Predicts the next samples of time series, by the task `forecast` (`fredholm.tasks.Forecasting`).

    X is one series `(T,)`; an array `(n, T)` of n series with one channel and T samples, or `(n, C, T)`, of C channels;
    or a list of series `(T,)` or `(C, T)` of their own lengths. NaN is a missing value. Samples are one unit of time
    apart. The model is fitted on all of X: unlike a run of the command line, the estimator has no test part.

    Where `task={"known": ("channel_1",)}` names channels that are known ahead, X also holds their future samples, at
    which the other channels are NaN.

    Args:
        preset, model, task, training, random_state, run_dir, verbose: see `Estimator`; `task={"context": 48}` sets the
            number of samples that the model sees.
        valid_fraction: share at the end of every series on which a network is chosen; see `Estimator`.
        horizon: number of samples to predict; None: a season, or 10 without one.
        season: period in samples; 1: no seasonality; None: estimated by autocorrelation.
        quantiles: levels for `predict_quantiles`, such as (0.1, 0.5, 0.9); (): only the mean is predicted.

    Attributes:
        trained_, valid_metrics_: see `Estimator`; `trained_.task.facts` has the horizon, context and season.
    """

    _task: ClassVar = Forecasting
    _decided: ClassVar = (*Estimator._decided, "horizon", "season", "quantiles")
    _given_data: ClassVar = "X"

    horizon: int | None = None
    season: int | None = None
    quantiles: Sequence[float] = ()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.three_d_array = tags.input_tags.one_d_array = True
        tags.target_tags.required = False
        return tags

    def fit(self, X: Any, y: None = None) -> Self:
        """Trains a new model.

        Args:
            X: series; see the class.
            y: must be omitted, since the targets are later samples of X.

        Raises:
            ValueError: X is not as expected, or too short; settings do not fit, or `run_dir` is not empty.
            TypeError: a setting has the wrong type.
            DivergedError: the loss is not finite.
            KeyboardInterrupt: training was interrupted; with a `run_dir` its last step is saved there.
        """
        self._forget()
        if y is not None:
            raise ValueError("y was passed beside X; leave it out: the targets are later samples of X itself")
        given = _Given.of(X)
        most, least = max(map(len, given.series)), 1 + (self.horizon or 1)
        if not given.is_one and most < least <= len(given.series):
            raise ValueError(
                f"X has {len(given.series)} series of at most {most} samples, fewer than a horizon of {least - 1} and "
                "one to learn from; if the rows of X are times, pass X.T"
            )

        def write(folder: Path) -> dict[str, Any]:
            path, offsets = folder / "series.npz", np.cumsum([0, *map(len, given.series)])
            np.savez_compressed(path, values=np.concatenate(given.series), offsets=offsets)
            return {"data": str(path), "test_fraction": 0.0}

        self._learn(write)
        self.num_channels_ = given.series[0].shape[1]
        series, most = _long(given.series), self._forecasting.facts.num_read
        kept, starts = list[np.ndarray](), list[int]()
        for each, filled in zip(series, observed_before(series), strict=True):
            end = self._forecasting.end_of(each)
            starts.append(max(0, end - most))
            kept.append(torch.cat([filled[starts[-1] : end], each.values[end:]]).numpy())
        self._ends = given._replace(series=kept, starts=starts)
        return self

    def predict(self, X: Any = None) -> np.ndarray:
        """Predicts the next samples, float64 `(horizon,)`, `(n, horizon)` or `(n, predicted, horizon)`, like X.

        With quantiles, the prediction is the quantile nearest to one half, or the mean of two that are equally near.

        Args:
            X: series to continue, as in `fit`, each at least as long as the context; None: those of `fit`.

        Raises:
            NotFittedError: before `fit`.
            ValueError: X does not match the data of `fit`.
        """
        given, _, number = self._forecasts(X)
        return given.laid(number)

    def predict_quantiles(self, X: Any = None) -> np.ndarray:
        """Predicts the quantiles of the next samples of each series, like `predict` with a last axis of Q quantiles.

        Raises:
            NotFittedError: before `fit`.
            ValueError: as of `predict`, or the model was fitted without quantiles.
        """
        given, levels, _ = self._forecasts(X)
        refuse_none(self, self._forecasting.facts.target)
        return given.laid(levels)

    def score(self, X: Any, y: Any) -> float:
        """Returns the negative mean absolute scaled error; -1 is as good as the seasonal naive forecast.

        The error is scaled by the mean change of a channel of X over a season (Hyndman and Koehler, 2006).

        Args:
            X: series, as in `predict`.
            y: the true next samples, of the shape of the result of `predict`; NaN: missing, and left out.

        Raises:
            NotFittedError: before `fit`.
            ValueError: X does not match the data of `fit`, or y has another shape.
        """
        given, _, number = self._forecasts(X)
        predicted, true = given.laid(number), real_numbers(y, "y is")
        if true.shape != predicted.shape:
            raise ValueError(f"y has shape {true.shape}; expected {predicted.shape}, the next samples of each series")
        scale = torch.stack([self._forecasting.error_scale(torch.from_numpy(each).double()) for each in given.series])
        error = np.abs(predicted - true) / given.laid(scale.expand_as(number))
        if np.isnan(error).all():
            raise ValueError("all of y is missing; expected some samples to compare with")
        return -float(np.nanmean(error))

    @property
    def _forecasting(self) -> Forecasting:
        task = self.trained_.task
        assert isinstance(task, Forecasting)
        return task

    def _forecasts(self, X: Any) -> "tuple[_Given, Tensor, Tensor]":
        """Returns the parsed X with the results of `Forecasting.forecasts`."""
        check_is_fitted(self)
        given = self._ends if X is None else _Given.of(X)
        if (got := given.series[0].shape[1]) != self.num_channels_:
            raise ValueError(f"X has {got} channels; {type(self).__name__} was fitted on {self.num_channels_}")
        series = _long(given.series, given.starts)
        for each in series:
            self._forecasting.check(each, "X")
        return given, *self._forecasting.forecasts(self.trained_.model, series, self.trained_.device)

    def _task_settings(self) -> dict[str, Any]:
        given = super()._task_settings()
        named = {"horizon": self.horizon, "season": self.season}
        for name, value in named.items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | np.integer)):
                raise TypeError(f"{name} is {value!r}; expected a number of samples, at least 1, or None")
        known = {name: int(value) for name, value in named.items() if value is not None}
        return given | known | {"quantiles": checked_quantiles(self.quantiles)}


class _Given(NamedTuple):
    """Series `(T, C)` of an X, its original form, and the index of the first sample of each; () for whole series."""

    series: list[np.ndarray]
    is_one: bool
    has_channels: bool
    starts: Sequence[int] = ()

    @classmethod
    def of(cls, X: Any) -> "_Given":
        """Parses the series of X, which must have equal numbers of channels."""
        index = getattr(X, "index", None) if hasattr(X, "columns") else None
        if str(getattr(index, "dtype", "")).startswith(("datetime64", "period")):
            raise ValueError(
                "X is a data frame with times as rows, but each row would be read as a series; pass X.T.to_numpy() for "
                "a series per column, or X.T.to_numpy()[None] for one series whose channels are the columns"
            )
        X = as_array(X)
        if (listed := listed_series(X)) is not None:
            if not listed:
                raise ValueError("X is empty; expected at least one series")
            given = cls([one_series(each, i) for i, each in enumerate(listed)], False, np.ndim(listed[0]) == 2)
        else:
            # one series too, whose samples are not features
            rules: dict[str, Any] = {"dtype": [np.float64, np.float32], "ensure_all_finite": "allow-nan"}
            values = np.asarray(check_array(X, ensure_2d=False, allow_nd=True, **rules))
            if values.ndim > 3 or 0 in values.shape:
                raise ValueError(f"X has shape {values.shape}; expected (T,), (n, T) or (n, C, T), none of them 0")
            whole = values[None] if values.ndim == 1 else values
            of_channels = whole.transpose(0, 2, 1) if whole.ndim == 3 else whole[..., None]
            given = cls(list(of_channels), values.ndim == 1, values.ndim == 3)
        num_channels = given.series[0].shape[1]
        for i, each in enumerate(given.series):
            if each.shape[1] != num_channels:
                raise ValueError(f"series {i} of X has {each.shape[1]} channels, series 0 has {num_channels}")
        return given

    def laid(self, values: Tensor) -> np.ndarray:
        """Arranges values `(n, H, F, ...)` like X: F before H, or without F, and without n for a single series."""
        found = values.movedim(2, 1) if self.has_channels else values[:, :, 0]
        return (found[0] if self.is_one else found).numpy()


def _long(series: Sequence[np.ndarray], starts: Sequence[int] = ()) -> list[LongSeries]:
    return [
        LongSeries(name=f"series {i}", values=torch.from_numpy(each.astype(np.float64)), start=float(start))
        for i, (each, start) in enumerate(zip(series, starts or [0] * len(series), strict=True))
    ]
