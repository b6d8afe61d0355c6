"""Folders of images with a table of their labels."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fredholm.tasks.images import open_images
from fredholm.tasks.targets import Answers, ClassAnswers, Kind, LabelAnswers, NumberAnswers
from tests.refusals import refused


def write(folder: Path, *rows: str, count: int = 4) -> Path:
    (folder / "deep").mkdir(parents=True, exist_ok=True)
    for i in range(count):
        Image.fromarray(np.full((4, 6), i, np.uint8)).save(folder / "deep" / f"{i}.png")
    (folder / "labels.csv").write_text("\n".join(rows))
    return folder


def numbers(name: str, values: list[float]) -> NumberAnswers:
    return NumberAnswers(names=(name,), values=torch.tensor(values).double()[:, None])


@pytest.mark.parametrize(
    ("header", "cells", "kind", "expected"),
    [
        ("label", "dog cat dog cat", None, ClassAnswers(names=("cat", "dog"), values=torch.tensor([1, 0, 1, 0]))),
        ("Label", "10 9 10 9", None, ClassAnswers(names=("9", "10"), values=torch.tensor([1, 0, 1, 0]))),
        ("label", "1 2.5 1 3", None, numbers("label", [1, 2.5, 1, 3])),
        ("label", "1 2 1 3", "number", numbers("label", [1, 2, 1, 3])),
        ("label", "1 2.5 1 3", "class", ClassAnswers(names=("1", "2.5", "3"), values=torch.tensor([0, 1, 0, 2]))),
        (
            "label",
            "b|a a - a|c",
            "labels",
            LabelAnswers(names=tuple("abc"), values=torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0], [1, 0, 1]]) > 0),
        ),
        (
            "wet,cold",
            "1,0 0,0 1,1 0,1",
            None,
            LabelAnswers(names=("wet", "cold"), values=torch.tensor([[1, 0], [0, 0], [1, 1], [0, 1]]) > 0),
        ),
        (
            "wet,cold",
            "1,0 0,0 1,1 0,1",
            "number",
            NumberAnswers(names=("wet", "cold"), values=torch.tensor([[1, 0], [0, 0], [1, 1], [0, 1]]).double()),
        ),
        (
            "w,h",
            "1,2 3,4 5,6 7,8.5",
            None,
            NumberAnswers(names=("w", "h"), values=torch.tensor([[1, 2], [3, 4], [5, 6], [7, 8.5]]).double()),
        ),
    ],
)
def test_kinds_of_answers_in_the_columns(
    tmp_path: Path, header: str, cells: str, kind: Kind | None, expected: Answers
) -> None:
    rows = [f"deep/{3 - i}.png,{cell.replace('-', '')}" for i, cell in enumerate(cells.split())]
    found = open_images(write(tmp_path, f"file,{header}", *rows), kind=kind)
    answers = found.train.answers
    assert not found.is_given
    assert [found.train.name(i) for i in range(4)] == [f"deep/{3 - i}.png" for i in range(4)]
    assert found.train.images(torch.tensor([1]))[0, 0, 0, 0] == 2
    assert answers is not None
    assert (type(answers), answers.names) == (type(expected), expected.names)
    assert torch.equal(answers.values, expected.values)


def test_splits_groups_and_times(tmp_path: Path) -> None:
    rows = ["a,0,deep/0.png,2024-02-01,train", "b,0,deep/1.png,2024-01-01,VAL", "c,1,deep/2.png,2023-05-05T10:00,test"]
    found = open_images(write(tmp_path, "group,label,file,time,split", *rows, "d,1,deep/3.png,2022-01-01,"))
    parts = found.train, found.held_out("valid"), found.held_out("test")
    assert [part.name(0) for part in parts] == ["deep/0.png", "deep/1.png", "deep/2.png"]
    assert [part.keys.groups for part in parts] == [("a",), ("b",), ("c",)]
    times = [part.keys.times for part in parts]
    assert times[0] is not None
    assert times[1] is not None
    assert float(times[0] - times[1]) == 31 * 86400


def test_images_missing_from_the_table_are_reported(tmp_path: Path) -> None:
    folder = write(tmp_path, "file,label", "deep/0.png,a", "deep/1.png,b")
    with pytest.warns(UserWarning, match="left out 2 images that labels.csv does not name"):
        assert len(open_images(folder).train) == 2


@pytest.mark.parametrize(
    ("rows", "kind", "message"),
    [
        (["name,label", "deep/0.png,a"], None, "line 1: no column 'file'; the columns are name, label"),
        (["file,split", "deep/0.png,test"], None, "line 1: no column 'label', and no columns of numbers or labels"),
        (["file,label,width", "deep/0.png,a,2"], None, "line 1: has the column 'width' beside 'label'"),
        (["file,label,Label", "deep/0.png,a,2"], None, "line 1: columns 'label' and 'Label' are one; keep one"),
        (["file,label", "deep/9.png,a"], None, "line 2: there is no image 'deep/9.png' below"),
        (["file,label", ",a"], None, "line 2: column 'file': is empty"),
        (["file,label", "deep/../deep/0.png,a"], None, "line 2: 'deep/../deep/0.png' is no path below"),
        (["file,label", "/deep/0.png,a"], None, "line 2: '/deep/0.png' is no path below"),
        (
            ["file,label", "deep/0.png,a", "deep/1.png,b", "deep/0.png,a"],
            None,
            "line 4: 'deep/0.png' is also",
        ),
        (["file,label", "deep/0.png,a", "deep/1.png,"], None, "line 3: column 'label': is empty; expected a class"),
        (["file,label", "deep/0.png,a|b"], None, "line 2: column 'label': 'a|b' may be one class or several labels"),
        (["file,label", "deep/0.png,a||b"], "labels", "line 2: column 'label': 'a||b' has an empty label"),
        (["file,label", "deep/0.png,a|a"], "labels", "line 2: column 'label': has the label 'a' twice"),
        (["file,label", "deep/0.png,1", "deep/1.png,x"], "number", "line 3: column 'label': 'x' is no finite number"),
        (["file,label", "deep/0.png,1", "deep/1.png,"], "number", "line 3: column 'label': '' is no finite number"),
        (["file,w,h", "deep/0.png,1,2", "deep/1.png,1,"], None, "line 3: column 'h': '' is no finite number"),
        (
            ["file,w,h", "deep/0.png,1,2"],
            "labels",
            "column 'h': is '2'; expected 1 where the row has",
        ),
        (["file,w,h", "deep/0.png,1,2"], "class", "classes are of one column; there are 2: w, h"),
        (["file,label,split", "deep/0.png,a,fit"], None, "line 2: column 'split': 'fit' is no split"),
        (["file,label,split", "deep/0.png,a,test"], None, "labels.csv: the split has nothing to train on"),
        (["file,label,Group", "deep/0.png,a,"], None, "line 2: column 'Group': is empty; expected the name of a group"),
        (["file,label,time", "deep/0.png,a,noon"], None, "line 2: column 'time': 'noon' is no time"),
        (
            ["file,label,time", "deep/0.png,a,3", "deep/1.png,a,2024-01-01"],
            None,
            "line 3: column 'time': '2024-01-01' and '3' cannot be compared; write numbers, or dates",
        ),
    ],
)
def test_errors_in_the_table_name_the_line(tmp_path: Path, rows: list[str], kind: Kind | None, message: str) -> None:
    with refused(ValueError, "labels.csv", message):
        open_images(write(tmp_path, *rows), kind=kind)


def test_data_sets_of_classes_have_no_other_kinds_of_answers(tmp_path: Path) -> None:
    with refused(ValueError, "target is 'labels', but digits has classes; leave it out, or pass a folder"):
        open_images("digits", kind="labels")
