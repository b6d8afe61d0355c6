"""Every setting of every task, of augmentation and of the training engine does something, or is refused."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import pytest
import torch
from torch import nn

from fredholm.tasks import Task
from fredholm.tasks.splits.splits import HeldOut
from tests.contracts.settings import Subject, equal, settings_of, unread
from tests.contracts.task_settings import CONFIGS_OF_TASKS, CPU, task_subjects
from tests.contracts.test_predictions import ROWS

pytest.importorskip("kornia")
pytest.importorskip("tokenizers")
pytest.importorskip("trimesh")

ALIKE: dict[tuple[str, str], dict[str, str]] = {
    ("PointLearning.Config", "points are labelled"): {"target='points'": "the labels of the data decide the target"},
    **{
        ("SeriesLearning.Config", mode): {"target='samples'": "the labels of the data decide the target"}
        for mode in ("samples", "parts of series", "a machine beside it")
    },
    ("TrainingConfig", "base"): {"num_workers=1": "the same batches, made in another process"},
}
"""Values that change nothing, by class and mode, with the reason."""


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Subject]:
    return {subject.name: subject for subject in task_subjects(tmp_path_factory.mktemp("data"))}


SLOW = ("FieldLearning.Config", "ImageTextLearning.Config", "OperatorLearning.Config", "PointLearning.Config")


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(config, marks=[pytest.mark.slow] if config.__qualname__ in SLOW else [], id=config.__qualname__)
        for config in CONFIGS_OF_TASKS
    ],
)
def test_every_setting_does_something_or_is_refused(config: type, subjects: dict[str, Subject]) -> None:
    subject = subjects[config.__qualname__]
    assert subject.others.keys() == settings_of(config).keys()
    for mode, start in subject.starts().items():
        found = unread(subject, start)
        allowed = ALIKE.get((subject.name, mode), {})
        assert {setting: expected for setting, expected in found.items() if setting not in allowed} == {}, mode
        assert allowed.keys() <= found.keys(), f"{mode}: listed as alike, but not"


Observe = Callable[[Task, nn.Module], Iterator[object]]
SLOW_TO_READ = ("OperatorLearning", "PointLearning", "Segmentation", "TableLearning")


def measured(task: Task, model: nn.Module) -> Iterator[object]:
    splits: list[HeldOut] = [split for split in get_args(HeldOut) if task.num_held_out(split)]
    for split in splits:
        batch, metrics = task.held_out_batch(split, torch.arange(min(3, task.num_held_out(split)))), task.metrics()
        task.score(model, batch, metrics)
        yield from (list(metrics), *(metric.compute() for metric in metrics.values()), *batch.values())
    yield from (task.objective, *map(task.num_held_out, splits))


def predicted(files: list[Path]) -> Observe:
    def observe(task: Task, model: nn.Module) -> Iterator[object]:
        yield [dict(row) for row in task.predict(model, files, CPU)]

    return observe


@torch.no_grad()
def observed(config: Task.Config, facts: Task.Facts, weights: nn.Module, observe: Observe) -> list[object]:
    """What a trained task shows under other settings."""
    task = config.build(facts)
    model = task.model()
    model.load_state_dict(weights.state_dict())
    torch.manual_seed(0)
    return list(observe(task, model.eval()))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] if kind in SLOW_TO_READ else []) for kind in ROWS]
)
def test_measurements_and_predictions_read_what_the_config_says(
    kind: str, subjects: dict[str, Subject], tmp_path: Path
) -> None:
    subject = subjects[f"{kind}.Config"]
    base: Task.Config = subject.of(**subject.base)
    task = base.build()
    torch.manual_seed(0)
    weights = task.model()
    task.initialise(weights, CPU)
    ROWS[kind][0](Path(base.data), tmp_path / "one")
    observers = (measured, predicted(task.predicts.listed([tmp_path]).files))
    usual = [observed(base, task.facts, weights, observe) for observe in observers]
    tried, found = set[str](), (set[str](), set[str]())
    for setting, value in ((setting, value) for setting, values in subject.others.items() for value in values):
        if value == getattr(base, setting) or setting in (*base.weight_settings, *base.split_settings, "data"):
            continue
        try:
            config = subject.of(**subject.base | {setting: value})
            changed = [observed(config, task.facts, weights, observe) for observe in observers]
        except ValueError:
            continue  # refused, for these data or with this model
        tried.add(setting)
        for reading, before, after in zip(found, usual, changed, strict=True):
            if len(before) != len(after) or not all(map(equal, before, after)):
                reading.add(setting)
    assert tried - found[0] == tried & {*base.unmeasured_settings}
    assert found[1] == tried & {*base.prediction_settings}
