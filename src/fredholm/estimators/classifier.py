"""The base class of estimators that predict classes or labels."""

from typing import Any, ClassVar, final

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils import assert_all_finite, check_array, column_or_1d
from sklearn.utils.multiclass import check_classification_targets, is_multilabel

from fredholm.tasks.targets import Answers, ClassAnswers, LabelAnswers, Target

from .estimator import is_missing
from .target_estimator import Read, TargetEstimator


class Classifier(ClassifierMixin, TargetEstimator[Read]):
    """Base class of estimators that predict classes or labels.

    `y` holds n classes of one kind: integers, texts or booleans. Or it has n rows of 0 and 1, one column per label,
    which mark the labels of each example, where the estimator takes labels.

    Args:
        preset, model, task, training, valid_fraction, random_state, run_dir, verbose: see `Estimator`.

    Attributes:
        classes_: the sorted classes, in the order of the columns of `predict_proba`; for labels the column numbers of
            y.
        trained_, valid_metrics_: see `Estimator`.
    """

    _answer_kind: ClassVar[str] = "a class"
    _takes_labels: ClassVar[bool] = True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = tags.target_tags.multi_output = self._takes_labels
        return tags

    @final
    def predict_proba(self, X: Any) -> np.ndarray:
        """Returns the probability of each class or label, float32 `(n, classes)`, for examples as in `fit`.

        Raises:
            NotFittedError: before `fit`.
            ValueError: X does not match the data of `fit`.
        """
        return self._probabilities(X)[1]

    @final
    def predict(self, X: Any) -> np.ndarray:
        """Returns the likeliest class of each example, `(n,)`; for labels 1 from a probability of 0.5 on, else 0.

        Labels are int64 `(n, labels)`. Raises as `predict_proba`.
        """
        target, predicted = self._probabilities(X)
        return (
            (predicted >= 0.5).astype(np.int64) if target.kind == "labels" else self.classes_[predicted.argmax(axis=1)]
        )

    def _probabilities(self, X: Any) -> tuple[Target, np.ndarray]:
        """Returns the target of the trained model, and the result of `predict_proba`."""
        target, outputs = self._predicted(X)
        names = _label_names(len(self.classes_)) if target.kind == "labels" else class_names(self.classes_)
        return target, target.predictions(outputs)[:, [target.names.index(name) for name in names]].numpy()

    @final
    def _answers(self, y: Any) -> Answers:
        if self._takes_labels and is_multilabel(y):
            labels = _labels(y)
            self.classes_ = np.arange(labels.shape[1])
            return LabelAnswers(names=_label_names(labels.shape[1]), values=torch.from_numpy(labels))
        self.classes_, codes = _classes(y)
        return ClassAnswers(names=class_names(self.classes_), values=torch.from_numpy(codes.astype(np.int64)))


def class_names(classes: np.ndarray) -> tuple[str, ...]:
    """Returns the names of the classes in a run.

    Raises:
        ValueError: two names are equal, or one is empty.
    """
    given = [str(each) for each in classes.tolist()]
    names = tuple(each.strip() for each in given)
    if "" in names:
        raise ValueError(f"a class is {given[names.index('')]!r}, an empty text; give it a name")
    if twice := [name for place, name in enumerate(names) if name in names[:place]]:
        alike = [each for each, name in zip(given, names, strict=True) if name == twice[0]]
        raise ValueError(f"the classes {alike} have equal texts; give each another text")
    return names


def _label_names(count: int) -> tuple[str, ...]:
    return tuple(f"label_{number}" for number in range(count))


def _labels(y: Any) -> np.ndarray:
    """Returns the labels of each example, bool `(n, L)` with L above 1."""
    rules: dict[str, Any] = {"dtype": None}
    values = np.asarray(check_array(y, input_name="y", **rules))
    if not np.isin(values, (0, 1)).all():
        raise ValueError(f"y has the values {np.unique(values).tolist()}; expected 1 of each label that is there, or 0")
    if (values == values[0]).all():
        raise ValueError("all rows of y have the same labels; expected some that differ")
    return values.astype(bool)


def _classes(y: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns the classes, sorted, and the class number of each example."""
    labels = column_or_1d(y, warn=True)
    if labels.dtype.kind == "f":
        assert_all_finite(labels, input_name="y")
    elif labels.dtype.kind == "O":
        for i, label in enumerate(labels):
            if is_missing(label):
                raise ValueError(f"y[{i}] is {label!r}, a missing value; give that example a class, or leave it out")
    try:
        classes, codes = np.unique(labels, return_inverse=True)
    except TypeError as error:
        raise ValueError(
            f"the classes in y are of several kinds ({error}); make them all integers, or all texts"
        ) from error
    check_classification_targets(labels)
    if len(classes) < 2:
        raise ValueError(f"y has only one class, {classes[0]}; expected at least 2")
    return classes, codes
