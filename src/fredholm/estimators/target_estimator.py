"""The base class of estimators that predict a target of each example."""

import functools
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar, final

import numpy as np
from sklearn.utils import _safe_indexing, check_consistent_length
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from fredholm.tasks.files.cells import LARGEST
from fredholm.tasks.graphs import GraphSet
from fredholm.tasks.tables.table_set import Rows
from fredholm.tasks.target_task import TargetTask
from fredholm.tasks.targets import Answers, Target

from .estimator import Estimator, as_array, real_numbers

Read = TypeVar("Read", bound=Sequence[Any] | np.ndarray | GraphSet | Rows)
"""X, checked."""
Weights = np.ndarray | None
"""Weights of the examples, float64 `(n,)`, above 0; None: all are 1."""


class TargetEstimator(Estimator, Generic[Read]):
    """Base class of estimators for tasks with a target: X holds examples, and y the target of each."""

    _decided: ClassVar[tuple[str, ...]] = (*Estimator._decided, "target", "quantiles")
    _answer_kind: ClassVar[str]
    """The target of an example, in words."""

    def fit(self, X: Any, y: Any) -> Self:
        """Trains a new model.

        Args:
            X: n examples; see the class.
            y: the target of each.

        Raises:
            ValueError: X or y are not as expected, settings do not fit, or `run_dir` is not empty.
            TypeError: X or a setting has the wrong type.
            DivergedError: the loss is not finite.
            KeyboardInterrupt: training was interrupted; with a `run_dir` its last step is saved there.
        """
        examples, y = self._checked_both(X, y)
        return self._fit(examples, y, self._write)

    @final
    def _checked_both(self, X: Any, y: Any) -> tuple[Read, Any]:
        """Returns the examples and y of a new model."""
        self._forget()
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None; give each example "
                f"{self._answer_kind}"
            )
        examples = self._checked(X, is_new=True)
        y = as_array(y)
        check_consistent_length(examples, y)
        return examples, y

    @final
    def _fit(self, examples: Read, y: Any, write: Callable[[Read, Answers, Path], dict[str, Any]]) -> Self:
        answers = self._answers(y)
        self._learn(lambda folder: write(examples, answers, folder))
        return self

    @final
    def _predicted(self, X: Any) -> tuple[Target, Tensor]:
        """Returns the target of the trained model, and the model's outputs `(n, num_outputs)`.

        Raises:
            NotFittedError: before `fit`.
            ValueError: X does not match the data of `fit`.
        """
        check_is_fitted(self)
        outputs = self._outputs(self._checked(X, is_new=False))
        task = self.trained_.task
        assert isinstance(task, TargetTask)
        return task.target, outputs

    @abstractmethod
    def _answers(self, y: Any) -> Answers:
        """Checks y; sets the attributes that `predict` needs."""

    @abstractmethod
    def _checked(self, X: Any, *, is_new: bool) -> Read:
        """Converts X to one form; where it is new sets the attributes that describe X, else compares X with them."""

    @abstractmethod
    def _write(self, examples: Read, answers: Answers, folder: Path) -> dict[str, Any]:
        """See `write` of `_learn`."""

    @abstractmethod
    def _outputs(self, examples: Read) -> Tensor:
        """Returns the trained model's outputs, `(n, num_outputs)`, on the CPU."""


class WeightedEstimator(TargetEstimator[Read]):
    """Base class of estimators whose task takes weights of examples."""

    @final
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Trains a new model.

        Args:
            X: n examples; see the class.
            y: the target of each.
            sample_weight: the weight of each, 0 or more, relative to their mean; an example of weight 0 is left out.
                None: all weigh the same.

        Raises:
            ValueError: X, y or sample_weight are not as expected, settings do not fit, or `run_dir` is not empty.
            TypeError: X or a setting has the wrong type.
            DivergedError: the loss is not finite.
            KeyboardInterrupt: training was interrupted; with a `run_dir` its last step is saved there.
        """
        examples, y = self._checked_both(X, y)
        weights = None if sample_weight is None else _checked_weights(sample_weight, len(examples))
        if weights is not None and not weights.all():
            kept = np.flatnonzero(weights)
            examples, y, weights = self._select(examples, kept), _safe_indexing(y, kept), weights[kept]
        return self._fit(examples, y, functools.partial(self._write, weights=weights))

    @abstractmethod
    def _select(self, examples: Read, indices: np.ndarray) -> Read:
        """Returns the examples at these indices, in this order."""

    @abstractmethod
    def _write(self, examples: Read, answers: Answers, folder: Path, weights: Weights = None) -> dict[str, Any]:
        """See `write` of `_learn`."""


def _checked_weights(sample_weight: Any, count: int) -> np.ndarray:
    """Returns the weights of the examples, float64 `(count,)`."""
    weights = real_numbers(sample_weight, "sample_weight is").astype(np.float64)
    if weights.shape != (count,):
        raise ValueError(f"sample_weight has shape {weights.shape}; expected ({count},), a weight for each example")
    for i in np.flatnonzero(~((weights >= 0) & (weights <= LARGEST)))[:1].tolist():
        raise ValueError(f"sample_weight[{i}] is {weights[i]}; expected a finite number of at least 0")
    if not weights.any():
        raise ValueError("all weights in sample_weight are zero; expected some above 0")
    return weights
