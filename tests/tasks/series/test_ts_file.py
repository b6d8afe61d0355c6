import functools
from pathlib import Path

import pytest

from fredholm.tasks import series
from fredholm.tasks.series import LabelReading
from fredholm.tasks.targets import NumberAnswers
from tests.refusals import refused

read_ts = functools.partial(series.read_ts, reading=LabelReading())
HEAD = "# a comment\n@problemName Some\n@timeStamps false\n@classLabel true up down\n@data\n"
TIMED = HEAD.replace("@timeStamps false", "@timeStamps true")


def written(folder: Path, text: str) -> Path:
    path = folder / "some.ts"
    path.write_text(text)
    return path


def test_lines_are_read_as_series(tmp_path: Path) -> None:
    found = read_ts(written(tmp_path, HEAD + "1,2,?:4,5,6:down\n\n7:NaN:up\n"))
    assert found.values.nan_to_num(-1).tolist() == [[[1, 4], [2, 5], [-1, 6]], [[7, -1], [-1, -1], [-1, -1]]]
    assert (found.lengths.tolist(), found.times, found.spacing) == ([3, 1], None, 1.0)
    assert (found.answer_names, found.channels) == (("up", "down"), ("channel_0", "channel_1"))
    assert found.names == ("some.ts, line 6", "some.ts, line 8")
    assert found.answers is not None
    assert found.answers.values.tolist() == [1, 0]


def test_channels_may_have_times_of_their_own(tmp_path: Path) -> None:
    found = read_ts(written(tmp_path, TIMED + "(0,1),(2,3),(3,?):(2,5):up\n(1,1):(0,4),(7,2):down\n"))
    assert found.times is not None
    assert found.times.tolist() == [[0, 2, 3], [0, 1, 7]]
    assert found.values.nan_to_num(-1).tolist() == [[[1, -1], [3, 5], [-1, -1]], [[-1, 4], [1, -1], [-1, 2]]]


def test_colons_in_dates_do_not_separate_channels(tmp_path: Path) -> None:
    found = read_ts(written(tmp_path, TIMED + "(2026-01-31 12:00:00,1),(2026-01-31 12:00:30,2):up\n"))
    assert (found.spacing, found.times, found.channels) == (30, None, ("channel_0",))


def test_a_shorter_channel_is_padded_with_missing_values(tmp_path: Path) -> None:
    found = read_ts(written(tmp_path, HEAD + "1,2,3:4:up\n"))
    assert found.values.nan_to_num(-1).tolist() == [[[1, 4], [2, -1], [3, -1]]]


def test_files_without_labels_and_with_given_names(tmp_path: Path) -> None:
    found = read_ts(
        written(tmp_path, "@classLabel false\n@data\n1,2\n"), channels=("x",), reading=LabelReading(names=("a", "b"))
    )
    assert (found.answers, found.channels) == (None, ("x",))
    listed = read_ts(written(tmp_path, "@classLabel true\n@data\n1,2:b\n2:a\n"))
    assert listed.answer_names == ("a", "b")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD, "has no series; expected lines with values after @data"),
        (HEAD + "1,x:up\n", "line 6: channel 0: 'x' is no finite number"),
        (HEAD + "1,2:sideways\n", "line 6: class 'sideways' is none of up, down"),
        (HEAD + "1:2:up\n1:up\n", "line 7: has 1 channels; expected 2"),
        ("@dimensions 2\n" + HEAD + "1:up\n", "line 7: has 1 channels; expected 2"),
        ("@dimensions two\n" + HEAD, "line 1: @dimensions is two; expected a number of channels"),
        (HEAD + ":up\n", "line 6: the series has no samples; expected at least one"),
        (TIMED + "(0,1),(1,2:up\n", "are no pairs (time,value)"),
        (TIMED + "(0,1),(nan,2):up\n", "line 6: channel 0: 'nan' is no time"),
        (TIMED + "(1,1),(0,2):up\n", "line 6: channel 0: time 0 after 1; sort the samples by time, one a time"),
        (TIMED + "(1,1),(1,2):up\n", "time 1 after 1"),
        ("@targetLabel true\n@data\n1:2\n1:x\n", "line 4: 'x' is no finite number"),
    ],
)
def test_mistakes_name_file_and_line(text: str, message: str, tmp_path: Path) -> None:
    with refused(ValueError, "some.ts", message):
        read_ts(written(tmp_path, text))


def test_files_of_regression_end_with_a_number(tmp_path: Path) -> None:
    path = written(tmp_path, "@timeStamps false\n@targetLabel true\n@data\n1,2:0.5\n3,4:7\n")
    found = read_ts(path)
    assert isinstance(found.answers, NumberAnswers)
    assert (found.answers.names, found.answers.values[:, 0].tolist()) == (("target",), [0.5, 7.0])
    assert found.channels == ("channel_0",)
    assert series.read_ts(path).answers is None
    with refused(ValueError, "@targetLabel says that numbers are predicted; leave target='class' out"):
        read_ts(path, reading=LabelReading(kind="class"))
    numbered = written(tmp_path, "@classLabel true 1 2\n@data\n1,2:1\n2:2\n")
    assert isinstance(read_ts(numbered, reading=LabelReading(kind="number")).answers, NumberAnswers)
