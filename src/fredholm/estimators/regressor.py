"""The base class of estimators that predict numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.utils import check_array

from fredholm.tasks.targets import Answers, NumberAnswers, NumberTarget
from fredholm.tasks.targets.numbers import check_quantiles

from .target_estimator import Read, TargetEstimator


@dataclass(kw_only=True, eq=False, repr=False)
class Regressor(RegressorMixin, TargetEstimator[Read]):
    """Base class of estimators that predict numbers.

    `y` holds n finite numbers, or n rows of k. `score` is R², averaged over several numbers.

    Args:
        preset, model, task, training, valid_fraction, random_state, run_dir, verbose: see `Estimator`.
        quantiles: levels for `predict_quantiles`, such as (0.1, 0.5, 0.9), trained by the quantile loss in place of the
            squared error; (): only the mean is predicted.

    Attributes:
        trained_, valid_metrics_: see `Estimator`.
    """

    _answer_kind: ClassVar[str] = "a number"

    quantiles: Sequence[float] = ()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    @final
    def predict(self, X: Any) -> np.ndarray:
        """Predicts the numbers of each example, float64 in the form of y, for examples as in `fit`.

        With quantiles, the prediction is the quantile nearest to one half, or the mean of two that are equally near.

        Raises:
            NotFittedError: before `fit`.
            ValueError: X does not match the data of `fit`.
        """
        target, outputs = self._predicted(X)
        return target.predictions(outputs.double()).numpy().reshape(len(outputs), *self._shape)

    @final
    def predict_quantiles(self, X: Any) -> np.ndarray:
        """Predicts quantiles of the numbers of each example, float64 in the form of y with a last axis of Q quantiles.

        Raises:
            NotFittedError: before `fit`.
            ValueError: as raised by `predict`, or the model was fitted without quantiles.
        """
        target, outputs = self._predicted(X)
        assert isinstance(target, NumberTarget)
        refuse_none(self, target)
        return target.levels_of(outputs.double()).numpy().reshape(len(outputs), *self._shape, -1)

    @final
    def _answers(self, y: Any) -> Answers:
        rules: dict[str, Any] = {"dtype": np.float64}
        # scikit-learn would take nanoseconds since 1970
        if (kind := np.asarray(y).dtype).kind in "mM":
            raise ValueError(f"y is {kind}; expected numbers, such as days since a date: (y - date) / Timedelta('1D')")
        try:
            values = np.asarray(check_array(y, ensure_2d=False, input_name="y", **rules))
        except TypeError as error:
            raise ValueError(f"y is no array of numbers: {error}") from error
        if len(values) < 2:
            raise ValueError("y has 1 sample; expected at least 2, with numbers that differ")
        columns = values.reshape(len(values), -1)
        names = tuple(f"target_{number}" for number in range(columns.shape[1])) if columns.shape[1] > 1 else ("target",)
        for name, column in zip(names, columns.T, strict=True):
            if column.min() == column.max():
                raise ValueError(f"{name} of y is {column[0]:g} in all examples; expected numbers that differ")
        self._shape = values.shape[1:]
        return NumberAnswers(names=names, values=torch.from_numpy(columns.copy()))

    def _task_settings(self) -> dict[str, Any]:
        return super()._task_settings() | {"quantiles": checked_quantiles(self.quantiles)}


def checked_quantiles(quantiles: Any) -> tuple[float, ...]:
    """Returns the quantile levels in the task's form.

    Raises:
        TypeError: they are no sequence of numbers.
        ValueError: they are not increasing, above 0 and below 1.
    """
    try:
        levels = tuple(float(level) for level in quantiles)
    except (TypeError, ValueError):
        expected = "numbers above 0 and below 1, increasing, such as (0.1, 0.5, 0.9)"
        raise TypeError(f"quantiles is {quantiles!r}; expected {expected}") from None
    check_quantiles(levels)
    return levels


def refuse_none(estimator: object, target: NumberTarget) -> None:
    """Raises a ValueError where a model predicts no quantiles."""
    if not target.quantiles:
        raise ValueError(
            f"{type(estimator).__name__} was fitted without quantiles; pass some, such as quantiles=(0.1, 0.5, 0.9), "
            "and fit it again"
        )
