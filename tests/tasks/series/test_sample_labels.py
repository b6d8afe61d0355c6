from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fredholm.tasks.series import (
    LabelReading,
    SeriesSet,
    average_in_bins,
    drop_samples,
    open_series,
    read_csv,
    read_npz,
)
from fredholm.tasks.series.sample_labels import SampleLabels
from fredholm.tasks.splits.splits import Splits
from fredholm.tasks.targets import UNKNOWN
from tests.refusals import refused

READING = LabelReading()
TABLE = "series,time,v,label\na,0,1,on\na,1,2,off\nb,0,3,\na,2,4,off\nb,1,5,on\n"


def labels_of(found: object) -> list[list[int]]:
    assert isinstance(found, SeriesSet)
    assert found.sample_labels is not None
    return found.sample_labels.values.tolist()


def csv(folder: Path, text: str = TABLE, name: str = "some.csv") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


def npz(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "some.npz", **arrays)
    return folder / "some.npz"


def test_labels_that_change_are_of_samples(tmp_path: Path) -> None:
    found = read_csv(csv(tmp_path), reading=READING)
    assert found.answer_names == ("off", "on")
    assert labels_of(found) == [[1, 0, 0], [UNKNOWN, 1, UNKNOWN]]
    assert found.answers is None


def test_constant_labels_are_of_samples_only_if_asked_for(tmp_path: Path) -> None:
    path = csv(tmp_path, "series,time,v,label\na,0,1,on\na,1,2,on\nb,0,3,off\n")
    assert read_csv(path, reading=READING).sample_labels is None
    assert labels_of(read_csv(path, reading=LabelReading(kind="samples"))) == [[1, 1], [0, UNKNOWN]]
    with refused(ValueError, "line 3: column 'label': 'off' after 'on'; expected one label of a series, or set target"):
        read_csv(csv(tmp_path), reading=LabelReading(kind="class"))


def test_none_is_a_class_and_question_marks_are_unknown(tmp_path: Path) -> None:
    found = read_csv(csv(tmp_path, "time,v,label\n0,1,none\n1,2,?\n2,3,walk\n3,4,NaN\n"), reading=READING)
    assert found.answer_names == ("none", "walk")
    assert labels_of(found) == [[0, UNKNOWN, 1, UNKNOWN]]


def test_classes_that_training_lacks_are_refused(tmp_path: Path) -> None:
    with refused(ValueError, "some.csv, line 3: column 'label': class 'off' is none of on"):
        read_csv(csv(tmp_path), reading=LabelReading(names=("on",)))


def test_a_folder_of_tables_is_one_set(tmp_path: Path) -> None:
    for night in ("monday", "tuesday"):
        csv(tmp_path / "nights", "time,v,label\n0,1,rem\n1,2,wake\n", f"{night}.csv")
    found = open_series(tmp_path / "nights")
    assert not found.is_given
    assert found.train.names == ("monday.csv", "tuesday.csv")
    assert labels_of(found.train) == [[0, 1], [0, 1]]
    csv(tmp_path / "nights", "time,v\n0,1\n", "wednesday.csv")
    with refused(ValueError, "wednesday.csv: has the columns time, v, and", "give all tables the same"):
        open_series(tmp_path / "nights")


def test_tables_may_be_called_train_and_test(tmp_path: Path) -> None:
    for name in ("train_1", "train_2", "test_1"):
        label = "a" if name == "test_1" else "b"
        csv(tmp_path / "nights", f"time,v,label\n0,1,a\n1,2,{label}\n", f"{name}.csv")
    found = open_series(tmp_path / "nights")
    assert found.test is not None
    assert (len(found.train), labels_of(found.test)) == (2, [[0, 0]])  # of samples, as in training
    csv(tmp_path / "nights", "time,v,label\n0,1,a\n", "other.csv")
    with refused(ValueError, "some tables are called train or test, but not other.csv"):
        open_series(tmp_path / "nights")


VALUES = np.zeros((2, 3), np.float32)
NAN = float("nan")


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        ({"labels": [[0, 1, 1], [2, 0, 1]]}, [[0, 1, 1], [2, 0, 1]]),
        ({"labels": [[7, 9, 9], [7, 7, 9]]}, [[0, 1, 1], [0, 0, 1]]),
        ({"labels": [[0, 1, NAN], [NAN, 0, 1]]}, [[0, 1, -100], [-100, 0, 1]]),
        ({"labels": [["b", "a", ""], ["b", "b", "a"]]}, [[1, 0, -100], [1, 1, 0]]),
        ({"labels": [[0, 1, -1], [1, 0, 1]], "classes": ["off", "on"]}, [[0, 1, -100], [1, 0, 1]]),
        ({"labels": [[0, 1, 5], [1, 5, 5]], "lengths": [2, 1]}, [[0, 1], [1, -100]]),
        ({"labels": [[True, False, False], [True, True, False]]}, [[1, 0, 0], [1, 1, 0]]),
    ],
)
def test_arrays_of_the_shape_of_the_values(arrays: dict[str, Any], expected: list[Any], tmp_path: Path) -> None:
    found = read_npz(npz(tmp_path, values=VALUES, **arrays), reading=READING)
    assert labels_of(found) == expected


