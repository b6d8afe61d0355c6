"""Weights of examples in estimators; scikit-learn's own checks of them are in `test_scikit_learn_checks.py`."""

from typing import Any

import numpy as np
import pytest

from fredholm import ImageClassifier, TableClassifier, TableRegressor, TextClassifier
from fredholm.models import NGramBank, TableMachine
from tests.refusals import refused

TABLE = TableMachine.Config(num_centres=30, num_trees=0)
TEXT = NGramBank.Config(num_grams=100, letter_order=0)
WEIGHTS = np.array([0.0, 1, 2, 3, 1, 1] * 4)
ROWS = np.random.default_rng(0).normal(size=(24, 2))
TEXTS = [f"{word} number {i}" for i in range(12) for word in ("apples", "zebras")]
CLASSES = np.array(["a", "z"] * 12)
CLASSES[WEIGHTS == 0] = "only in examples of weight 0"
CASES: dict[str, tuple[Any, Any, Any]] = {
    "rows, classes": (TableClassifier(model=TABLE, random_state=0), ROWS, CLASSES),
    "rows, numbers": (TableRegressor(model=TABLE, random_state=0), ROWS, ROWS[:, 0] ** 2),
    "texts": (TextClassifier(model=TEXT, random_state=0), TEXTS, CLASSES),
}


def some(X: Any, indices: np.ndarray) -> Any:
    return X[indices] if isinstance(X, np.ndarray) else [X[i] for i in indices]


@pytest.mark.parametrize("name", CASES)
def test_only_ratios_of_weights_count_and_0_leaves_an_example_out(name: str) -> None:
    estimator, X, y = CASES[name]
    predict = "predict_proba" if hasattr(estimator, "predict_proba") else "predict"
    kept = np.flatnonzero(WEIGHTS)
    found = getattr(estimator.fit(X, y, sample_weight=WEIGHTS), predict)(X)
    without = getattr(estimator.fit(some(X, kept), y[kept], sample_weight=4 * WEIGHTS[kept]), predict)(X)
    np.testing.assert_array_equal(found, without)
    plain = getattr(estimator.fit(some(X, kept), y[kept]), predict)(X)
    assert np.abs(found - plain).max() > 1e-4
    expected = np.average(estimator.predict(X) == y, weights=WEIGHTS)
    assert "numbers" in name or estimator.score(X, y, sample_weight=WEIGHTS) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(23), "sample_weight has shape (23,); expected (24,), a weight for each example"),
        (np.ones((24, 1)), "sample_weight has shape (24, 1); expected (24,)"),
        (2.0, "sample_weight has shape (); expected (24,)"),
        (-WEIGHTS, "sample_weight[1] is -1.0; expected a finite number of at least 0"),
        (np.where(WEIGHTS == 2, np.nan, 1), "sample_weight[2] is nan"),
        (np.where(WEIGHTS == 3, np.inf, 1), "sample_weight[3] is inf"),
        (0 * WEIGHTS, "all weights in sample_weight are zero; expected some above 0"),
        (["heavy"] * 24, "sample_weight is no array of numbers"),
    ],
)
def test_wrong_weights_are_refused(weights: Any, message: str) -> None:
    with refused(ValueError, message):
        TableRegressor(model=TABLE).fit(ROWS, ROWS[:, 0], sample_weight=weights)


def test_weights_are_a_parameter_alone() -> None:
    with refused(ValueError, "task has no setting 'weights'"):
        TableRegressor(model=TABLE, task={"weights": "x0"}).fit(ROWS, ROWS[:, 0])


def test_estimators_of_tasks_without_weights_have_no_such_argument() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'sample_weight'"):
        ImageClassifier().fit(np.zeros((4, 5, 5)), [0, 1, 0, 1], sample_weight=np.ones(4))  # pyright: ignore[reportCallIssue]
