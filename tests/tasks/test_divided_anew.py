"""A run's own data are not divided anew to evaluate it, so that no trained model is tested on training data."""

import dataclasses
from pathlib import Path

import pytest

from fredholm.models.graphs.graph_model import GraphStackConfig
from fredholm.models.language.sentence_model import SentenceStackConfig
from fredholm.models.series.ckcnn import CKCNN
from fredholm.tasks import TASKS, SeriesLearning, Task
from tests.refusals import refused

OTHER = {
    "test_fraction": 0.3,
    "valid_fraction": 0.25,
    "split_seed": 1,
    "split_by": "time",
    "documents": "line",
    "text_column": "body",
    "num_folds": 5,
    "fold": 2,
    "train_every": 2,
    "train_drop": 0.5,
    "word_column": "2",
    "label_column": "3",
}
IDLE = {("forecast", "split_seed"), ("forecast", "split_by"), ("table", "valid_fraction"), ("words", "valid_fraction")}
"""Combinations without a valid config: forecasts are divided by time, and tables and words have no validation split."""
BY_STEPS = {
    "graphs": GraphStackConfig(),
    "sentences": SentenceStackConfig(),
    "series": CKCNN.Config(),
    "forecast": CKCNN.Config(),
}
"""Networks in place of models fitted in closed form, which use no validation split."""


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.command)
def test_every_setting_that_changes_the_split_is_refused(task: type[Task]) -> None:
    learnt = task.Config(data="scans")  # pyright: ignore[reportAbstractUsage, reportCallIssue]
    if task.command in BY_STEPS:
        learnt = dataclasses.replace(learnt, model=BY_STEPS[task.command])
    among = OTHER.keys() - {"text_column"} if task.command == "sentences" else OTHER.keys()  # without effect
    assert set(learnt.split_settings) == {field.name for field in dataclasses.fields(learnt)} & among
    for name in learnt.split_settings:
        if (task.command, name) in IDLE:
            continue
        before = dataclasses.replace(learnt, **({"num_folds": 3} if name == "fold" else {}))
        anew = dataclasses.replace(before, **{name: OTHER[name]})
        message = f"{name}={OTHER[name]!r} chooses other training data than the run's {getattr(before, name)!r}"
        with refused(ValueError, message, "leave it out, or give other data"):
            anew.check_same_split(before)
        dataclasses.replace(anew, data="others").check_same_split(before)
        before.check_same_split(before)


def test_another_spelling_of_the_path_is_the_same_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "waves.csv").touch()
    (tmp_path / "link.csv").symlink_to("waves.csv")
    monkeypatch.chdir(tmp_path)
    learnt = SeriesLearning.Config(data="waves.csv")
    for spelling in ("./waves.csv", str(tmp_path / "waves.csv"), "link.csv"):
        with refused(ValueError, "split_seed=1 chooses other training data"):
            dataclasses.replace(learnt, data=spelling, split_seed=1).check_same_split(learnt)
    moved = dataclasses.replace(learnt, data="/where/it/was/waves.csv")
    with refused(ValueError, "split_seed=1 chooses other training data"):
        dataclasses.replace(learnt, split_seed=1).check_same_split(moved)
