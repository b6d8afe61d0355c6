import pickle
from typing import Any

import numpy as np
import pytest

import fredholm
from fredholm.models import SampleMachine
from tests.refusals import refused

MODEL = SampleMachine.Config(num_samples=200, num_trees=8)
rng = np.random.default_rng(0)
LENGTHS = (30, 24, 28, 30, 26, 30)
NUMBERS = [np.arange(n) // 6 % 2 for n in LENGTHS]
X = [own + 0.2 * rng.normal(size=len(own)) for own in NUMBERS]
TEXTS = [np.where(own == 1, "on", "off") for own in NUMBERS]


@pytest.mark.parametrize("y", [NUMBERS, TEXTS, [own == 1 for own in NUMBERS]], ids=["numbers", "texts", "booleans"])
def test_classes_of_samples(y: Any) -> None:
    model = fredholm.SampleClassifier(model=MODEL, random_state=0).fit(X, y)
    assert model.classes_.tolist() == sorted(set(y[0].tolist()))
    predicted = model.predict(X)
    assert [len(own) for own in predicted] == list(LENGTHS)
    assert predicted[0].dtype == model.classes_.dtype
    right = np.concatenate(predicted) == np.concatenate(y)
    assert right.mean() > 0.95
    assert model.score(X, y) == right.mean()
    found = pickle.loads(pickle.dumps(model)).predict_proba(X)  # noqa: S301
    np.testing.assert_allclose(found[1].sum(-1), 1, rtol=1e-5)
    assert model.classes_[found[1].argmax(-1)].tolist() == predicted[1].tolist()


def test_arrays_give_arrays_and_missing_classes_are_unknown() -> None:
    series = np.stack([own[:24] for own in X])
    y = np.stack([own[:24] for own in NUMBERS]).astype(float)
    y[:, ::4] = np.nan
    model = fredholm.SampleClassifier(model=MODEL, random_state=0).fit(series, y)
    assert model.classes_.tolist() == [0, 1]
    predicted = model.predict(series)
    assert predicted.shape == (6, 24)
    assert model.predict_proba(series).shape == (6, 24, 2)
    known = ~np.isnan(y)
    assert model.score(series, y) == (predicted == y)[known].mean()


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (
            [own[:-1] for own in NUMBERS],
            "the classes of series 0 in y have shape (29,); expected one of each sample, (30,",
        ),
        (NUMBERS[:5], "inconsistent numbers of samples"),
        ([0.5 * own for own in NUMBERS], "y has 0.5; expected classes: whole numbers"),
        ([0 * own for own in NUMBERS], "y has the classes [0]; expected at least 2"),
        ([np.full(len(own), np.nan) for own in NUMBERS], "y has the classes []; expected at least 2"),
        ([*TEXTS[:5], NUMBERS[5]], "the classes in y are of several kinds"),
    ],
)
def test_classes_that_do_not_fit(y: Any, message: str) -> None:
    with refused(ValueError, message):
        fredholm.SampleClassifier(model=MODEL).fit(X, y)
