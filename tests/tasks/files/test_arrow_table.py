"""Columnar tables are read as they were saved, and broken ones are refused."""

import importlib.util
import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from fredholm.tasks.files import cache
from fredholm.tasks.files.arrow_table import ArrowTable
from tests.faults.samples import columns
from tests.refusals import refused

SAVED = Path(__file__).parent / "saved_by_datasets"
"""See `make.py` there."""
KINDS = ("stream.arrow", "footer.arrow", "a.parquet")
NAMES = {"label": ["no", "yes"]}


def saved(path: Path, names: dict[str, list[str]] | None = None, **values: Any) -> ArrowTable:
    path.write_bytes(columns("footer" if path.name == "footer.arrow" else path.suffix, names, **values))
    return ArrowTable(path)


@pytest.mark.parametrize("name", KINDS)
def test_rows_are_read_as_saved(tmp_path: Path, name: str) -> None:
    count = 2500  # more than one chunk
    texts = [None if i == 7 else f"row {i} é" for i in range(count)]
    table = saved(tmp_path / name, text=texts, number=np.arange(count), parts=[[i, 2 * i] for i in range(count)])
    assert (table.names, table.num_rows) == (("text", "number", "parts"), count)
    expected = [{"text": text, "number": i, "parts": [i, 2 * i]} for i, text in enumerate(texts)]
    assert list(table.rows()) == expected
    assert list(table.rows(["number", "text"])) == [{"number": row["number"], "text": row["text"]} for row in expected]
    assert table.mapped(["number"]).to_pydict() == {"number": list(range(count))}
    assert {field: str(kind) for field, kind in table.types().items()} == {
        "text": "string",
        "number": "int64",
        "parts": "list<item: int64>" if name != "a.parquet" else "list<element: int64>",
    }
    empty = saved(tmp_path / name, text=pyarrow.array([], pyarrow.string()))
    assert (empty.num_rows, list(empty.rows()), empty.mapped(["text"]).num_rows) == (0, [], 0)


@pytest.mark.parametrize("name", KINDS)
def test_class_numbers_are_read_as_class_names(tmp_path: Path, name: str) -> None:
    table = saved(tmp_path / name, NAMES, label=[1, 0, -1, None], number=[1, 0, 3, 4])
    assert [row["label"] for row in table.rows()] == ["yes", "no", None, None]
    assert [row["number"] for row in table.rows()] == [1, 0, 3, 4]
    with refused(ValueError, name, "column 'label': there is a class 2, of 2 with names"):
        list(saved(tmp_path / name, NAMES, label=[0, 2]).rows())


def test_files_saved_by_datasets_are_read() -> None:
    expected = [
        {"text": "a b", "label": "zebra", "labels": ["x"]},
        {"text": "c", "label": "ant", "labels": ["y", "x"]},
        {"text": "d é", "label": "zebra", "labels": []},
        {"text": "e", "label": "ant", "labels": ["y"]},
        {"text": "f", "label": "zebra", "labels": ["x"]},
        {"text": "g", "label": "ant", "labels": ["x", "y"]},
    ]
    names = ["text", "label", "labels"]
    assert list(ArrowTable(SAVED / "whole.parquet").rows(names)) == expected
    train = sorted((SAVED / "splits" / "train").glob("*.arrow"))
    assert [row for path in train for row in ArrowTable(path).rows(names)] == [expected[i] for i in (5, 0, 1, 2)]


def test_large_parquet_is_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "LARGE", 10_000)
    values = np.random.default_rng(0).integers(0, 1 << 60, 5000)
    table = saved(tmp_path / "a.parquet", number=values, other=values)
    for _ in range(2):
        assert table.mapped(["number"]).column(0).to_numpy().tolist() == values.tolist()
    assert len(list((tmp_path / "cache").glob("*.bin"))) == 1
    assert table.mapped(["other", "number"]).column_names == ["other", "number"]


