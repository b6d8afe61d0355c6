import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fredholm.tasks.fields import open_fields
from fredholm.tasks.fields.csv_file import read_csv as read_fields
from fredholm.tasks.files.cells import (
    LARGEST,
    as_kept,
    as_single,
    cells_of_line,
    kept_type,
    parse_number,
    parse_value,
)
from fredholm.tasks.graphs import open_graphs
from fredholm.tasks.points.cloud_file import read_cloud
from fredholm.tasks.series import read_series
from fredholm.tasks.targets.reading import answers_of_cells
from tests.refusals import refused


@pytest.mark.parametrize("text", ["", " ", "?", "NaN", "nan", "NA", "n/a", "null", "None"])
def test_cells_that_stand_for_a_missing_value(text: str) -> None:
    assert math.isnan(parse_value(text))


def test_numbers() -> None:
    assert [parse_value(text) for text in ("1", " -2.5 ", "3e-2", "+.5")] == [1, -2.5, 0.03, 0.5]


@pytest.mark.parametrize("text", ["abc", "1,b", "inf", "-Infinity", "1e999", "1_000", "0x1"])
def test_text_among_numbers(text: str) -> None:
    with refused(ValueError, f"{text!r} is no finite number"):
        parse_value(text)


@pytest.mark.parametrize("text", ["1,5", "-0,25", "1,234.5", "1.234,5"])
def test_commas_in_numbers(text: str) -> None:
    for read in (parse_value, parse_number):
        with refused(ValueError, f"{text!r} has a comma; write a point before decimals, and nothing between thousands"):
            read(text)


def test_cells_of_a_line() -> None:
    for line in ("1 2\t-3", "1,2,-3", "1, 2,\t-3 ", " 1 ,2 , -3"):
        assert cells_of_line(line) == ["1", "2", "-3"]
    assert cells_of_line(" ") == []
    for line in ("0,5 0,7", "1\t0,5"):
        with refused(ValueError, "has commas and blanks between numbers; write one of the two, and a point before"):
            cells_of_line(line)


def test_lines_with_commas_and_blanks_between_numbers_are_refused(tmp_path: Path) -> None:
    for read, name, text in ((read_cloud, "a.xyz", "0 0 0\n0,5 0,7 1\n"), (read_series, "a.tsv", "1\t2\n1\t0,5\n")):
        (tmp_path / name).write_text(text)
        with refused(ValueError, f"{name}, line 2: has commas and blanks between numbers"):
            read(tmp_path / name)


