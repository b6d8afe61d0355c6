"""Documents read from files in chunks equal those of the whole text."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fredholm.tasks.files import data_files
from fredholm.tasks.text import Documents, documents, open_text
from fredholm.tasks.text.documents import ROW_SUFFIXES, Separator
from tests.faults.samples import columns
from tests.refusals import refused
from tests.tasks.files.test_arrow_table import SAVED
from tests.tasks.text.literal import cut_documents, split_documents, texts

SEPARATORS: tuple[Separator, ...] = ("file", "blank line", "line")
WORDS = ("a", "bc ", "\n", "\n", "\r\n", "\r", " ", "\t", "\u2003", "é€", "𝄞")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("documents")


def write(folder: Path, *whole: str) -> list[Path]:
    files = [folder / f"{i}.txt" for i in range(len(whole))]
    for file, text in zip(files, whole, strict=True):
        file.write_bytes(text.encode())
    return files


@pytest.mark.parametrize("separator", SEPARATORS)
@given(parts=st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=30), min_size=1, max_size=3))
def test_documents_equal_those_of_the_whole_text(folder: Path, separator: Separator, parts: list[list[str]]) -> None:
    whole = ["".join(part) for part in parts]
    files, expected = write(folder, *whole), [split_documents(text, separator) for text in whole]
    for chunk, piece in ((1 << 20, 1 << 16), (1, 1), (3, 4), (7, 2)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(data_files, "_CHUNK", chunk)
            patch.setattr(documents, "PIECE", piece)
            if not all(expected):
                with refused(ValueError, "there is no document: the text is blank"):
                    texts(Documents(files, separator))
                continue
            found = Documents(files, separator)
            assert texts(found) == tuple(text for own in expected for text in own)
            assert found.size == (len(texts(found)), sum(map(len, texts(found))))
            assert "".join(found) == "".join(texts(found))


@pytest.mark.parametrize("separator", SEPARATORS)
@given(
    parts=st.lists(st.lists(st.sampled_from(WORDS), max_size=20), min_size=1, max_size=3),
    fraction=st.floats(0.01, 0.99),
    again=st.floats(0.01, 0.99),
    chunk=st.integers(1, 9),
)
def test_a_cut_equals_that_of_the_whole_text(
    folder: Path, separator: Separator, parts: list[list[str]], fraction: float, again: float, chunk: int
) -> None:
    whole = ["".join(["x", *part]) for part in parts]
    every = [text for part in whole for text in split_documents(part, separator)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_files, "_CHUNK", chunk)
        patch.setattr(documents, "PIECE", chunk)
        stretches, expected = [Documents(write(folder, *whole), separator)], [every]
        for share in (fraction, again):  # the parts are cut again
            if len("".join(expected[0])) < 2:
                break
            stretches[:1], expected[:1] = stretches[0].cut(share), cut_documents(expected[0], share)
            assert [texts(part) for part in stretches] == [tuple(part) for part in expected]
            sizes = [(len(part), len("".join(part))) for part in expected]
            assert [part.size for part in stretches] == sizes
            for part, size in zip(stretches, sizes, strict=True):
                part._size = None
                assert part.size == size


def test_documents_end_at_the_configured_separator(tmp_path: Path) -> None:
    text = "one\ntwo \n\n \t\nthree\r\n\r\nfour\n"
    files = write(tmp_path, text)
    assert texts(Documents(files, "file")) == (text,)
    assert texts(Documents(files, "blank line")) == ("one\ntwo ", "three", "four\n")
    assert texts(Documents(files, "line")) == ("one", "two ", "three", "four")
    for name in ("a.csv", "b.TSV", "c.csv.gz"):
        with refused(ValueError, f"{name}: is a table, whose commas", "give its texts as one of .txt"):
            Documents([tmp_path / name], "file")
    with refused(ValueError, "documents is 'page'; expected 'file', 'blank line' or 'line'"):
        Documents(files, "page")  # pyright: ignore[reportArgumentType]


def test_one_document_is_cut_at_a_line_and_several_are_cut_between_two(tmp_path: Path) -> None:
    files = write(tmp_path, "".join(f"line {i}\n" for i in range(10)))
    for fraction, lines in ((0.1, 1), (0.3, 3), (0.35, 3), (0.99, 9)):
        assert ["".join(part).count("\n") for part in Documents(files, "file").cut(fraction)] == [10 - lines, lines]
    for text, fraction, parts in (
        ("abcdefghij", 0.3, [("abcdefg",), ("hij",)]),
        ("ab\n", 0.9, [("a",), ("b\n",)]),
        ("abcdef\ng", 0.01, [("abcdef\n",), ("g",)]),
    ):
        assert [texts(part) for part in Documents(write(tmp_path, text), "file").cut(fraction)] == parts
    with refused(ValueError, "a text of one character cannot be split"):
        Documents(write(tmp_path, "a"), "file").cut(0.5)
    with refused(ValueError, "a share of 1.0 cannot be split off"):
        Documents(write(tmp_path, "ab"), "file").cut(1.0)
    files = write(tmp_path, "a" * 50, "b" * 30, "c" * 20)
    for fraction, count in ((0.25, 2), (0.45, 1), (0.999, 1), (0.001, 2)):
        assert [part.size.documents for part in Documents(files, "file").cut(fraction)] == [count, 3 - count]


def test_the_error_for_a_truncated_character_gives_its_offset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_bytes("zwölf\nBox".encode() + b"\xe4mpfer")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress("€\n\n€".encode()[:-1]))
    for chunk in (1, 2, 3, 5, 100):
        monkeypatch.setattr(data_files, "_CHUNK", chunk)
        with refused(ValueError, "a.txt: is no UTF-8 text: byte 0xe4 at offset 10, in line 2; convert"):
            texts(Documents([tmp_path / "a.txt"], "line"))
        with refused(ValueError, "byte 0xe2 at offset 5, unpacked, in line 3"):
            texts(Documents([tmp_path / "b.txt.gz"], "file"))


def test_a_file_that_changes_is_refused(tmp_path: Path) -> None:
    files = write(tmp_path, "one\ntwo\n")
    found = Documents(files, "line")
    assert found.size.documents == 2
    files[0].write_text("one\ntwo\nthree\n")
    with refused(ValueError, "0.txt: changed since it was opened"):
        texts(found)
    files[0].unlink()
    with refused(ValueError, "0.txt: cannot be read (No such file or directory)"):
        texts(found)


ROWS = ("a b", "", " \n", "é\n\nc", "x" * 30)


def save_rows(folder: Path, kind: str, **rows: Sequence[object]) -> Path:
    """Writes rows to a file of this kind, given by column."""
    path = folder / f"rows{kind}"
    lines = "".join(json.dumps(dict(zip(rows, row, strict=True))) + "\n" for row in zip(*rows.values(), strict=True))
    if kind.startswith(".jsonl"):
        path.write_bytes(gzip.compress(lines.encode()) if kind.endswith(".gz") else lines.encode())
    else:
        path.write_bytes(columns(kind, None, **rows))
    return path


@pytest.mark.parametrize("kind", ROW_SUFFIXES)
def test_rows_are_documents(tmp_path: Path, kind: str) -> None:
    path = save_rows(tmp_path, kind, id=range(5), text=ROWS, note=["n"] * 5)
    expected = tuple(text for text in ROWS if text.strip())
    rows = Documents([path], "file")
    assert texts(rows) == expected
    assert texts(Documents([path], "line")) == expected
    assert texts(Documents([path], "file", "note")) == ("n",) * 5
    assert Documents([path], "file", "note").key != rows.key
    first, second = rows.cut(0.9)
    assert (texts(first), texts(second)) == (expected[:1], expected[1:])
    assert [texts(part) for part in second.cut(0.5)] == [expected[1:2], expected[2:]]
    numbered = save_rows(tmp_path, kind, text=["t"] * 4, other=list("abcd"))
    parts = [part for half in Documents([numbered], "file", "other").cut(0.5) for part in half.cut(0.5)]
    assert [texts(part) for part in parts] == [("a",), ("b",), ("c",), ("d",)]
    for name, chosen in (("content", ("content", "other")), ("other", ("other",))):
        assert texts(Documents([save_rows(tmp_path, kind, **{each: ["d"] for each in chosen})], "file")) == ("d",), name
    text = write(tmp_path, "one\ntwo")
    assert texts(Documents([*text, path], "line")) == ("one", "two", "d")


@pytest.mark.parametrize("kind", ROW_SUFFIXES)
def test_rows_without_text_are_refused(tmp_path: Path, kind: str) -> None:
    where = "line" if kind.startswith(".jsonl") else "row"
    cases: list[tuple[dict[str, Sequence[object]], str | None, list[str]]] = [
        ({"text": ["a", None]}, None, [f"{where} 2: 'text' is missing; give each row a text"]),
        ({"text": [1, 2]}, None, [f"{where} 1: 'text' is of type int", "text_column="]),
        (
            {"a": ["x"], "b": ["y"]},
            None,
            ["no column with a usual name (text, content, document)", "are a, b"],
        ),
        ({"text": ["", " "]}, None, ["there is no document"]),
    ]
    for rows, column, message in cases:
        with refused(ValueError, f"rows{kind}", *message):
            texts(Documents([save_rows(tmp_path, kind, **rows)], "file", column))
    with refused(ValueError, "'c'"):
        texts(Documents([save_rows(tmp_path, kind, a=["x"])], "file", "c"))


def test_the_error_for_half_a_surrogate_pair_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n{"text": "b\\ud800"}\n')
    with refused(ValueError, "a.jsonl, line 2: 'text': the text is no UTF-8 at character 1"):
        texts(Documents([path], "file"))


def test_settings_for_other_kinds_of_text_are_refused(tmp_path: Path) -> None:
    rows = save_rows(tmp_path, ".jsonl", text=[f"line {i}" for i in range(20)])
    with refused(ValueError, "documents='line' has no effect", "each row of which is a document"):
        open_text(rows, documents="line")
    assert texts(open_text(rows, text_column="text").train)[0] == "line 0"
    (text,) = write(tmp_path, "one\ntwo\nthree\nfour")
    with refused(ValueError, "text_column='text' has no effect", "text without columns"):
        open_text(text, text_column="text")


def test_shards_with_a_single_split_are_cut(tmp_path: Path) -> None:
    for i in range(2):
        data = columns(".parquet", text=[f"{i} {j}" for j in range(10)])
        (tmp_path / f"train-{i:05}-of-00002.parquet").write_bytes(data)
    splits = open_text(tmp_path, test_fraction=0.2, valid_fraction=0.2)
    parts = [texts(part) for part in (splits.train, splits.valid, splits.test) if part is not None]
    assert [len(part) for part in parts] == [12, 4, 4]
    assert [text for part in parts for text in part] == [f"{i} {j}" for i in range(2) for j in range(10)]


def test_texts_saved_by_datasets_are_read() -> None:
    splits = open_text(SAVED / "splits")
    assert (texts(splits.train), splits.test) == (("g", "a b", "c", "d é"), None)
    assert splits.valid is not None
    assert texts(splits.valid) == ("e", "f")
