"""Files of the UCR archive."""

from pathlib import Path

import pytest

from fredholm.tasks.series import LabelReading, open_series, read_ucr
from fredholm.tasks.targets import ClassAnswers, NumberAnswers
from tests.refusals import refused


def written(folder: Path, text: str, name: str = "some.tsv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("text", ["2\t1.5\t2\n1\t3\tNaN\tNaN\n", "  2.0000e+00   1.5  2\n\n 1.0 3", "2,1.5,2\n1,3\n"])
def test_a_line_is_a_class_and_its_values(text: str, tmp_path: Path) -> None:
    found = read_ucr(written(tmp_path, text), reading=LabelReading())
    assert isinstance(found.answers, ClassAnswers)
    assert (found.answers.names, found.answers.values.tolist()) == (("1", "2"), [1, 0])
    assert found.lengths.tolist() == [2, 1]
    assert found.values[..., 0].nan_to_num(-1).tolist() == [[1.5, 2.0], [3.0, -1.0]]
    assert found.names[0].startswith("some.tsv, line 1")


def test_a_class_that_is_not_a_number_keeps_its_name(tmp_path: Path) -> None:
    found = read_ucr(written(tmp_path, "1_0 1 2\n10 1 2\n1e1 3 4\n"), reading=LabelReading())
    assert isinstance(found.answers, ClassAnswers)
    assert (found.answers.names, found.answers.values.tolist()) == (("10", "1_0"), [1, 0, 0])


def test_gaps_numeric_labels_and_no_labels(tmp_path: Path) -> None:
    path = written(tmp_path, "0.5\t1\tNaN\t3\n1\t2\t2\t2\n")
    found = read_ucr(path, channels=("heat",), reading=LabelReading(kind="number"))
    assert isinstance(found.answers, NumberAnswers)
    assert (found.answers.values[:, 0].tolist(), found.lengths.tolist(), found.channels) == (
        [0.5, 1.0],
        [3, 3],
        ("heat",),
    )
    assert bool(found.values[0, 1, 0].isnan())
    assert read_ucr(path).answers is None


def test_pairs_of_files_in_a_folder_with_a_description(tmp_path: Path) -> None:
    for name in ("Gun_TRAIN.txt", "Gun_TEST.txt"):
        written(tmp_path, "1 1 2 3\n2 3 2 1\n", name)
    written(tmp_path, "what this is about", "Gun.txt")
    found = open_series(tmp_path)
    assert (len(found.train), len(found.held_out("test"))) == (2, 2)
    for name in ("Gun_TRAIN.tsv", "Gun_TEST.tsv"):
        written(tmp_path, "1 1 2 3\n2 3 2 1\n1 1 1 1\n", name)
    assert len(open_series(tmp_path).train) == 3


def test_mistakes_name_the_line(tmp_path: Path) -> None:
    for text, *message in (
        ("1\t2\n1\tx\n", "some.tsv, line 2: 'x' is no finite number"),
        ("1\t2\n1\n", "some.tsv, line 2: has no values; expected a class, and values after it"),
        ("class\tvalue\n1\t2\n", "line 1: 'value' is no finite number", "without a header: a table with one is a .csv"),
        ("1\tNaN\n", "line 1: has no values"),
        ("\n", "some.tsv: has no series"),
    ):
        with refused(ValueError, *message):
            read_ucr(written(tmp_path, text), reading=LabelReading())
    with refused(ValueError, "line 1: class '3' is none of 1, 2"):
        read_ucr(written(tmp_path, "3\t1\n"), reading=LabelReading(names=("1", "2")))
