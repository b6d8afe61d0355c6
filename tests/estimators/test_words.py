import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from fredholm.estimators import WordsClassifier
from fredholm.models import ConditionalRandomField
from tests.refusals import refused

MODEL = ConditionalRandomField.Config(window=1, num_features=60)
X = [["in", name, "it", "rains"][: 2 + i % 3] for i, name in enumerate(["Rome", "Oslo", "Bern", "Kyiv"] * 3)]
Y = [["O", "B-place", "O", "O"][: 2 + i % 3] for i in range(12)]


def fitted(**settings: object) -> WordsClassifier:
    return WordsClassifier(model=MODEL, random_state=0, **settings).fit(X, Y)  # type: ignore


def test_words_that_were_not_seen_are_labelled() -> None:
    estimator = fitted()
    found = estimator.predict([["in", "Lima", "it"], [], ["rains"]])
    assert found == [["O", "B-place", "O"], [], ["O"]]
    assert estimator.classes_.tolist() == ["B-place", "O"]
    chances = estimator.predict_proba([["in", "Lima", "it"], []])
    assert [each.shape for each in chances] == [(3, 2), (0, 2)]
    assert np.allclose(chances[0].sum(1), 1)
    assert chances[0].argmax(1).tolist() == [1, 0, 1]
    assert estimator.score(X, Y) == 1
    assert estimator.score([["in", "Lima"]], [["B-place", None]]) == 0
    again = pickle.loads(pickle.dumps(estimator))  # noqa: S301 - written here
    assert again.predict(X) == estimator.predict(X)


def test_a_run_is_kept_and_settings_are_those_of_the_task(tmp_path: Path) -> None:
    estimator = fitted(run_dir=tmp_path / "run", task={"objective": "loss"})
    assert (tmp_path / "run" / "config.json").is_file()
    again: Any = clone(estimator)
    assert again.get_params()["task"] == {"objective": "loss"}
    with refused(ValueError, "task has no setting 'label_column'"):
        fitted(task={"label_column": "3"})


def test_a_mistake_is_named_by_its_place() -> None:
    for x, y, message in (
        ("in Rome", Y, "X is one text; expected a list of sentences"),
        (["in Rome"], [["O"]], "X[0] is 'in Rome'; expected a list of words"),
        ([["in", 3]], [["O", "O"]], "X[0] has 3, of type int; expected words"),
        ([["in"]], ["O"], "y[0] is 'O'; expected a list with a label for each word"),
        ([["in"], ["a", "b"]], [["O"], ["O"]], "y[1] has 1 labels for 2 words"),
        ([["in"]], [[0]], "y[0] has 0; expected texts"),
        ([], [], "X has no sentence"),
        ([["in"], ["it"]], [["O"], ["O"]], "X and y has the labels ['O']; expected at least 2"),
        (X, None, "requires y to be passed"),
    ):
        with refused(ValueError, message):
            WordsClassifier(model=MODEL).fit(x, y)
    with pytest.raises(NotFittedError):
        WordsClassifier().predict(X)
