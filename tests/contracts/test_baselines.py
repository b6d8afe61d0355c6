"""Every task provides features for models without a network, or a reason why it has none."""

import dataclasses
import math
from typing import Any

import pytest

from fredholm.comparison.compare import baseline_rows
from fredholm.tasks import (
    TASKS,
    FieldLearning,
    Forecasting,
    LanguageModelling,
    SentenceLearning,
    SeriesLearning,
    TableLearning,
    Task,
    WordLearning,
)
from tests.contracts.task_settings import small_tasks

pytest.importorskip("kornia")
pytest.importorskip("sklearn")
pytest.importorskip("tokenizers")
pytest.importorskip("trimesh")

NONE = {FieldLearning: "no model without a network", TableLearning: "no plain features"}
CLASSES = ["logistic regression", "nearest neighbours", "commonest class"]
NAMES = {
    "words": ["commonest label of the word", "commonest label"],
    "text": ["n-grams (Witten-Bell)"],
    "masked": ["both neighbours, smoothed"],
    "forecast": ["ridge regression", "nearest neighbours", "mean"],
    "operator": ["ridge regression", "nearest neighbours", "mean"],
}
WITHOUT_STEPS = (TableLearning, WordLearning)
"""Tasks whose model is always fitted in closed form, so that they have no validation split."""
OWN_MODELS = (LanguageModelling, SeriesLearning, SentenceLearning, Forecasting)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Task.Config]:
    return {type(config).__qualname__: config for config in small_tasks(tmp_path_factory.mktemp("data"))}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.command)
def test_a_task_has_models_without_a_network(task: type[Task], tasks: dict[str, Task.Config]) -> None:
    config = tasks[task.Config.__qualname__]
    if task in OWN_MODELS:
        default: Any = task.Config()  # pyright: ignore[reportAbstractUsage, reportCallIssue]
        config = dataclasses.replace(config, model=default.with_stack(default.stack).model)  # pyright: ignore[reportCallIssue]
    built = config.build() if task in WITHOUT_STEPS else dataclasses.replace(config, valid_fraction=0.3).build()  # pyright: ignore[reportCallIssue]
    rows = list(baseline_rows(built))
    if task in NONE:
        assert [(row.name, row.valid) for row in rows] == [("baselines", None)]
        assert NONE[task] in rows[0].reason
        return
    assert [row.name for row in rows] == NAMES.get(task.command, CLASSES)
    for row in rows:
        assert row.reason == ""
        assert row.valid is not None
        assert math.isfinite(row.valid)
        assert row.test is not None
        assert math.isfinite(row.test)
