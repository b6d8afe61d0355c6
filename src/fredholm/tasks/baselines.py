"""Baselines without a network, to judge whether one is needed: a linear model and nearest neighbours on plain features,
and the most frequent target.
"""

import functools
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .splits.split_files import Split
from .splits.splits import HeldOut
from .targets.target import Kind

MOST_EXAMPLES = 10_000
"""Largest number of training examples, sampled with the seed 0."""
MOST_MEASURED = 20_000
"""Largest number of elements of a held-out split, such as pixels, that are measured, sampled with the seed 0."""
MOST_SIDE = 32
"""Largest side of an image, in pixels."""
MOST_FEATURES = 4_096
"""Largest number of features of an example that is no text."""
LEAST_CHANCE = 1e-6
"""Smallest probability of a class, where a model gives 0, so that its logarithm stays finite."""


class BaselineExamples(NamedTuple):
    """Inputs and targets of n examples for a model without a network."""

    inputs: Any
    """Features `(n, features)`, or n texts."""
    targets: Tensor
    """Classes int64 `(n,)`, or labels or numbers `(n, T)`."""


class Baseline(ABC):
    """A model without a network, with one setting that is chosen on the validation split.

    Attributes:
        name: display name.
        settings: candidates, of which the best is chosen, and the first of equally good ones.
    """

    name: str
    settings: tuple[float, ...]

    @abstractmethod
    def fitted(self, setting: float) -> Callable[[HeldOut], float]:
        """Fits the model on the training split; returns a function from a split to the task's objective on it.

        Raises:
            ValueError: the model cannot be fitted to these data.
            ImportError: scikit-learn is not installed.
        """


@final
@dataclass(frozen=True)
class BaselineData:
    """A task's examples for models without a network.

    Args:
        kind: kind of the target.
        num_outputs: number of a network's outputs per example.
        of: returns the examples of a part.
        value: returns the objective of outputs `(n, num_outputs)` on a split, as for a network.
    """

    kind: Kind
    num_outputs: int
    of: Callable[[Split], BaselineExamples]
    value: Callable[[Tensor, HeldOut], float]


def baselines_on(data: BaselineData) -> tuple[Baseline, ...]:
    """Returns a linear model, nearest neighbours, and a constant; each part of the data is prepared once."""
    data = replace(data, of=functools.cache(data.of))
    return (Linear(data), Neighbours(data), Constant(data))


class _OnFeatures(Baseline):
    """A model of scikit-learn on scaled features, or on TF-IDF features of texts."""

    def __init__(self, data: BaselineData) -> None:
        self._data = data

    @abstractmethod
    def _model(self, setting: float) -> Any:
        """Returns the scikit-learn model; labels are numbers 0 and 1."""

    @final
    def fitted(self, setting: float) -> Callable[[HeldOut], float]:
        """See `Baseline.fitted`."""
        try:
            from sklearn.exceptions import ConvergenceWarning
            from sklearn.feature_extraction.text import TfidfVectorizer
            from sklearn.pipeline import make_pipeline
            from sklearn.preprocessing import StandardScaler
        except ImportError as error:
            raise ImportError('baselines need scikit-learn; get it with: pip install "fredholm[data]"') from error
        data, plain = self._data, self._data.of("train")
        is_text = isinstance(plain.inputs, list)
        size = len(plain.inputs) if is_text else plain.inputs.shape[1]
        if not is_text and size > MOST_FEATURES:
            raise ValueError(f"an example has {size:,} plain features, more than {MOST_FEATURES:,}")
        rows = np.sort(np.random.default_rng(0).permutation(len(plain.targets))[:MOST_EXAMPLES])
        first = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True) if is_text else StandardScaler()
        model = make_pipeline(first, self._model(setting))
        inputs = [plain.inputs[i] for i in rows] if is_text else plain.inputs[rows]
        with warnings.catch_warnings():  # a model that stops early is judged by the validation split like others
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(inputs, _for_sklearn(plain.targets, data.kind)[rows])

        def value(split: HeldOut) -> float:
            return data.value(_outputs(model, data.of(split).inputs, data), split)

        return value