def test_joined_arrays(tmp_path: Path) -> None:
    path = npz(tmp_path, values=np.zeros((5, 2)), offsets=[0, 2, 5], labels=[1, 0, 0, 1, 1], times=[0, 3, 0, 1, 7])
    found = read_npz(path, reading=READING)
    assert isinstance(found, SeriesSet)
    assert labels_of(found) == [[1, 0, UNKNOWN], [0, 1, 1]]
    assert not found.is_regular


def test_other_splits_have_the_classes_of_training(tmp_path: Path) -> None:
    arrays = {f"{word}_values": VALUES for word in ("train", "test")}
    labels = {"train_labels": [["b", "a", "a"]] * 2, "test_labels": [["b", "b", "b"]] * 2}
    found = read_npz(npz(tmp_path, **arrays, **labels), reading=READING)
    assert isinstance(found, Splits)
    assert found.test is not None
    assert labels_of(found.test) == [[1, 1, 1], [1, 1, 1]]


@pytest.mark.parametrize(
    ("arrays", "target", "message"),
    [
        (
            {"labels": [[0, 1], [1, 0]]},
            "samples",
            "labels is int64 (2, 2); target 'samples' expects one of each sample, (2, 3)",
        ),
        ({"labels": [0, 1]}, "samples", "labels is int64 (2,); target 'samples' expects one of each sample, (2, 3)"),
        ({}, "samples", "has no labels; target 'samples' expects one of each sample, (2, 3)"),
        ({"labels": [[0, 0.5, 1]] * 2}, None, "labels has 0.5; expected classes: whole numbers, NaN where unknown"),
        ({"labels": [[0, 1, -1]] * 2}, None, "labels has -1, which may be a class or mark unknown ones; name the"),
        ({"labels": [[0, 1, 2]] * 2, "classes": ["a", "b"]}, None, "labels has 2; there are 2 classes, from 0 on"),
        ({"labels": [[0, 1, 1]] * 2, "classes": ["a", "b", "c"]}, None, "may say which of 3 labels each series has"),
        ({"labels": [[0, 1, 2, 2]] * 2}, None, "expected integers (2,)"),
    ],
)
def test_arrays_that_do_not_fit(arrays: dict[str, Any], target: Any, message: str, tmp_path: Path) -> None:
    with refused(ValueError, "some.npz", message):
        read_npz(npz(tmp_path, values=VALUES, **arrays), reading=LabelReading(kind=target))


def test_kinds_of_files_without_labels_of_samples(tmp_path: Path) -> None:
    (tmp_path / "some.ts").write_text("@classLabel true a b\n@data\n1,2:a\n")
    with refused(ValueError, "target is 'samples', but", "some.ts has no labels of samples; write .csv"):
        open_series(tmp_path / "some.ts", kind="samples")
    (tmp_path / "sub" / "class").mkdir(parents=True)
    with refused(ValueError, "target is 'samples', but", "holds no tables; classes of samples are read from .csv"):
        open_series(tmp_path / "sub", kind="samples")


def some() -> SeriesSet:
    """Two series of 6 and 4 samples, whose values are their labels."""
    rows = [np.array([0, 0, 1, 2, 2, 1]), np.array([1, 0, 2, 2])]
    labels = torch.tensor([[0, 0, 1, 2, 2, 1], [1, 0, 2, 2, UNKNOWN, UNKNOWN]])
    return SeriesSet.pack(
        [row[:, None].astype(np.float64) for row in rows],
        sample_labels=SampleLabels(names=("a", "b", "c"), values=labels),
        channels=("v",),
        names=("one", "two"),
    )


def agree(series: SeriesSet) -> bool:
    """Whether the labels lie where the values are."""
    assert series.sample_labels is not None
    labels = series.sample_labels.values
    return bool((labels == torch.where(series.exists, series.values[..., 0], UNKNOWN)).all())


def test_labels_move_with_samples() -> None:
    series = some()
    assert agree(series)
    assert agree(series.select(torch.tensor([1])))
    assert agree(drop_samples(series, 0.4, 0, "absent"))
    assert agree(series.parts(torch.tensor([1, 0, 0]), torch.tensor([1, 0, 3]), torch.tensor([3, 2, 3])))
    assert agree(series.select(torch.tensor([0])).permuted(0, 6))
    kept = drop_samples(series, 0.4, 0, "missing").sample_labels
    assert kept is not None
    assert kept.values.equal(series.sample_labels.values if series.sample_labels else torch.empty(0))


def test_the_class_of_a_bin_is_its_commonest() -> None:
    found = average_in_bins(some(), 3.0).sample_labels
    assert found is not None
    assert found.values.tolist() == [[0, 2], [0, 2]]  # of b, a, c equally common ones the first


def test_labels_after_the_end_are_refused() -> None:
    labels = SampleLabels(names=("a", "b"), values=torch.tensor([[0, 1, 1], [0, 1, 1]]))
    with refused(ValueError, "two: has labels after its end, at sample 2"):
        SeriesSet.pack(
            [np.zeros((3, 1)), np.zeros((2, 1))], sample_labels=labels, channels=("v",), names=("one", "two")
        )
