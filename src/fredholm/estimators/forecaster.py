"""An estimator for forecasting time series."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, final

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from fredholm.tasks.forecasts import LongSeries
from fredholm.tasks.forecasts.forecasting import Forecasting
from fredholm.tasks.forecasts.long_series import observed_before

from .estimator import Estimator
from .forecast_inputs import ForecastInput, Forecasts, forecast_input
from .regressor import checked_quantiles, refuse_none


@final
@dataclass(kw_only=True, eq=False, repr=False)
class SeriesForecaster(Estimator):
    """Predicts the next samples of time series, by the task `forecast` (`fredholm.tasks.Forecasting`).

    X is one series `(T,)`; an array `(n, T)` of n series with one channel and T samples, or `(n, C, T)`, of C channels;
    or a list of series `(T,)` or `(C, T)` of their own lengths. NaN is a missing value. Samples are one unit of time
    apart. Or X is a data frame of pandas or polars with a row for each sample, and their times as its index or in a
    column `time`; its other columns are channels, except that one called `series` names the series of a row, as in
    files of the command line. The model is fitted on all of X: unlike a run of the command line, the estimator has no
    test part.

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
        given = forecast_input(X)
        given.check(self.horizon or 1, self._task_settings().get("bin"))
        self._learn(lambda folder: {"data": str(given.write(folder)), "test_fraction": 0.0})
        facts = self._forecasting.facts
        self.num_channels_ = len(facts.channels)
        series = given.series(self._forecasting)
        kept = list[LongSeries]()
        for each, filled in zip(series, observed_before(series), strict=True):
            end = self._forecasting.end_of(each)
            start = max(0, end - facts.num_read)
            values = torch.cat([filled[start:end], each.values[end:]])
            kept.append(replace(each, values=values, start=facts.clock.after(each.start, start, each.day)))
        self._form, self._ends = given.without_samples(), kept
        return self

    def predict(self, X: Any = None) -> Any:
        """Predicts the next samples, float64 `(horizon,)`, `(n, horizon)` or `(n, predicted, horizon)`, like X.

        For a data frame with times it is a data frame with a row for each predicted sample, or for one column a column.
        With quantiles, the prediction is the quantile nearest to one half, or the mean of two that are equally near.

        Args:
            X: series to continue, as in `fit`, each at least as long as the context; None: those of `fit`.

        Raises:
            NotFittedError: before `fit`.
            ValueError: X does not match the data of `fit`.
        """
        form, series = self._read(X)
        return form.arranged(self._forecasts(series)[1])

    def predict_quantiles(self, X: Any = None) -> Any:
        """Predicts the quantiles of the next samples of each series, like `predict` with a last axis of Q quantiles.

        A data frame has a column for each quantile in place, such as `sales at 0.9`.

        Raises:
            NotFittedError: before `fit`.
            ValueError: as raised by `predict`, or the model was fitted without quantiles.
        """
        form, series = self._read(X)
        levels, _ = self._forecasts(series)
        refuse_none(self, self._forecasting.facts.target)
        return form.arranged(levels)

    def score(self, X: Any, y: Any) -> float:
        """Returns the negative mean absolute scaled error; -1 is as good as the seasonal naive forecast.

        The error is scaled by the mean change of a channel of X over a season (Hyndman and Koehler, 2006).

        Args:
            X: series, as in `predict`.
            y: the true next samples, like the result of `predict`; NaN: missing, and left out.

        Raises:
            NotFittedError: before `fit`.
            ValueError: X does not match the data of `fit`, or y has another shape, or other times.
        """
        form, series = self._read(X)
        _, predicted = self._forecasts(series)
        scale = torch.stack([self._forecasting.error_scale(each.values) for each in series])
        error = np.abs(predicted.values.numpy() - form.values_of(y, predicted)) / scale.numpy()
        if np.isnan(error).all():
            raise ValueError("all of y is missing; expected some samples to compare with")
        return -float(np.nanmean(error))

    @property
    def _forecasting(self) -> Forecasting:
        task = self.trained_.task
        assert isinstance(task, Forecasting)
        return task

    def _read(self, X: Any) -> tuple[ForecastInput, list[LongSeries]]:
        """Returns the form of X and its series; those of `fit` for None."""
        check_is_fitted(self)
        if X is None:
            return self._form, self._ends
        given = forecast_input(X)
        return given, given.series(self._forecasting)

    def _forecasts(self, series: list[LongSeries]) -> tuple[Forecasts, Forecasts]:
        """Returns forecasts of the quantiles, where there are any, and of one number for each sample."""
        task = self._forecasting
        for each in series:
            task.check(each, "X")
        levels, values = task.forecasts(self.trained_.model, series, self.trained_.device)
        facts = task.facts
        ends = [(each, task.end_of(each)) for each in series]
        one = Forecasts(
            names=[each.name for each in series],
            channels=facts.predicted,
            times=[[facts.clock.after(s.start, end + h, s.day) for h in range(facts.horizon)] for s, end in ends],
            clock=facts.clock,
            values=values,
        )
        return replace(one, values=levels, levels=facts.target.quantiles), one

    def _task_settings(self) -> dict[str, Any]:
        given = super()._task_settings()
        named = {"horizon": self.horizon, "season": self.season}
        for name, value in named.items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | np.integer)):
                raise TypeError(f"{name} is {value!r}; expected a number of samples, at least 1, or None")
        known = {name: int(value) for name, value in named.items() if value is not None}
        return given | known | {"quantiles": checked_quantiles(self.quantiles)}
