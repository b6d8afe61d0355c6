"""Every setting of every task, of augmentation and of the training engine does something, or is refused."""

import pytest

from tests.contracts.settings import Subject, settings_of, unread
from tests.contracts.task_settings import CONFIGS_OF_TASKS, task_subjects

pytest.importorskip("kornia")
pytest.importorskip("tokenizers")
pytest.importorskip("trimesh")

ALIKE: dict[tuple[str, str], dict[str, str]] = {
    ("PointLearning.Config", "points are labelled"): {"target='points'": "the labels of the data decide the target"},
    **{
        ("SeriesLearning.Config", mode): {"target='samples'": "the labels of the data decide the target"}
        for mode in ("samples", "parts of series")
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