def test_broken_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {
        name: columns("footer" if name == "footer.arrow" else Path(name).suffix, text=["ab", "cd"]) for name in KINDS
    }
    for name, data in whole.items():
        for content in (b"", b"text", data[: len(data) // 2], data[:-9] if name == "a.parquet" else data[:200]):
            (tmp_path / name).write_bytes(content)
            with refused(ValueError, f"{name}: cannot be read as a table in {Path(name).suffix}", "save it again"):
                list(ArrowTable(tmp_path / name).rows())
    with refused(ValueError, "no.arrow: cannot be read as a table in .arrow (No such file or directory)"):
        ArrowTable(tmp_path / "no.arrow")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with refused(
        ImportError, "a.parquet: .parquet is read by pyarrow, which is missing: pip install", "fredholm[arrow]"
    ):
        ArrowTable(tmp_path / "a.parquet")


def test_a_stream_truncated_between_two_batches_is_refused(tmp_path: Path) -> None:
    written, ends, path = io.BytesIO(), list[int](), tmp_path / "a.arrow"
    schema = pyarrow.schema([("text", pyarrow.string()), ("number", pyarrow.int32())])
    with pyarrow.ipc.new_stream(written, schema) as writer:
        for _ in range(2):
            writer.write_batch(pyarrow.record_batch([["a", "b"], pyarrow.array([-1, 0], pyarrow.int32())], schema))
            ends.append(written.tell())
    whole = written.getvalue()
    path.write_bytes(whole)
    assert (ArrowTable(path).num_rows, ArrowTable(path).mapped(["text"]).num_rows) == (4, 4)
    for end in ends:
        assert end < len(whole)
        assert whole[:end].endswith(whole[-8:])  # a truncated stream may end with the bytes of the end mark
        path.write_bytes(whole[:end])
        for read in (
            lambda table: table.num_rows,
            lambda table: list(table.rows()),
            lambda table: table.mapped(["text"]),
        ):
            with refused(ValueError, "a.arrow: cannot be read as a table", f"after {end:,} bytes the mark of its end"):
                read(ArrowTable(path))
    path.write_bytes(2 * whole)
    with refused(ValueError, "a.arrow: cannot be read as a table", "it goes on after its end", "save it again"):
        list(ArrowTable(path).rows())


def test_an_uppercase_suffix_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "A.PARQUET").write_bytes(columns(".parquet", text=["a", "b"]))
    table = ArrowTable(tmp_path / "A.PARQUET")
    assert (list(table.rows()), table.num_rows) == ([{"text": "a"}, {"text": "b"}], 2)
    assert table.mapped(["text"]).to_pydict() == {"text": ["a", "b"]}


def test_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    table, path = pyarrow.table([["a"], ["b"]], ["text", "text"]), tmp_path / "a.arrow"
    with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    with refused(ValueError, "a.arrow: column 'text' is there twice; rename one"):
        ArrowTable(path)


@pytest.mark.parametrize("name", ["stream.arrow", "footer.arrow"])
def test_offsets_that_leave_the_file_are_not_followed(tmp_path: Path, name: str) -> None:
    data = columns("footer" if name == "footer.arrow" else ".arrow", text=["abcd"] * 7)
    offsets = (4 * np.arange(8, dtype=np.int32)).tobytes()
    assert data.count(offsets) == 1
    wrong = (np.arange(8, dtype=np.int32) << 20).tobytes()
    (tmp_path / name).write_bytes(data.replace(offsets, wrong))
    table = ArrowTable(tmp_path / name)
    for read in (lambda: list(table.rows()), lambda: table.mapped(["text"])):
        with refused(ValueError, name, "cannot be read as a table"):
            read()


@pytest.mark.slow
def test_columns_too_large_when_unpacked_are_refused(tmp_path: Path) -> None:
    written = io.BytesIO()
    values = pyarrow.array(np.zeros(20_000_000, np.int64))
    pyarrow.parquet.write_table(pyarrow.table({"x": values}), written, compression="zstd")
    (tmp_path / "a.parquet").write_bytes(written.getvalue())
    with refused(ValueError, "a.parquet: unpacked it would take", "the limit is 128.0 MiB"):
        ArrowTable(tmp_path / "a.parquet").mapped(["x"])
