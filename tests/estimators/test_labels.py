"""Several labels per example, as rows of 0 and 1."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import accuracy_score

from fredholm.estimators import Classifier
from fredholm.training import Run
from tests.estimators.cases import CASES, NUM, Case
from tests.refusals import refused

OF_LABELS = ("images", "series", "texts")
CLASS = np.arange(NUM) % 2
LABELS = np.stack([CLASS, 1 - CLASS, np.ones(NUM, int)], axis=1)
BRIEF = {"epochs": 1}


@pytest.fixture(scope="module", params=OF_LABELS)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]()


@pytest.fixture(scope="module")
def fitted(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Classifier[Any]:
    return case.new(run_dir=tmp_path_factory.mktemp("runs") / "run").fit(case.X, LABELS)


@pytest.mark.slow
def test_it_learns_the_labels_of_an_example(case: Case, fitted: Classifier[Any]) -> None:
    predicted, probabilities = fitted.predict(case.X), fitted.predict_proba(case.X)
    assert (predicted.shape, predicted.dtype) == ((NUM, 3), np.int64)
    np.testing.assert_array_equal(predicted, probabilities >= 0.5)
    assert probabilities.min() >= 0
    assert probabilities.max() <= 1
    assert fitted.score(case.X, LABELS) == accuracy_score(LABELS, predicted) >= 0.9
    assert fitted.classes_.tolist() == [0, 1, 2]
    assert "average_precision" in fitted.valid_metrics_


def test_a_copy_and_the_run_folder_give_the_same(case: Case, fitted: Classifier[Any]) -> None:
    other = pickle.loads(pickle.dumps(fitted))  # noqa: S301 - written here
    assert (other.predict_proba(case.X) == fitted.predict_proba(case.X)).all()
    assert fitted.run_dir is not None
    assert Run(Path(fitted.run_dir), device="cpu").evaluate("valid") == pytest.approx(fitted.valid_metrics_)


def test_labels_may_be_arrays_lists_booleans_or_floats(case: Case) -> None:
    found = [
        case.new(training=BRIEF).fit(case.X, y).predict_proba(case.X)
        for y in (LABELS, LABELS.tolist(), LABELS.astype(bool), LABELS.astype(float))
    ]
    assert all((each == found[0]).all() for each in found)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (LABELS + 1, "y has the values [1, 2]; expected 1 of each label that is there, or 0"),
        (np.ones((NUM, 2), int), "all rows of y have the same labels; expected some that differ"),
        (LABELS[:-1], f"inconsistent numbers of samples: [{NUM}, {NUM - 1}]"),
    ],
)
def test_bad_labels_are_refused(case: Case, y: Any, message: str) -> None:
    with refused(ValueError, message):
        case.new().fit(case.X, y)


@pytest.mark.parametrize("name", [name for name in CASES if name not in OF_LABELS])
def test_other_estimators_take_a_single_class(name: str) -> None:
    case = CASES[name]()
    with refused(ValueError, "y should be a 1d array"):
        case.new().fit(case.X, LABELS)
    assert not case.new().__sklearn_tags__().classifier_tags.multi_label
