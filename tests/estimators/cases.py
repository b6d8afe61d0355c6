"""Small sets of examples, and estimators that learn them in seconds."""

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import pytest

from fredholm.estimators import (
    Classifier,
    GraphClassifier,
    GraphRegressor,
    ImageClassifier,
    ImageRegressor,
    PointClassifier,
    PointRegressor,
    Regressor,
    SeriesClassifier,
    SeriesRegressor,
    TextClassifier,
    TextRegressor,
)
from fredholm.models import (
    CKCNN,
    ConstantConfig,
    GraphStackConfig,
    ITNet,
    MLPConfig,
    OnEdgesConfig,
    PointPooling,
    SentenceStackConfig,
)
from fredholm.tasks.graphs import GraphInputs
from fredholm.tasks.text import Tokens

NUM = 42
KERNEL = MLPConfig(width=4, num_frequencies=2, sigma=1.0)


@final
@dataclass(frozen=True)
class Case:
    """An estimator with its settings, and NUM examples of two alternating classes."""

    kind: type[Classifier[Any]]
    settings: dict[str, Any]
    X: Any
    """Examples; those with even index belong to one class, the others to another."""
    other_model: Any
    foreign_model: Any
    """A configuration that the task refuses."""
    regressor: type[Regressor[Any]] | None
    """The regressor for the same examples and settings, or None."""

    def new(self, **settings: Any) -> Classifier[Any]:
        return self.kind(**self._with(settings))

    def new_regressor(self, **settings: Any) -> Regressor[Any]:
        assert self.regressor is not None
        return self.regressor(**self._with(settings))

    def _with(self, settings: dict[str, Any]) -> dict[str, Any]:
        training = self.settings["training"] | settings.pop("training", {})
        return {"random_state": 0, **self.settings, **settings, "training": training}


def _training(**settings: Any) -> dict[str, Any]:
    return {"batch_size": 16, "learning_rate": 2e-2, "evaluate_every": 100} | settings


def _itnet(depth: int = 1) -> ITNet.Config:
    return ITNet.Config(embed_dim=8, depth=depth, num_heads=2, kernel=KERNEL, pool="mean", dropout=0.0, drop_path=0.0)


def _images() -> Case:
    drawn = np.random.default_rng(0)
    images = drawn.integers(0, 60, (NUM, 5, 7, 3), np.uint8)
    images[::2, :2] += 180
    images[1::2, 3:] += 180
    settings = {"model": _itnet(), "task": {"patch_size": (5, 7)}, "training": _training(epochs=20)}
    return Case(ImageClassifier, settings, images, _itnet(depth=2), CKCNN.Config(), ImageRegressor)


def _series() -> Case:
    drawn = np.random.default_rng(0)
    series = 0.1 * drawn.normal(size=(NUM, 2, 11))
    series[::2, 0] += np.linspace(-1, 1, 11)
    series[1::2, 0] -= np.linspace(-1, 1, 11)
    small = CKCNN.Config(embed_dim=4, depth=1, kernel_width=4, omega_0=3.0, dropout=0.0)
    settings = {"model": small, "training": _training(epochs=20)}
    deeper = dataclasses.replace(small, depth=2)
    return Case(SeriesClassifier, settings, series, deeper, _itnet(), SeriesRegressor)


def _texts() -> Case:
    texts = [f"{word} number {i}" for i in range(NUM // 2) for word in ("apples", "zebras")]
    task = {"tokens": Tokens(kind="bytes"), "context": 24}
    small, deeper = (SentenceStackConfig(stack=_itnet(depth), position_frequencies=2) for depth in (1, 2))
    settings = {"model": small, "task": task, "training": _training(epochs=20)}
    return Case(TextClassifier, settings, texts, deeper, CKCNN.Config(), TextRegressor)


def _points() -> Case:
    clouds = np.random.default_rng(0).normal(size=(NUM, 13, 4))
    clouds[::2, :, 2] = 0
    task = {"num_neighbours": 0, "position_frequencies": 0, "num_points": None}
    settings = {
        "model": PointPooling.Config(embed_dim=8, widths=(16,), head_width=8, dropout=0.0),
        "task": task,
        "training": _training(epochs=20),
    }
    return Case(PointClassifier, settings, clouds, _itnet(), CKCNN.Config(), PointRegressor)


def _graphs() -> Case:
    drawn = np.random.default_rng(0)
    graphs = []
    for i in range(NUM):
        size = 4 + i % 3
        path = np.stack([np.arange(size - 1), np.arange(1, size)])
        graphs.append((np.concatenate([path, path[::-1]], axis=1), drawn.normal(size=(size, 2)) + 2 * (i % 2)))
    kernel = OnEdgesConfig(kernel=ConstantConfig(), long_range=None, edge_mass="sum")
    stacks = (dataclasses.replace(_itnet(depth), num_heads=None, kernel=kernel) for depth in (1, 2))
    small, deeper = (GraphStackConfig(stack=stack) for stack in stacks)
    task = {"inputs": GraphInputs(positions="none", num_walks=0)}
    settings = {"model": small, "task": task, "training": _training(epochs=20)}
    return Case(GraphClassifier, settings, graphs, deeper, CKCNN.Config(), GraphRegressor)


CASES: dict[str, Callable[[], Case]] = {
    "images": _images,
    "series": _series,
    "texts": _texts,
    "points": _points,
    "graphs": _graphs,
}


def of_two(names: Iterable[str]) -> pytest.MarkDecorator:
    """Parametrises tests of shared behaviour: over images and graphs, and over the others in the long suite."""
    always = ("images", "graphs")
    cases = [pytest.param(name, marks=[] if name in always else pytest.mark.long) for name in names]
    return pytest.mark.parametrize("case", cases, indirect=True)
