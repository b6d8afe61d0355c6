from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from fredholm.tasks import SeriesLearning, TableLearning
from fredholm.tasks.fields.csv_file import read_csv as read_fields
from fredholm.tasks.files.delimited import CsvSettings, DelimitedFile
from fredholm.tasks.graphs import open_graphs
from fredholm.tasks.points.cloud_file import read_cloud
from fredholm.tasks.sentences import read_table
from fredholm.tasks.series import read_series
from tests.refusals import refused


def cells(path: Path, content: str | bytes, columns: tuple[str, ...] = (), **settings: Any) -> list[list[str]]:
    """The rows of a file with this content, its header too."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with CsvSettings(**settings).reading(path):
        return [record.cells for record in DelimitedFile(path, columns).records()]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("a,b\n1,2\n", ["a", "b"]),
        ("a;b\n1,5;2\n", ["a", "b"]),
        ("a\tb\nx, y; z\t2\n", ["a", "b"]),
        ("a|b\n1|2\n", ["a", "b"]),
        ("\n \na;b\n1;2\n", ["a", "b"]),
        ("a,b|c\nx|y,z\nx,y\n", ["a", "b|c"]),  # only commas divide every row alike
        ('"a;b",c\n"x;y",z\n', ["a;b", "c"]),
        ('"a\nd";"b,c"\n1;2\n', ["a\nd", "b,c"]),
        ("text\nI came; I saw\n", ["text"]),
        ("sep=;\na,d;b\n1,2;3,4\n", ["a,d", "b"]),  # Excel's way to name it
        ("a;b;\n1;2;\n", ["a", "b"]),  # a mark also ends each line
    ],
)
def test_the_mark_between_cells_divides_the_header_and_the_rows(text: str, first: list[str], tmp_path: Path) -> None:
    assert cells(tmp_path / "a.csv", text)[0] == first


def test_of_a_file_without_a_header_the_mark_gives_as_many_cells_as_there_are_names(tmp_path: Path) -> None:
    assert cells(tmp_path / "a.csv", "I came; I saw,1\nI won,0\n", ("text", "label"))[0] == ["I came; I saw", "1"]
    assert cells(tmp_path / "a.csv", "1;2\n3;4\n", ("a", "b")) == [["1", "2"], ["3", "4"]]
    assert cells(tmp_path / "a.csv", "1;2\n", ("a",)) == [["1;2"]]


def test_an_ambiguous_mark_between_cells_has_to_be_named(tmp_path: Path) -> None:
    text = "a;b,c\n1;2,3\n"
    with refused(ValueError, "divided into cells by each comma, and likewise by each semicolon", "csv.sep=semicolon"):
        cells(tmp_path / "a.csv", text)
    assert cells(tmp_path / "a.csv", text, sep="comma")[1] == ["1;2", "3"]
    assert cells(tmp_path / "a.csv", text, sep="semicolon", decimal="point")[1] == ["1", "2,3"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a;b\n1,5;x\n-1.234,50;y\n", ["1.5", "-1234.50"]),
        ("a;b\n1.234;2,5\n", ["1234"]),  # another column has decimal commas
        ("a;b\n1.234;2.5\n", ["1.234"]),
        ("a;b\n1,234;2.5\n", ["1234"]),
        ("a;b\n1.234.567;2\n", ["1234567"]),
        ("a;b\n0,123;2\nNaN;2\n;3\n", ["0.123", "NaN", ""]),
        ("a;b\n0.123;1,5\n", ["0.123"]),  # no group of thousands begins with 0
        ("a;b\n1,5;2\nx;3\n", ["1,5", "x"]),  # a column of words stays
        ("a;b\n1,5;2\n1.5;3\n", ["1,5", "1.5"]),
        ("a;b\n1,2,3;2\n", ["1,2,3"]),
        ("a;b\n01.02.2024;2,5\n", ["01.02.2024"]),
        ("a\tb\n1.234\t2\n", ["1.234"]),
        ("a\tb\n1,5\t2\n", ["1.5"]),
        ("a,b\n1.234,2\n", ["1.234"]),
        ('a,b\n"1,5",2\n', ["1,5"]),  # perhaps two numbers
        ('a,b\n"1,234.5",2\n"1,000",3\n', ["1234.5", "1000"]),
        ("a;b\n1e3;2,5\n1,5e3;2\n", ["1e3", "1.5e3"]),
    ],
)
def test_the_decimal_mark_is_the_one_of_all_cells_of_a_column(text: str, found: list[str], tmp_path: Path) -> None:
    assert [row[0] for row in cells(tmp_path / "a.csv", text)[1:]] == found


@pytest.mark.parametrize(
    "text", ["a;b\n1.234;2\n", "a;b\n1,234;2\n", "a\tb\n1,234\t2\n", "a\tb\tc\n1.234\t1,5\t1.5\n", "a|b\n1,234|2\n"]
)
def test_an_ambiguous_decimal_mark_has_to_be_named(text: str, tmp_path: Path) -> None:
    number = text.split("\n")[1][:5]
    with refused(ValueError, "a.csv, line 2: column 'a'", f"'{number}' is", "csv.decimal=point or csv.decimal=comma"):
        cells(tmp_path / "a.csv", text)
    points = {"1.234": "1.234", "1,234": "1234"}[number]
    assert cells(tmp_path / "a.csv", text, decimal="point")[1][0] == points
    assert cells(tmp_path / "a.csv", text, decimal="comma")[1][0] == {"1.234": "1234", "1234": "1.234"}[points]


def test_a_named_decimal_mark_also_counts_with_commas_between_cells(tmp_path: Path) -> None:
    text = 'a,b,c\n"1,5","1,234",2.5\n'
    assert cells(tmp_path / "a.csv", text, decimal="comma")[1] == ["1.5", "1.234", "2.5"]
    assert cells(tmp_path / "a.csv", text, decimal="point")[1] == ["1,5", "1234", "2.5"]


def test_encodings(tmp_path: Path) -> None:
    text, file = "ä;b\nö;2\n", tmp_path / "a.csv"
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-32"):
        assert cells(file, text.encode(encoding)) == [["ä", "b"], ["ö", "2"]]
    with refused(ValueError, "a.csv: is no UTF-8 text: byte 0xe4 at offset 0, in line 1", "csv.encoding=cp1252"):
        cells(file, text.encode("cp1252"))
    for encoding in ("cp1252", "latin-1", "utf-16-le"):
        assert cells(file, text.encode(encoding), encoding=encoding) == [["ä", "b"], ["ö", "2"]]
    with refused(ValueError, "is UTF-8 text, and would be read wrongly as cp1252; pass csv.encoding=utf-8"):
        cells(file, text, encoding="cp1252")
    assert cells(file, "a;b\n1;2\n", encoding="cp1252") == [["a", "b"], ["1", "2"]]  # the same in both
    with refused(ValueError, "begins with the byte order mark of utf-16; pass csv.encoding=utf-16, and not latin-1"):
        cells(file, text.encode("utf-16"), encoding="latin-1")
    assert cells(file, text.encode("utf-16"), encoding="utf-16-be")[0] == ["ä", "b"]  # the mark says which of the two
    with refused(ValueError, "a.csv, line 2: has a NUL character", "csv.encoding=utf-16-le"):
        cells(file, b"a;b\n1\0;2\n")


def test_lines_that_are_no_rows(tmp_path: Path) -> None:
    assert cells(tmp_path / "a.csv", "sep=;\na,d;b\n1,2;3,4\n")[1] == ["1.2", "3.4"]
    assert cells(tmp_path / "a.csv", "a;b;\n1;2;\n") == [["a", "b"], ["1", "2"]]
    with refused(ValueError, "a.csv, line 3: the last column has no name; give it one"):
        cells(tmp_path / "a.csv", "a;b;\n1;2;\n1;2;3\n")
    with refused(ValueError, "a.csv, line 3: repeats the header; leave the line out"):
        cells(tmp_path / "a.csv", "text,label\nx,1\ntext,label\ny,2\n")
    assert cells(tmp_path / "a.csv", "text\ntext\n") == [["text"], ["text"]]
    with refused(ValueError, "a.csv: is no text but a zip archive, such as a spreadsheet in .xlsx"):
        cells(tmp_path / "a.csv", b"PK\x03\x04\x14\0")


def test_invalid_settings() -> None:
    for settings, message in (
        ({"sep": ";"}, "sep=';' is none of comma, semicolon, tab, pipe"),
        ({"decimal": ","}, "decimal=',' is none of point, comma"),
        ({"encoding": "latin-99"}, "encoding='latin-99' is no known encoding of text"),
        ({"encoding": "base64"}, "encoding='base64' is no known encoding of text"),
    ):
        with refused(ValueError, message):
            CsvSettings(**settings)  # pyright: ignore[reportArgumentType]


def test_settings_without_effect(tmp_path: Path) -> None:
    with refused(ValueError, "csv.sep has no effect on .tsv"):
        cells(tmp_path / "a.tsv", "a\tb\n1\t2\n", sep="tab")
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n')
    with (
        refused(ValueError, "csv.decimal='comma' has no effect on", "a.jsonl, which has no .csv file"),
        CsvSettings(decimal="comma").reading(tmp_path / "a.jsonl"),
    ):
        read_table(tmp_path / "a.jsonl")
    pyarrow.parquet.write_table(pyarrow.table({"time": [0, 1], "v": [1, 2]}), tmp_path / "a.parquet")
    with refused(ValueError, "csv.sep='tab' has no effect on"), CsvSettings(sep="tab").reading(tmp_path / "a.parquet"):
        assert read_series(tmp_path / "a.parquet").values.flatten().tolist() == [1, 2]
    (tmp_path / "a.ts").write_text("@problemName p\n@classLabel true a b\n@data\n1,2:a\n3,4:b\n")
    task = SeriesLearning.Config(data=str(tmp_path / "a.ts"), csv=CsvSettings(sep="comma")).build
    with refused(ValueError, "csv.sep='comma' has no effect on"):
        task()


def test_every_reader_takes_them(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("time;v\n0;1,5\n0,5;-2,25\n")
    assert read_series(file).values.flatten().tolist() == [1.5, -2.25]
    file.write_text("x;v\n0;1,5\n0,5;-2,25\n")
    assert read_fields(file).given.values.flatten().tolist() == [1.5, -2.25]
    file.write_text("x;y;z\n0;1,5;2\n0,5;-2,25;1.000\n")
    assert read_cloud(file).pos.tolist() == [[0, 1.5, 2], [0.5, -2.25, 1000]]
    (tmp_path / "edges.csv").write_text("source;target\na;b\n")
    (tmp_path / "nodes.csv").write_text("id;v\na;1,5\nb;-2,25\n")
    assert open_graphs(tmp_path).features.flatten().tolist() == [1.5, -2.25]


@pytest.mark.parametrize(
    ("read", "header", "row"),
    [(read_series, "time,v", "0,1"), (read_fields, "x,v", "0,1"), (read_cloud, "x,y,z", "0,1,2")],
)
def test_faults_of_rows_name_the_line(read: Any, header: str, row: str, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    for text, message in (
        (f"{header}\n{row}\n7\n", "a.csv, line 3: has 1 cells; the header has"),
        (f'{header}\n{row}\n"7,{row}\n', "a.csv, line 3: a quotation mark opens a cell and none closes it"),
        (f'{header}\n{row}\n"7"x,{row}\n', "a.csv, line 3: ',' expected after '\"': a cell in quotation marks goes on"),
        (f"{header}\n{row}\0\n", "a.csv, line 2: has a NUL character"),
    ):
        file.write_text(text)
        with refused(ValueError, message):
            read(file)


def test_settings_travel_with_a_task_and_apply_to_predictions(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes("".join(["ä;label\n", *(f"1.{100 + i};{i % 7}\n" for i in range(40))]).encode("cp1252"))
    config = TableLearning.Config(data=str(file), target="number", csv=CsvSettings(decimal="comma", encoding="cp1252"))
    task = config.build()
    [column] = task.splits.train.rows.cells.values()
    assert min(map(float, column)) >= 1100
    (tmp_path / "new.csv").write_bytes("ä\n1.105\n".encode("cp1252"))
    model = task.model()
    task.initialise(model, task_device := next(model.buffers()).device)
    [row] = task.predict(model, [tmp_path / "new.csv"], task_device)
    (tmp_path / "new.csv").write_bytes("ä\n1105\n".encode("cp1252"))
    assert task.predict(model, [tmp_path / "new.csv"], task_device) == [row]
