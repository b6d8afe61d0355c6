"""Estimators that predict classes, labels or numbers of time series."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
from sklearn.utils.validation import check_array, validate_data
from torch import Tensor

from fredholm.tasks.files.channel_names import chosen_channels
from fredholm.tasks.series.series_learning import SeriesLearning
from fredholm.tasks.series.series_set import SeriesSet
from fredholm.tasks.targets import Answers, Kind

from .classifier import Classifier
from .estimator import Estimator, as_array, real_numbers
from .regressor import Regressor
from .target_estimator import TargetEstimator

_NAMES: dict[Kind, tuple[str, str]] = {
    "class": ("train_labels", "classes"),
    "labels": ("train_labels", "classes"),
    "number": ("train_targets", "target_names"),
}
"""Names of the arrays of the targets and of their names."""


class ReadsSeries(Estimator):
    """Base class of estimators for the task `series` (`fredholm.tasks.SeriesLearning`) on arrays."""

    _task: ClassVar = SeriesLearning

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.three_d_array = True
        return tags

    @final
    def _checked(self, X: Any, *, is_new: bool) -> list[np.ndarray]:
        series = self._read(X, is_new=is_new)
        num_channels = series[0].shape[1]
        for i, each in enumerate(series):
            if each.shape[1] != num_channels:
                raise ValueError(f"series {i} of X has {each.shape[1]} channels, series 0 has {num_channels}")
        if is_new:
            self.num_channels_ = num_channels
        elif num_channels != self.num_channels_:
            raise ValueError(f"X has {num_channels} channels; {type(self).__name__} was fitted on {self.num_channels_}")
        return series

    def _read(self, X: Any, *, is_new: bool) -> list[np.ndarray]:
        """Parses X into series `(T, C)`."""
        if not (hasattr(X, "columns") and hasattr(X, "__array__")):  # column names of a data frame are used below
            X = as_array(X)
        if is_new:
            for name in ("n_features_in_", "feature_names_in_"):
                vars(self).pop(name, None)
        if (listed := listed_series(X)) is not None:
            if not listed:
                raise ValueError("X is empty; expected at least one series")
            return [one_series(each, i) for i, each in enumerate(listed)]
        rules: dict[str, Any] = {"dtype": [np.float64, np.float32], "ensure_all_finite": "allow-nan"}
        if np.asarray(X).ndim == 3:
            values = check_array(X, allow_nd=True, **rules)
            if 0 in values.shape:
                raise ValueError(f"X has shape {values.shape}; expected at least one channel and one sample")
            return list(values.transpose(0, 2, 1))
        # a model fitted on other forms of series has no number of features to compare with
        if is_new or hasattr(self, "n_features_in_"):
            values = np.asarray(validate_data(self, X, reset=is_new, **rules))
        else:
            values = np.asarray(check_array(X, **rules))
        return list(values[..., None])

    @final
    def _packed(self, examples: list[np.ndarray]) -> tuple[SeriesLearning, SeriesSet]:
        """Returns the task of the trained model, and series prepared for it."""
        task = self.trained_.task
        assert isinstance(task, SeriesLearning)
        names = tuple(f"series {i} of X" for i in range(len(examples)))
        channels = chosen_channels(self.num_channels_, own=None, known=task.facts.channels)[0]
        return task, task.prepared(SeriesSet.pack(examples, channels=channels, names=names))


class SeriesEstimator(ReadsSeries, TargetEstimator[list[np.ndarray]]):
    """Base class of estimators that predict an answer for each series."""

    @final
    def _write(self, examples: list[np.ndarray], answers: Answers, folder: Path) -> dict[str, Any]:
        path, (values_name, names) = folder / "series.npz", _NAMES[answers.kind]
        arrays: dict[str, Any] = {values_name: answers.values.numpy(), names: np.array(answers.names)}
        offsets = np.cumsum([0, *map(len, examples)])
        np.savez_compressed(path, train_values=np.concatenate(examples), train_offsets=offsets, **arrays)
        return {"data": str(path)}

    @final
    def _outputs(self, examples: list[np.ndarray]) -> Tensor:
        task, series = self._packed(examples)
        return task.outputs(self.trained_.model, series, self.trained_.device)


@final
class SeriesClassifier(SeriesEstimator, Classifier[list[np.ndarray]]):
    """Predicts the class or the labels of a time series, by the task `series`.

    X is an array `(n, T)` of n series with one channel and T samples, or `(n, C, T)`, of C channels; or a list, or a
    column of a data frame, of arrays `(T,)` or `(C, T)` of different lengths. NaN is a missing value. Samples are one
    unit of time apart. `predict` takes series of other lengths too, except where both X are arrays `(n, T)`, or nested
    lists of equal lengths: there T is scikit-learn's number of features and must be the same.

    Args:
        preset, model, task, training, valid_fraction, random_state, run_dir, verbose: see `Classifier`.
    """


@final
class SeriesRegressor(SeriesEstimator, Regressor[list[np.ndarray]]):
    """Predicts numbers of a time series, by the task `series`; for X see `SeriesClassifier`.

    Args:
        preset, model, task, training, valid_fraction, random_state, run_dir, verbose, quantiles: see `Regressor`.
    """


def listed_series(X: Any) -> Sequence[Any] | None:
    """Returns the series of a list or an object array; None where X is an array, or nested lists, of numbers."""
    is_listed = isinstance(X, list | tuple) or (isinstance(X, np.ndarray) and X.dtype == object and X.ndim == 1)
    if not is_listed or (len(X) and np.ndim(X[0]) == 0):
        return None
    for i, each in enumerate(X):
        # values with their times would be read as two channels
        if isinstance(each, tuple) and each and np.ndim(each[0]):
            raise ValueError(
                f"series {i} of X is a tuple of {len(each)}; expected an array (T,) or (C, T), whose samples are one "
                "unit apart; samples at times of their own are read from files, by the task series"
            )
    if isinstance(X, np.ndarray):
        return list(X)
    is_table = not any(hasattr(each, "__array__") for each in X) and len({np.shape(each) for each in X}) == 1
    return None if is_table else list(X)


def one_series(series: Any, number: int) -> np.ndarray:
    """Converts a series `(T,)` or `(C, T)` to `(T, C)`."""
    values = real_numbers(series, f"series {number} of X is")
    values = values if values.dtype == np.float32 else values.astype(np.float64)
    if values.ndim not in (1, 2) or 0 in values.shape:
        raise ValueError(f"series {number} of X has shape {values.shape}; expected (T,) or (C, T), both at least 1")
    if np.isinf(values).any():
        raise ValueError(f"series {number} of X contains infinity; NaN is a missing value")
    return values.T if values.ndim == 2 else values[:, None]