@pytest.mark.parametrize("column", ["series", "unique_id"])
def test_rows_without_a_series_are_refused(column: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"{column},time,v\na,0,1\n,1,2\n")
    with refused(ValueError, f"a.csv, line 3: column '{column}': is empty; expected the series that the row is of"):
        read_series(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text("field,x,v\na,0,1\n ,1,2\n")
    with refused(ValueError, "a.csv, line 3: column 'field': is empty; expected the function that the row is of"):
        read_fields(tmp_path / "a.csv")


def test_times_that_are_equal_in_float64_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("time,v\n100000000000000000,1\n100000000000000001,1\n")
    with refused(ValueError, "line 3", "'100000000000000001' is '100000000000000000' in float64; subtract what all"):
        read_series(tmp_path / "a.csv")


def test_whole_numbers_that_hardly_recur_need_an_explicit_target_kind() -> None:
    def place(i: int, column: str) -> str:
        return f"row {i}"

    many = [str(i) for i in range(30)]
    with refused(ValueError, "row 0: 30 different whole numbers in 31 rows; set target to 'number'", "or to 'class'"):
        answers_of_cells({"label": [*many, "nan"]}, None, place)
    assert len(answers_of_cells({"label": many}, "class", place).names) == 30
    for words in ([*many, *many], many[:20], [*many, "a"]):
        assert {*answers_of_cells({"label": words}, None, place).names} == {*words}


def test_errors_about_an_example_name_its_file_once(tmp_path: Path) -> None:
    values = np.ones((2, 4))
    values[1, 2] = np.inf
    np.savez(tmp_path / "a.npz", values=values)
    with pytest.raises(ValueError, match=r"/a.npz, series 1: sample 2 of channel") as caught:
        read_series(tmp_path / "a.npz")
    assert str(caught.value).count("a.npz") == 1
    with pytest.raises(ValueError, match=r"/a.npz, function 1: the value of sample 2 of the samples") as caught:
        open_fields(tmp_path / "a.npz")
    assert str(caught.value).count("a.npz") == 1


@pytest.mark.parametrize("text", ["1e39", "-3.5e38"])
def test_numbers_beyond_float32(text: str) -> None:
    with refused(ValueError, f"{text!r} is beyond 3.4e+38, the largest number of float32; use another unit"):
        parse_value(text)
    assert parse_value("3.4028234663852886e38") == LARGEST
    assert as_single(np.array([1e39, 1.0])).tolist() == [math.inf, 1.0]


def test_float64_is_kept_where_float32_would_round_a_column_noticeably() -> None:
    near, far = np.arange(6.0)[:, None] / 7, np.array([[1e9], [1e9 + 1], [np.nan]])
    assert kept_type(near, 300 + near) is np.float32
    assert kept_type(far) is kept_type(1e9 + near) is np.float64
    assert kept_type(np.array([[1e9]]), np.array([[2e9]])) is np.float32  # both are stored exactly
    assert kept_type(np.concatenate([near, 1e9 + near], axis=1)) is np.float64  # each column separately
    assert kept_type((1e9 + near).astype(np.float32)) is kept_type(np.zeros((0, 2))) is np.float32
    assert kept_type() is kept_type(np.zeros((3, 0))) is np.float32
    assert kept_type(np.array([[16777217], [16777219]])) is np.float64  # also for integers
    assert as_kept(near).dtype == np.float32
    assert as_kept(np.concatenate([far, [[-1e39]]])).ravel().tolist()[:2] == [1e9, 1e9 + 1]
    assert as_kept(np.concatenate([far, [[-1e39]]])).ravel().tolist()[3] == -math.inf


GRAPH = {"edges.csv": "graph,source,target\n0,0,1\n", "graphs.csv": "graph,label\n0,a\n"}


@pytest.mark.parametrize(
    ("read", "files", "place"),
    [
        (read_series, {"a.csv": "time,b,label\n0,1,u\n1,1e39,u\n"}, "a.csv, line 3: column 'b'"),
        (read_series, {"a.ts": "@problemName p\n@classLabel true a\n@data\n1,1e39:a\n"}, "a.ts, line 4: channel 0"),
        (read_series, {"a.tsv": "1\t2\t3\n1\t1e39\t2\n"}, "a.tsv, line 2"),
        (open_graphs, GRAPH | {"nodes.csv": "graph,id,c\n0,0,1\n0,1,1e39\n"}, "nodes.csv, line 3: column 'c'"),
        (
            open_graphs,
            GRAPH | {"nodes.csv": "graph,id,weight\n0,0,1e39\n0,1,1\n"},
            "nodes.csv, line 2: column 'weight'",
        ),
        (read_cloud, {"a.csv": "x,y,z,f\n0,0,0,1\n1,1,1,1e39\n"}, "a.csv, line 3: column 'f'"),
        (read_cloud, {"a.csv": "x,y,z,f\n0,0,0,1\n1,1,1,\n"}, "a.csv, line 3: column 'f'"),
        (read_cloud, {"a.xyz": "0 0 0\n1 1e39 1\n"}, "a.xyz, line 2"),
        (read_fields, {"a.csv": "x,value\n0,1\n1,1e39\n"}, "a.csv, line 3: column 'value'"),
        (read_fields, {"a.csv": "x,value\n0,1\n1e39,1\n"}, "a.csv, line 3: column 'x'"),
    ],
)
def test_every_table_reader_reports_where_numbers_are_too_large(
    read: Any, files: dict[str, str], place: str, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with refused(ValueError, f"{place}: '"):
        read(tmp_path if len(files) > 1 else tmp_path / next(iter(files)))


@pytest.mark.parametrize(
    ("cell", "message"),
    [("1e39", "'1e39' is beyond"), ("nan", "'nan' is no finite number"), ("", "'' is no finite number")],
)
def test_a_column_of_numbers_with_one_invalid_number_is_not_read_as_classes(cell: str, message: str) -> None:
    with refused(ValueError, f"row 1: {message}"):
        answers_of_cells({"label": ["0.5", cell, "1.5"]}, None, lambda i, column: f"row {i}")


def test_numbers_with_decimal_commas_are_not_read_as_classes() -> None:
    def place(i: int, column: str) -> str:
        return f"row {i}"

    with refused(ValueError, "row 1: '0,5' looks like a number with a decimal comma; write points"):
        answers_of_cells({"label": ["2", "0,5", "-1,25"]}, None, place)
    with refused(ValueError, "row 1: '1,476,775' looks like a number", "leave commas between thousands out"):
        answers_of_cells({"label": ["200", "1,476,775", "12,000.5"]}, None, place)
    amounts = [f"${1000 + i:,}.50" for i in range(30)]
    with refused(ValueError, "row 0: '$1,000.50' looks like a number with a sign; write 1000.50, or set target to"):
        answers_of_cells({"label": amounts}, None, place)
    for words in (["2", "0,5", "a"], ["1", "2", "1"], ["10%", "20%"], [*amounts, "a"]):
        assert {*answers_of_cells({"label": words}, None, place).names} == {*words}
    assert answers_of_cells({"label": ["0,5", "0,5"]}, None, place, ("0,5", "a")).values.tolist() == [0, 0]
    assert {*answers_of_cells({"label": ["2", "0,5"]}, "class", place).names} == {"2", "0,5"}


def test_a_number_may_be_infinite_or_missing_and_is_written_as_in_other_programs() -> None:
    assert [parse_number(text) for text in (" 1", "-2.5e3", "inf")] == [1, -2500, math.inf]
    assert math.isnan(parse_number("nan"))
    for text in ("", "x", "1_0", "_1", ",5"):
        with refused(ValueError, f"{text!r} is no number; write one"):
            parse_number(text)
