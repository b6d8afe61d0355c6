import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fredholm.tasks import series
from fredholm.tasks.series import Reading, SeriesSet
from fredholm.tasks.splits.splits import Splits
from fredholm.tasks.targets import ClassAnswers, LabelAnswers, NumberAnswers
from tests.refusals import refused

read_npz = functools.partial(series.read_npz, reading=Reading())

JOINED: dict[str, Any] = {
    "values": np.arange(10.0).reshape(5, 2),
    "offsets": [0, 3, 5],
    "label": np.array([1, 0], np.uint8),
    "classes": ["a", "b"],
    "channels": ["x", "y"],
}


def written(folder: Path, **arrays: Any) -> Path:
    path = folder / "some.npz"
    np.savez(path, **arrays)
    return path


def whole(folder: Path, **arrays: Any) -> SeriesSet:
    found = read_npz(written(folder, **arrays))
    assert isinstance(found, SeriesSet)
    return found


def test_a_training_set_may_be_alone(tmp_path: Path) -> None:
    alone = read_npz(written(tmp_path, **{f"train_{name}": array for name, array in JOINED.items()}))
    assert isinstance(alone, Splits)
    assert (len(alone.train), alone.train.answer_names, alone.test, alone.is_given) == (2, ("a", "b"), None, True)


def test_joined_series(tmp_path: Path) -> None:
    found = whole(tmp_path, **JOINED)
    assert (found.lengths.tolist(), found.answer_names, found.channels) == ([3, 2], ("a", "b"), ("x", "y"))
    assert found.values[1, :2].tolist() == [[6, 7], [8, 9]]
    assert found.answers is not None
    assert found.answers.values.tolist() == [1, 0]
    audio = whole(tmp_path, audio=np.arange(5, dtype=np.int16), offsets=[0, 2, 5], sample_rate=8000)
    assert (audio.spacing, audio.values[1].tolist(), audio.answers) == (1 / 8000, [[2], [3], [4]], None)


def test_padded_series_with_times_and_named_labels(tmp_path: Path) -> None:
    times = np.array([[0.0, 1, 5], [2, 3, np.nan]])
    found = whole(tmp_path, values=np.zeros((2, 3)), lengths=[3, 2], times=times, labels=["q", "p"])
    assert found.times is not None
    assert found.times.tolist() == [[0, 1, 5], [2, 3, 0]]
    assert (found.answer_names, found.values.shape, found.channels) == (("p", "q"), (2, 3, 1), ("channel_0",))
    assert whole(tmp_path, values=np.zeros((2, 3, 4)), labels=[7, 5], spacing=0.25).lengths.tolist() == [3, 3]


def test_splits(tmp_path: Path) -> None:
    for name in ("is_test", "suggested_test"):
        found = read_npz(written(tmp_path, **JOINED, **{name: [True, False]}))
        assert isinstance(found, Splits)
        assert (found.train.lengths.tolist(), found.held_out("test").lengths.tolist()) == ([2], [3])
    arrays = {f"{part}_{key}": JOINED[key] for part in ("train", "test") for key in ("values", "offsets", "label")}
    found = read_npz(written(tmp_path, **arrays, classes=["a", "b"]))
    assert isinstance(found, Splits)
    assert (len(found.train), len(found.held_out("test")), found.held_out("test").answer_names) == (2, 2, ("a", "b"))


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"values": None}, "has no array 'values'; the arrays are offsets"),
        ({"values": np.array(["x"] * 5)}, "values are <U1; expected numbers"),
        ({"values": np.zeros((2, 2, 2))}, "values have shape (2, 2, 2); expected (steps, C) beside offsets"),
        ({"offsets": None}, "lengths"),
        ({"offsets": [0, 4]}, "offsets do not rise from 0 to the 5 steps of the values"),
        ({"offsets": [0, 3, 2, 5]}, "offsets do not rise"),
        ({"offsets": [0, 5, 5]}, "some.npz, series 1: has 0 samples"),
        ({"label": [0, 1, 1]}, "label is int64 (3,); expected one of each of the 2 series"),
        ({"label": [0, 2]}, "a label is 2, but there are 2 classes"),
        ({"label": np.zeros((2, 2, 2))}, "label is float64 (2, 2, 2); expected integers (n,), labels (n, L)"),
        ({"label": [0.0, np.nan]}, "label: example 1: target is nan"),
        ({"times": np.zeros(4)}, "times is float64 (4,); expected numbers or integers (5,)"),
        ({"times": np.array([0, 1, np.nan, 0, 1])}, "series 0: the time of sample 3 is nan"),
        ({"times": np.zeros(5)}, "series 0: the time of sample 2 is 0 after 0"),
        ({"spacing": 0.0}, "spacing is 0.0; expected a finite number above 0"),
        ({"is_test": [0, 1]}, "is_test is int64 (2,); expected bool (2,)"),
        ({"channels": ["x"]}, "has 2 channels; expected 1: x"),
    ],
)
def test_mistakes_name_file_and_array(changed: dict[str, Any], told: str, tmp_path: Path) -> None:
    arrays = {name: array for name, array in {**JOINED, **changed}.items() if array is not None}
    if told == "lengths":
        arrays["lengths"] = [1, 2, 3, 2, 9]
        told = "lengths[2] is 3; the values have 2 steps"
    with refused(ValueError, "some.npz", told):
        read_npz(written(tmp_path, **arrays))


