"""The estimator that predicts the class of each sample of time series."""

from pathlib import Path
from typing import Any, ClassVar, Self, final

import numpy as np
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import check_is_fitted

from .classifier import class_names
from .estimator import Estimator, as_array, is_missing
from .series import ReadsSeries


@final
class SampleClassifier(ReadsSeries):
    """Predicts the class of each sample of time series, by the task `series`; for X see `SeriesClassifier`.

    y has the classes of the samples of each series, `(n, T)` or a list of arrays `(T,)`: integers, texts or truth
    values; NaN or None: not known.

    Args:
        preset, model, task, training, valid_fraction, random_state, run_dir, verbose: see `Estimator`.

    Attributes:
        classes_: the sorted classes, in the order of the columns of `predict_proba`.
        trained_, valid_metrics_: see `Estimator`.
    """

    _decided: ClassVar[tuple[str, ...]] = (*Estimator._decided, "target", "quantiles")

    def fit(self, X: Any, y: Any) -> Self:
        """Trains a new model.

        Args:
            X: n series.
            y: the classes of their samples.

        Raises:
            ValueError: X or y are not as expected, settings do not fit, or `run_dir` is not empty.
            TypeError: X or a setting has the wrong type.
            DivergedError: the loss is not finite.
            KeyboardInterrupt: training was interrupted; with a `run_dir` its last step is saved there.
        """
        self._forget()
        series = self._checked(X, is_new=True)
        check_consistent_length(series, as_array(y))
        classes, numbers = _numbered(_rows(y, series))
        names = class_names(classes)
        self.classes_ = classes

        def write(folder: Path) -> dict[str, Any]:
            path, offsets = folder / "series.npz", np.cumsum([0, *map(len, series)])
            arrays: dict[str, Any] = {"train_values": np.concatenate(series), "train_labels": np.concatenate(numbers)}
            np.savez_compressed(path, train_offsets=offsets, classes=np.array(names), **arrays)
            return {"data": str(path), "target": "samples"}

        self._learn(write)
        return self

    def predict_proba(self, X: Any) -> Any:
        """Returns the probability of each class of each sample, a list of float32 `(T, classes)`.

        Where X is an array, so is the result, `(n, T, classes)`.

        Raises:
            NotFittedError: before `fit`.
            ValueError: X does not match the data of `fit`.
        """
        check_is_fitted(self)
        task, series = self._packed(self._checked(X, is_new=False))
        order = [task.target.names.index(name) for name in class_names(self.classes_)]
        found = task.probabilities(self.trained_.model, series, self.trained_.device)
        each = [own[:, order].numpy() for own in found]
        return np.stack(each) if _is_array(X) else each

    def predict(self, X: Any) -> Any:
        """Returns the likeliest class of each sample, a list of `(T,)`, or `(n, T)` where X is an array.

        Raises as `predict_proba`.
        """
        each = [self.classes_[own.argmax(-1)] for own in self.predict_proba(X)]
        return np.stack(each) if _is_array(X) else each

    def score(self, X: Any, y: Any) -> float:
        """Returns the share of the samples of known class that are predicted right.

        Raises:
            NotFittedError: before `fit`.
            ValueError: X does not match the data of `fit`, or y does not match X, or no class is known.
        """
        predicted = list(self.predict(X))
        known = _rows(y, predicted)
        right = [
            own == label
            for row, labels in zip(predicted, known, strict=True)
            for own, label in zip(row.tolist(), labels, strict=True)
            if not is_missing(label)
        ]
        if not right:
            raise ValueError("y has no class that is known; expected at least one")
        return float(np.mean(right))


def _is_array(X: Any) -> bool:
    values = as_array(X)
    return isinstance(values, np.ndarray) and values.dtype != object


def _rows(y: Any, series: list[np.ndarray]) -> list[list[Any]]:
    """The classes of the samples of each series.

    Raises:
        ValueError: there are not as many as samples.
    """
    rows = [np.asarray(as_array(own)) for own in as_array(y)]
    for i, (own, values) in enumerate(zip(rows, series, strict=True)):
        if own.shape != (len(values),):
            raise ValueError(
                f"the classes of series {i} in y have shape {own.shape}; expected one of each sample, ({len(values)},)"
            )
    return [own.tolist() for own in rows]


def _numbered(rows: list[list[Any]]) -> tuple[np.ndarray, list[np.ndarray]]:
    """The classes, sorted, and the number of the class of each sample, -1 where it is not known.

    Raises:
        ValueError: classes are fractions or of several kinds, or there are fewer than two.
    """
    given = {label for own in rows for label in own if not is_missing(label)}
    for label in given:
        if isinstance(label, float) and not label.is_integer():
            raise ValueError(
                f"y has {label}; expected classes: whole numbers, texts or truth values, NaN where unknown"
            )
    try:
        classes = sorted(given)
    except TypeError as error:
        raise ValueError(f"the classes in y are of several kinds ({error}); make them all numbers, or texts") from error
    if len(classes) < 2:
        raise ValueError(f"y has the classes {classes}; expected at least 2")
    are_floats = all(isinstance(label, float) for label in classes)  # NaN makes whole numbers floats
    number = {label: k for k, label in enumerate(classes)}
    found = [np.array([-1 if is_missing(label) else number[label] for label in own], np.int64) for own in rows]
    return np.array([int(label) for label in classes] if are_floats else classes), found
