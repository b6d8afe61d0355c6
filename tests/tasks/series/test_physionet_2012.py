from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fredholm.tasks.series import open_series, physionet_2012
from tests.refusals import refused

SET: dict[str, Any] = {
    "offsets": np.array([0, 5, 5, 6]),
    "time_min": np.array([0, 90, 90, 90, 120, 30], np.uint16),
    "var": np.array([1, 0, 1, 0, 1, 1], np.uint8),
    "value": np.array([7.0, 1, 8, 2, 3, 9], np.float32),
    "var_names": ["HR", "pH"],
    "static": np.array([[54.0, 1, -1, 4, 80], [60, 0, 170, 2, -1], [70, -1, 160, 3, 75]]),
    "static_names": ["Age", "Gender", "Height", "ICUType", "Weight"],
    "outcomes": np.array([[1, 0], [2, 1], [3, 0]]),
    "outcome_names": ["RecordID", "In-hospital_death"],
}


def write(folder: Path, **changed: Any) -> Path:
    arrays = {name: array for name, array in {**SET, **changed}.items() if array is not None}
    for name in ("set-a.npz", "set-b.npz"):
        np.savez(folder / name, **arrays)
    return folder


def test_intensive_care_stays_become_series(tmp_path: Path) -> None:
    train = physionet_2012(write(tmp_path)).train
    assert train.channels[:3] == ("HR", "pH", "Age at admission")
    assert train.channels[5:] == ("Weight at admission", "unit 1", "unit 2", "unit 3", "unit 4")
    assert (train.lengths.tolist(), train.answer_names) == ([3, 1, 1], ("survived", "died"))
    assert train.times is not None
    assert train.answers is not None
    assert train.times.tolist() == [[0, 1.5, 2], [0, 0, 0], [0.5, 0, 0]]
    assert train.answers.values.tolist() == [0, 1, 0]
    first = train.values[0, :2].nan_to_num(-9).tolist()
    assert first == [[-9, 7, 54, 1, -9, 80, 0, 0, 0, 1], [2, 8, 54, 1, -9, 80, 0, 0, 0, 1]]
    assert train.values[1, 0].nan_to_num(-9).tolist() == [-9, -9, 60, 0, 170, -9, 0, 1, 0, 0]


def test_its_folder_is_recognised(tmp_path: Path) -> None:
    assert len(open_series(write(tmp_path)).held_out("test")) == 3


def test_a_missing_array_is_refused(tmp_path: Path) -> None:
    with refused(ValueError, "set-a.npz: has no array value, static; expected those of the challenge"):
        physionet_2012(write(tmp_path, value=None, static=None))


@pytest.mark.slow
def test_the_shared_sets(shared_data: Path) -> None:
    splits = physionet_2012(shared_data / "physionet2012")
    for split, deaths in ((splits.train, 554), (splits.held_out("test"), 568)):
        assert split.answers is not None
        assert (len(split), int(split.answers.values.sum()), len(split.channels)) == (4000, deaths, 45)
