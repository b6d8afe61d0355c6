"""Texts, told by class."""

import json
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
from torch import Tensor

from fredholm.tasks.sentence_learning import SentenceLearning
from fredholm.tasks.sentences import Sentence

from .classifier import Classifier
from .trained_model import TrainedModel


@final
class TextClassifier(Classifier[list[str]]):
    """Tells which class a short text belongs to, by the task `sentences` (`fredholm.tasks.SentenceLearning`).

    X is a list or a one-dimensional array of n texts, none of them empty. Of a text the model sees as many tokens as
    the longest one in training has, unless that is very long; `task={"context": 128}` sets another number. `fit` warns
    where texts are cut.

    Args:
        preset, model, task, training, valid_fraction, random_state, run_dir, verbose: see `Classifier`.
    """

    _task: ClassVar = SentenceLearning

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        return tags

    def _checked(self, X: Any, *, is_new: bool) -> list[str]:
        if isinstance(X, str):
            raise ValueError("X is one text; expected a list of texts, such as [text]")
        texts = np.asarray(X, dtype=object)
        if texts.ndim != 1 or len(texts) == 0:
            raise ValueError(f"X has shape {texts.shape}; expected (n,), a list of at least one text")
        for i, text in enumerate(texts):
            if not isinstance(text, str):
                raise ValueError(f"X[{i}] is {text!r}, of type {type(text).__name__}; expected a text")
            if not text.strip():
                raise ValueError(f"X[{i}] is an empty text; leave it out, with its class")
        return [str(text) for text in texts]

    def _known(self, trained: TrainedModel) -> tuple[str, ...]:
        task = trained.task
        assert isinstance(task, SentenceLearning)
        return task.target.names

    def _write(self, examples: list[str], codes: np.ndarray, classes: tuple[str, ...], folder: Path) -> Path:
        rows = ({"text": text, "label": classes[code]} for text, code in zip(examples, codes.tolist(), strict=True))
        (folder / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        return folder

    def _probabilities(self, trained: TrainedModel, examples: list[str]) -> Tensor:
        task = trained.task
        assert isinstance(task, SentenceLearning)
        sentences = [Sentence(text, None, None, Path("X"), i + 1) for i, text in enumerate(examples)]
        return task.target.told(task.outputs(trained.model, sentences, trained.device))
