"""A folder of series with one subfolder of tables per class."""

from pathlib import Path

import pytest
import torch

from fredholm.tasks.series.open import open_series
from fredholm.tasks.splits.splits import Splits
from tests.refusals import refused


def write(path: Path, *rows: str, header: str = "time,a,b") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *rows]) + "\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "calm" / "1.csv", "0,1,2", "0.5,3,4")
    write(tmp_path / "calm" / "deep" / "2.csv", "4,5,50", "6,6,60", "8,7,70", header="Time,b,a")
    write(tmp_path / "wild" / "1.CSV", "0,8,9")
    return tmp_path


def test_the_folder_gives_the_class_and_columns_are_matched_by_name(folder: Path) -> None:
    found = open_series(folder)
    assert not found.is_given
    series = found.train.in_memory()
    assert series.names == ("calm/1.csv", "calm/deep/2.csv", "wild/1.CSV")
    assert series.channels == ("a", "b")
    assert series.answer_names == ("calm", "wild")
    assert series.answers is not None
    assert series.answers.strata.tolist() == [0, 0, 1]
    assert series.lengths.tolist() == [2, 3, 1]
    torch.testing.assert_close(series.values[1], torch.tensor([[50.0, 5.0], [60.0, 6.0], [70.0, 7.0]]))
    assert series.times is not None
    assert series.times[1].tolist() == [4.0, 6.0, 8.0]


def test_several_series_in_a_table_have_the_class_of_its_folder(folder: Path) -> None:
    for path in folder.rglob("*.[cC][sS][vV]"):
        path.unlink()
    write(folder / "calm" / "1.csv", "x,0,1", "y,0,2", header="series,time,a")
    write(folder / "wild" / "1.csv", "x,0,3", header="series,time,a")
    series = open_series(folder).train.in_memory()
    assert series.names == ("calm/1.csv, series x", "calm/1.csv, series y", "wild/1.csv, series x")
    assert series.values[:, 0, 0].tolist() == [1.0, 2.0, 3.0]


def test_folders_of_splits_give_the_split(tmp_path: Path) -> None:
    for split in ("train", "val", "test"):
        write(tmp_path / split / "up" / "1.csv", "0,1,2")
        write(tmp_path / split / "down" / "1.csv", "0,3,4")
    found: Splits = open_series(tmp_path)
    assert found.is_given
    assert found.valid is not None
    assert found.test is not None
    assert found.valid.names == ("val/down/1.csv", "val/up/1.csv")
    assert found.test.answer_names == ("down", "up")


def test_ambiguous_or_mismatched_folders_are_refused(folder: Path) -> None:
    with refused(ValueError, "target is 'number', but the folders", "are classes"):
        open_series(folder, kind="number")
    write(folder / "wild" / "2.csv", "1,2", header="a,b")
    with refused(ValueError, "2.csv, line 1: no column 'time'; the columns are a, b; expected when each row was"):
        open_series(folder)
    write(folder / "wild" / "2.csv", "0,1", header="time,a")
    with refused(ValueError, "2.csv", "no column 'b'"):
        open_series(folder)
    write(folder / "wild" / "2.csv", "0,1,2,3", header="time,a,b,c")
    with refused(ValueError, "2.csv: has the columns time, a, b, c, and", "1.csv time, a, b"):
        open_series(folder)
    write(folder / "wild" / "2.csv", "0,1,2,calm", header="time,a,b,label")
    with refused(ValueError, "2.csv: has a column 'label'"):
        open_series(folder)
    write(folder / "wild" / "2.csv", "0,1,x")
    with refused(ValueError, "2.csv, line 2: column 'b'"):
        open_series(folder)
    (folder / "wild" / "2.csv").unlink()
    (folder / "wild" / "1.CSV").unlink()
    with refused(ValueError, "wild: no series (.csv, .csv.gz, .parquet) in this class folder"):
        open_series(folder)


def test_a_warning_reports_skipped_files(folder: Path) -> None:
    (folder / "calm" / "notes.md").write_text("none")
    with pytest.warns(UserWarning, match=r"skipped 1 file that holds no series of a class \(\.md\)"):
        open_series(folder)