@final
class Linear(_OnFeatures):
    """Logistic or ridge regression."""

    settings = (1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0)
    """Values of 1 / C, or of α relative to the number of examples."""

    def __init__(self, data: BaselineData) -> None:
        super().__init__(data)
        self.name = "ridge regression" if data.kind == "number" else "logistic regression"

    def _model(self, setting: float) -> Any:
        from sklearn.linear_model import LogisticRegression, Ridge
        from sklearn.multiclass import OneVsRestClassifier

        if self._data.kind == "number":
            return Ridge(alpha=10 * setting)
        model = LogisticRegression(C=1 / setting, max_iter=300)
        return model if self._data.kind == "class" else OneVsRestClassifier(model)


@final
class Neighbours(_OnFeatures):
    """The mean over the k nearest examples."""

    name = "nearest neighbours"
    settings = (1, 3, 7, 15)

    def _model(self, setting: float) -> Any:
        from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

        examples = min(len(self._data.of("train").targets), MOST_EXAMPLES)
        kind = KNeighborsClassifier if self._data.kind == "class" else KNeighborsRegressor
        return kind(n_neighbors=min(int(setting), examples))


@final
class Constant(Baseline):
    """The frequencies of classes or labels, or the mean of numbers, for any example; useful models are better."""

    settings = (0.0,)

    def __init__(self, data: BaselineData) -> None:
        self._data = data
        names: dict[Kind, str] = {"class": "commonest class", "labels": "shares of labels", "number": "mean"}
        self.name = names[data.kind]

    def fitted(self, setting: float) -> Callable[[HeldOut], float]:
        """See `Baseline.fitted`; the setting has no effect."""
        data, targets = self._data, self._data.of("train").targets
        if data.kind == "class":
            shares = targets.long().bincount(minlength=data.num_outputs) / len(targets)
            outputs = shares.double().clamp(min=LEAST_CHANCE).log()
        elif data.kind == "labels":
            outputs = targets.double().mean(0).clamp(LEAST_CHANCE, 1 - LEAST_CHANCE).logit()
        else:
            means = targets.double().reshape(len(targets), -1).mean(0)
            outputs = means.repeat_interleave(data.num_outputs // len(means))
        return lambda split: data.value(outputs.float().expand(len(data.of(split).targets), -1), split)


def _for_sklearn(targets: Tensor, kind: Kind) -> np.ndarray:
    return targets.long().numpy() if kind != "number" else targets.double().numpy()


def _outputs(model: Any, inputs: Any, data: BaselineData) -> Tensor:
    """Returns a model's predictions as outputs of a network: logits of classes or labels, or numbers."""
    if data.kind == "class":
        found = torch.full((len(inputs), data.num_outputs), LEAST_CHANCE, dtype=torch.float64)
        chances = torch.from_numpy(np.asarray(model.predict_proba(inputs), dtype=np.float64))
        found[:, torch.from_numpy(np.asarray(model.classes_)).long()] = chances.clamp(min=LEAST_CHANCE)
        return found.log().float()
    if data.kind == "labels":
        predicted = model.predict_proba(inputs) if hasattr(model, "predict_proba") else model.predict(inputs)
        chances = torch.from_numpy(np.asarray(predicted, dtype=np.float64)).view(len(inputs), -1)
        return chances.clamp(LEAST_CHANCE, 1 - LEAST_CHANCE).logit().float()
    numbers = torch.from_numpy(np.asarray(model.predict(inputs), dtype=np.float64)).view(len(inputs), -1)
    return numbers.repeat_interleave(data.num_outputs // numbers.shape[1], 1).float()


def drawn_elements(counts: Sequence[int], split: Split) -> list[np.ndarray]:
    """Returns the sorted indices of the sampled elements of each example: all, or at most as many as allowed.

    Args:
        counts: number of elements of each example.
        split: part of the data, which sets the limit.
    """
    most, total = MOST_EXAMPLES if split == "train" else MOST_MEASURED, sum(counts)
    drawn = np.arange(total)
    if total > most:
        drawn = np.sort(np.random.default_rng(0).choice(total, most, replace=False))
    ends = np.cumsum(np.asarray(counts, dtype=np.int64))
    parts = np.split(drawn, np.searchsorted(drawn, ends[:-1]))
    return [part - (end - count) for part, end, count in zip(parts, ends, counts, strict=True)]


def baseline_pixels(images: Tensor, most: int = MOST_SIDE) -> np.ndarray:
    """Returns rows of pixels, 0 to 1, of images uint8 `(n, C, H, W)`, averaged down to at most `most` a side."""
    size = (min(images.shape[2], most), min(images.shape[3], most))
    return F.adaptive_avg_pool2d(images.float() / 255, size).flatten(1).numpy()
