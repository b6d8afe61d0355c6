"""Estimators that predict classes, labels or numbers of texts."""

import json
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
from torch import Tensor

from fredholm.tasks.sentences import Sentence
from fredholm.tasks.sentences.sentence_learning import SentenceLearning
from fredholm.tasks.targets import Answers

from .classifier import Classifier
from .estimator import as_array
from .regressor import Regressor
from .target_estimator import WeightedEstimator, Weights

_WEIGHTS = "weight of the text"
"""Column of the weights in the data of the run."""


class TextEstimator(WeightedEstimator[list[str]]):
    """Base class of estimators for the task `sentences` (`fredholm.tasks.SentenceLearning`) on lists of texts."""

    _task: ClassVar = SentenceLearning
    _decided: ClassVar = (
        *WeightedEstimator._decided,
        "text_column",
        "second_column",
        "label_columns",
        "columns",
        "weights",
    )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        return tags

    @final
    def _checked(self, X: Any, *, is_new: bool) -> list[str]:
        if isinstance(X, str):
            raise ValueError("X is one text; expected a list of texts, such as [text]")
        texts = np.asarray(as_array(X), dtype=object)
        if texts.ndim != 1 or len(texts) == 0:
            raise ValueError(f"X has shape {texts.shape}; expected (n,), a list of at least one text")
        for i, text in enumerate(texts):
            if not isinstance(text, str):
                raise ValueError(f"X[{i}] is {text!r}, of type {type(text).__name__}; expected a text")
            if not text.strip():
                raise ValueError(f"X[{i}] is an empty text; leave it out, with its answer")
        return [str(text) for text in texts]

    @final
    def _select(self, examples: list[str], indices: np.ndarray) -> list[str]:
        return [examples[i] for i in indices.tolist()]

    @final
    def _write(self, examples: list[str], answers: Answers, folder: Path, weights: Weights = None) -> dict[str, Any]:
        columns = ("label",) if answers.kind == "class" else answers.names
        if answers.kind == "class":
            cells = [[answers.names[code]] for code in answers.values.tolist()]
        else:
            cells = (answers.values.long() if answers.kind == "labels" else answers.values).tolist()
        names, of_weights = ("text", *columns), None if weights is None else _WEIGHTS
        rows = [dict(zip(names, (text, *row), strict=True)) for text, row in zip(examples, cells, strict=True)]
        if weights is not None:
            rows = [{**row, _WEIGHTS: weight} for row, weight in zip(rows, weights.tolist(), strict=True)]
        (folder / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        return {"data": str(folder), "label_columns": columns, "target": answers.kind, "weights": of_weights}

    @final
    def _outputs(self, examples: list[str]) -> Tensor:
        task = self.trained_.task
        assert isinstance(task, SentenceLearning)
        sentences = [Sentence(text, None, Path("X"), i + 1) for i, text in enumerate(examples)]
        return task.outputs(self.trained_.model, sentences, self.trained_.device)


@final
class TextClassifier(TextEstimator, Classifier[list[str]]):
    """Predicts the class or the labels of a short text, by the task `sentences`.

    X is a list or a one-dimensional array of n non-empty texts. A bank of n-grams, the default, reads the first 65,536
    tokens of a text, and a network as many as the longest one in training has, unless that is very long;
    `task={"context": 128}` sets another number. `fit` warns where texts are cut.

    Args:
        preset, model, task, training, valid_fraction, random_state, run_dir, verbose: see `Classifier`.
    """


@final
class TextRegressor(TextEstimator, Regressor[list[str]]):
    """Predicts numbers of a short text, by the task `sentences`; for X see `TextClassifier`.

    Args:
        preset, model, task, training, valid_fraction, random_state, run_dir, verbose, quantiles: see `Regressor`.
    """
