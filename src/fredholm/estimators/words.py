"""An estimator that predicts a label for each word of a sentence."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, final

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import check_is_fitted

from fredholm.tasks.words.word_learning import WordLearning

from .estimator import Estimator


@final
class WordsClassifier(ClassifierMixin, Estimator):
    """Predicts a label for each word of a sentence, by the task `words`: named entities, parts of speech, slots.

    X is a list of n sentences, each a list of words, and y a list of n lists, with a label, a text, for each word, or
    None where it is not known.

    Args:
        preset, model, task, training, valid_fraction, random_state, run_dir, verbose: see `Estimator`.

    Attributes:
        classes_: the sorted labels, in the order of the columns of `predict_proba`.
        trained_, valid_metrics_: see `Estimator`.
    """

    _task: ClassVar = WordLearning
    _decided: ClassVar = (*Estimator._decided, "word_column", "label_column")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        return tags

    def fit(self, X: Any, y: Any) -> Self:
        """Trains a new model.

        Args:
            X: n sentences, lists of words.
            y: the labels of each.

        Raises:
            ValueError: X or y are not as expected, settings do not fit, or `run_dir` is not empty.
            TypeError: a setting has the wrong type.
        """
        self._forget()
        if y is None:
            raise ValueError(
                "WordsClassifier requires y to be passed, but the target y is None; give each word a label"
            )
        sentences = _sentences(X)
        labels = list(y)
        check_consistent_length(sentences, labels)
        rows = [
            {"tokens": words, "tags": _labels(i, words, own)}
            for i, (words, own) in enumerate(zip(sentences, labels, strict=True))
        ]
        self.classes_ = np.array(sorted({tag for row in rows for tag in row["tags"] if tag is not None}), dtype=object)

        def write(folder: Path) -> dict[str, Any]:
            (folder / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
            return {"data": str(folder), "word_column": "tokens", "label_column": "tags"}

        self._learn(write)
        return self

    def predict(self, X: Any) -> list[list[str]]:
        """Returns the labels of the words of each sentence: those of the likeliest sequence of labels.

        Raises:
            NotFittedError: before `fit`.
            ValueError: X is no list of sentences.
        """
        return [[self._names[k] for k in best.tolist()] for best, _ in self._answers(X)]

    def predict_proba(self, X: Any) -> list[np.ndarray]:
        """Returns the probability of each label of each word, float32 `(words, labels)` for each sentence.

        Raises as `predict`.
        """
        order = [self._names.index(name) for name in self.classes_]
        return [chances[:, order].numpy() for _, chances in self._answers(X)]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Returns the share of the words whose label is predicted right, of those whose label is known.

        Raises:
            ValueError: as `predict`; X and y do not match, no label is known, or there is a `sample_weight`.
        """
        if sample_weight is not None:
            raise ValueError("sample_weight is of sentences, but the score is of words; leave it out")
        found, sentences, labels = self.predict(X), _sentences(X), list(y)
        check_consistent_length(found, labels)
        right = [
            one == other
            for i, (own, words, known) in enumerate(zip(found, sentences, labels, strict=True))
            for one, other in zip(own, _labels(i, words, known), strict=True)
            if other is not None
        ]
        if not right:
            raise ValueError("y has no label that is known; expected some to compare with")
        return float(np.mean(right))

    @property
    def _names(self) -> tuple[str, ...]:
        check_is_fitted(self)
        task = self.trained_.task
        assert isinstance(task, WordLearning)
        return task.facts.names

    def _answers(self, X: Any) -> Any:
        check_is_fitted(self)
        task = self.trained_.task
        assert isinstance(task, WordLearning)
        return task.answers(self.trained_.model, _sentences(X), self.trained_.device)


def _sentences(X: Any) -> list[list[str]]:
    """The words of each sentence."""
    if isinstance(X, str):
        raise ValueError("X is one text; expected a list of sentences, each a list of words")
    found = list[list[str]]()
    for i, words in enumerate(X):
        if isinstance(words, str) or not isinstance(words, Sequence | np.ndarray):
            raise ValueError(f"X[{i}] is {str(words)[:40]!r}; expected a list of words, such as text.split()")
        for word in words:
            if not isinstance(word, str):
                raise ValueError(f"X[{i}] has {word!r}, of type {type(word).__name__}; expected words")
        found.append([str(word) for word in words])
    if not found:
        raise ValueError("X has no sentence; expected at least one")
    return found


def _labels(i: int, words: list[str], labels: Any) -> list[str | None]:
    """The labels of the words of sentence i."""
    if isinstance(labels, str) or not isinstance(labels, Sequence | np.ndarray):
        raise ValueError(f"y[{i}] is {str(labels)[:40]!r}; expected a list with a label for each word")
    if len(labels) != len(words):
        raise ValueError(f"y[{i}] has {len(labels)} labels for {len(words)} words; expected one for each")
    for label in labels:
        if label is not None and (not isinstance(label, str) or not label):
            raise ValueError(f"y[{i}] has {label!r}; expected texts, or None where a label is not known")
    return [None if label is None else str(label) for label in labels]
