import functools
import gzip
from pathlib import Path
from typing import Any

import pytest
import torch

from fredholm.tasks import series
from fredholm.tasks.series import LabelReading
from fredholm.tasks.targets import ClassAnswers, LabelAnswers, NumberAnswers
from tests.refusals import refused

read_csv = functools.partial(series.read_csv, reading=LabelReading())

TABLE = """\
Series,time,x,label,y
one,0,1.5,b,?
two,0,7,a,8
one,0.5,2.5,b,3
one,2,,b,4
two,1,9,a,10
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "some.csv"
    path.write_text(text)
    return path


def test_rows_are_grouped_into_series(tmp_path: Path) -> None:
    found = read_csv(written(tmp_path, TABLE))
    assert (found.channels, found.answer_names, found.lengths.tolist()) == (("x", "y"), ("a", "b"), [3, 2])
    assert found.names == ("some.csv, series one", "some.csv, series two")
    assert found.answers is not None
    assert found.times is not None
    assert found.answers.values.tolist() == [1, 0]
    assert found.times.tolist() == [[0, 0.5, 2], [0, 1, 0]]
    expected = torch.tensor([[[1.5, -1], [2.5, 3], [-1, 4]], [[7, 8], [9, 10], [-1, -1]]])
    torch.testing.assert_close(found.values.nan_to_num(-1), expected)


def test_without_a_series_column_all_rows_form_one_series(tmp_path: Path) -> None:
    found = read_csv(written(tmp_path, "\ufefftime,v\n1970-01-01T00:00:10,1\n1970-01-01T00:00:20,2\n\n"))
    assert (len(found), found.answers, found.spacing, found.times) == (1, None, 10, None)
    assert found.names == ("some.csv",)


def test_channels_are_found_by_name(tmp_path: Path) -> None:
    path = written(tmp_path, TABLE)
    assert read_csv(path, channels=("y", "x")).values[1, 0].tolist() == [8, 7]
    assert read_csv(path, channels=("y",)).channels == ("y",)
    with refused(ValueError, "some.csv, line 1: no column 'z'; the columns are Series, time, x, label, y"):
        read_csv(path, channels=("x", "z"))


def test_known_classes_keep_their_order(tmp_path: Path) -> None:
    found = read_csv(written(tmp_path, TABLE), reading=LabelReading(names=("b", "c", "a")))
    assert found.answers is not None
    assert found.answers.values.tolist() == [0, 2]
    with refused(ValueError, "line 3: column 'label': class 'a' is none of b, those of the training data"):
        read_csv(written(tmp_path, TABLE), reading=LabelReading(names=("b",)))


def test_numeric_class_names_are_sorted_by_value(tmp_path: Path) -> None:
    rows = "".join(f"{name},0,1,{name}\n" for name in ("10", "9", "x"))
    assert read_csv(written(tmp_path, "series,time,v,label\n" + rows)).answer_names == ("9", "10", "x")


def test_gzipped(tmp_path: Path) -> None:
    path = tmp_path / "some.csv.gz"
    path.write_bytes(gzip.compress(TABLE.encode()))
    assert len(read_csv(path)) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "x,y\n1,2\n",
            "line 1: no column 'time'; the columns are x, y; expected when each row was sampled, in a column time (or "
            "timestamp, datetime, date, ds): name it so, or add one with 0, 1, 2, ... at even steps",
        ),
        ("time,label\n1,a\n", "line 1: no column with values; the columns are time, label"),
        ("time,x,x\n1,2,3\n", "line 1: column 'x' is there twice"),
        ("time,x,Time\n1,2,3\n", "line 1: column 'Time' is there twice"),
        ("time,x\n", "has no rows below its header"),
        ("time,x\n0,1\n1,abc\n", "line 3: column 'x': 'abc' is no finite number; write one, or leave the place empty"),
        ("time,x\n0,1\n1,inf\n", "line 3: column 'x': 'inf' is no finite number"),
        (
            "who,time,x\np0,0,1\n",
            "if this is the series that the row is of, call the column series (or unique_id",
        ),
        ("time,x\n0,1\n1\n", "line 3: has 1 cells; the header has 2"),
        ("time,x\n0,1\n1,2,3\n", "line 3: has 3 cells"),
        ("time,x\n0,1\nnan,2\n", "line 3: column 'time': 'nan' is no time; expected a finite number"),
        ("time,x\n0,1\n,2\n", "line 3: column 'time': '' is no time"),
        (
            "time,x\n3,1\n2,2\n",
            "'2' after '3'; sort the rows of a series by time, one a time; of several series, say in a column 'series'",
        ),
        ("time,x\n2026-01-01,1\n3,2\n", "line 3: column 'time': '3' stands among dates without a zone; write one kind"),
        (
            "series,time,x\na,2026-01-01T00Z,1\nb,2026-01-01,2\n",
            "times of one series are dates with a zone, of another dates without a zone; write one kind",
        ),
        ("time,x\n2026-01-01T00Z,1\n2026-01-02,2\n", "'2026-01-02' stands among dates with a zone; write one kind"),
        ("time,x\n3,1\n3,2\n", "line 3: column 'time': '3' after '3'"),
        ("time,x\n2026-01-02,1\n2026-01-01,2\n", "column 'time': '2026-01-01' after '2026-01-02'; sort the rows"),
        ("time,x,label\n0,1,a\n1,2,\n", "line 3: column 'label': '' after 'a'; expected one label of a series"),
        ("time,x,label\n0,1,\n", "line 2: column 'label': is empty; expected a class"),
    ],
)
def test_mistakes_name_file_line_and_column(text: str, message: str, tmp_path: Path) -> None:
    with refused(ValueError, "some.csv", message):
        read_csv(written(tmp_path, text))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with refused(ValueError, "absent.csv: cannot be read"):
        read_csv(tmp_path / "absent.csv")
    with refused(ValueError, "some.csv: is empty"):
        read_csv(written(tmp_path, ""))


def answers_of(folder: Path, *labels: str, **reading: Any) -> Any:
    """The answers of series with one sample each."""
    rows = "".join(f"{i},0,1,{label}\n" for i, label in enumerate(labels))
    return read_csv(written(folder, "series,time,v,label\n" + rows), reading=LabelReading(**reading)).answers


def test_labels_are_classes_several_labels_or_numbers(tmp_path: Path) -> None:
    numbers = answers_of(tmp_path, "1.5", "-2")
    assert isinstance(numbers, NumberAnswers)
    assert (numbers.names, numbers.values.tolist()) == (("label",), [[1.5], [-2]])
    assert isinstance(answers_of(tmp_path, "1", "2"), ClassAnswers)
    assert isinstance(answers_of(tmp_path, "1", "2", kind="number"), NumberAnswers)
    labels = answers_of(tmp_path, "wet|cold", "", "cold", kind="labels")
    assert isinstance(labels, LabelAnswers)
    assert (labels.names, labels.values.int().tolist()) == (("cold", "wet"), [[1, 1], [0, 0], [1, 0]])
    with refused(ValueError, "some.csv, line 3: column 'label': 'x' is no finite number"):
        answers_of(tmp_path, "1", "x", kind="number")
    with refused(ValueError, "line 2: column 'label'", "may be one class or several labels; set target to 'labels'"):
        answers_of(tmp_path, "wet|cold", "wet")


def test_groups_splits_and_times_are_read(tmp_path: Path) -> None:
    text = "series,Time,v,group,split\na,5,1,g,train\na,6,1,g,train\nb,3,1,h,val\n"
    marks = read_csv(written(tmp_path, text)).marks
    assert marks.given is not None
    assert marks.times is not None
    assert (marks.given.tolist(), marks.groups, marks.times.tolist()) == ([0, 1], ("g", "h"), [5, 3])
    with refused(ValueError, "line 3: column 'group': 'h' after 'g'; expected one group a series"):
        read_csv(written(tmp_path, text.replace("6,1,g", "6,1,h")))
    with refused(ValueError, "line 4: column 'group': is empty"):
        read_csv(written(tmp_path, text.replace("1,h,", "1,,")))
    plain = series.read_csv(written(tmp_path, text.replace("6,1,g", "6,1,h") + "b,4,1,h,odd\n"))
    assert (plain.marks.groups, plain.marks.given, plain.channels) == (None, None, ("v",))


def test_column_names_of_other_tools_are_recognised(tmp_path: Path) -> None:
    found = read_csv(written(tmp_path, "unique_id,ds,y\na,2026-01-01,1\na,2026-01-02,2\nb,2026-01-01,3\n"))
    assert (found.channels, found.spacing, found.lengths.tolist()) == (("y",), 86400.0, [2, 1])
    both = read_csv(written(tmp_path, "time,date,y\n1,7,1\n2,8,1\n"))
    assert both.channels == ("date", "y")