def test_no_npz_and_nothing_pickled(tmp_path: Path) -> None:
    path = tmp_path / "some.npz"
    path.write_bytes(b"no")
    with refused(ValueError, "some.npz: cannot be read as an .npz file"):
        read_npz(path)
    with refused(ValueError, "absent.npz: cannot be read as an .npz file (No such file or directory)"):
        read_npz(tmp_path / "absent.npz")
    np.savez(path, values=np.array([{}], dtype=object))
    with refused(ValueError, "some.npz: cannot be read as an .npz file", "pass one without objects"):
        read_npz(path)


def test_the_shared_sets(shared_data: Path) -> None:
    letters = read_npz(shared_data / "character_trajectories" / "character_trajectories.npz")
    assert isinstance(letters, Splits)
    assert (len(letters.train) + len(letters.held_out("test")), len(letters.train.answer_names)) == (1429, 20)
    assert letters.train.channels == ("x_velocity", "y_velocity", "pen_force")
    vowels = read_npz(shared_data / "uea_ucr_small" / "JapaneseVowels.npz")
    assert isinstance(vowels, Splits)
    assert (len(vowels.train), len(vowels.held_out("test")), len(vowels.train.channels)) == (270, 370, 12)


def test_answers_are_classes_labels_or_numbers(tmp_path: Path) -> None:
    values: dict[str, Any] = {"values": np.zeros((3, 4))}
    classes = whole(tmp_path, **values, labels=[7, 5, 7]).answers
    assert isinstance(classes, ClassAnswers)
    assert (classes.names, classes.values.tolist()) == (("5", "7"), [1, 0, 1])
    labels = whole(tmp_path, **values, labels=[[1, 0], [0, 0], [1, 1]], classes=["wet", "cold"]).answers
    assert isinstance(labels, LabelAnswers)
    assert (labels.names, labels.values.int().tolist()) == (("wet", "cold"), [[1, 0], [0, 0], [1, 1]])
    numbers = whole(tmp_path, **values, targets=[1.0, 2.5, 3.0]).answers
    assert isinstance(numbers, NumberAnswers)
    assert (numbers.names, numbers.values[:, 0].tolist()) == (("target",), [1.0, 2.5, 3.0])
    two = whole(tmp_path, **values, targets=[[1.0, 2], [3, 4], [5, 6]], target_names=["a", "b"]).answers
    assert isinstance(two, NumberAnswers)
    assert two.names == ("a", "b")
    as_numbers = read_npz(written(tmp_path, **values, labels=[7, 5, 7]), reading=Reading(kind="number"))
    assert isinstance(as_numbers, SeriesSet)
    assert isinstance(as_numbers.answers, NumberAnswers)
    with refused(ValueError, "has labels and targets; leave one of them out"):
        whole(tmp_path, **values, labels=[7, 5, 7], targets=[1.0, 2.0, 3.0])
    with refused(ValueError, "targets is float64 (2,); expected one of each of the 3 series"):
        whole(tmp_path, **values, targets=[1.0, 2.0])


def test_groups_are_marks(tmp_path: Path) -> None:
    values: dict[str, Any] = {"values": np.zeros((3, 4)), "groups": [4, 4, 9]}
    marks = whole(tmp_path, **values).marks
    assert (marks.groups, marks.given) == (("4", "4", "9"), None)
    plain = series.read_npz(written(tmp_path, **values))
    assert isinstance(plain, SeriesSet)
    assert (plain.marks.groups, plain.marks.given) == (None, None)
