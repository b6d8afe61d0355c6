"""Sentences stored as bytes, in memory or mapped, equal those of the rows."""

import csv
import io
import os
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fredholm.tasks.files import cache, data_files
from fredholm.tasks.sentences import Columns, Sentence, Sentences, TableFile, read_sentences, read_table
from fredholm.tasks.sentences.token_rows import TokenRows
from fredholm.tasks.text import MarkedTokenizer
from tests.refusals import refused

PAIRS = Columns(text="text", second="second", labels=("label",))
ROWS = [("a b", "ü €", "x"), ("a b", "ü €", "y"), ("a", "b ü €", "x"), ("𝄞", "z" * 90, "x"), ("a b", "ü €", "y")]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "cache"))
    return tmp_path


def write(path: Path, rows: list[tuple[str, str, str]] = ROWS) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("text", "second", "label"), *rows])
    return path


def opened(path: Path, *, is_large: bool) -> Sentences:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "LARGE", 10 if is_large else 1 << 20)
        cache._digest.cache_clear()
        found = read_sentences(path, PAIRS)
    assert found.labels == {"label": [label for *_, label in ROWS]}
    return found.sentences


@pytest.mark.parametrize("is_large", [False, True])
def test_sentences_equal_those_of_the_rows(folder: Path, is_large: bool) -> None:
    path = write(folder / "a.csv")
    for _ in range(2):  # created, then read from the cache
        found = opened(path, is_large=is_large)
        expected = [Sentence(first, second, path, i + 2) for i, (first, second, _) in enumerate(ROWS)]
        assert list(found) == expected
        assert list(found.texts) == [text for sentence in expected for text in sentence.texts] == list(found.texts)
        some = found.select(torch.tensor([3, 0, 0])).select(torch.tensor([2, 0]))
        assert list(some) == [expected[0], expected[3]]
        assert some.key != found.key
    assert (folder / "cache").exists() == is_large


def test_repeated_texts_have_numbered_names(folder: Path) -> None:
    found = opened(write(folder / "a.csv"), is_large=False)
    seen: Counter[tuple[str, str]] = Counter()
    expected = []
    for first, second, _ in ROWS:
        expected.append(f"{(first, second)}, {seen[first, second]}")
        seen[first, second] += 1
    assert list(found.distinct_names()) == expected
    assert len(set(expected)) == len(ROWS)
    none = found.select(torch.zeros(0, dtype=torch.int64))
    assert (list(none), list(none.distinct_names())) == ([], [])


def test_a_changed_text_is_read_anew(folder: Path) -> None:
    path = write(folder / "a.csv")
    first = opened(path, is_large=True)
    path.write_text(path.read_text().replace("z", "w"))
    assert opened(path, is_large=True)[3].second == "w" * 90
    assert first[3].second == "z" * 90


def test_a_file_that_changed_during_reading_is_refused(folder: Path) -> None:
    path = write(folder / "a.csv")
    before = path.stat()
    opened(path, is_large=True)
    path.write_bytes(path.read_bytes().replace(b"z" * 90, b"z" * 83 + b",x\r\nz,z"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    with refused(ValueError, "a.csv: changed while it was read"):
        opened(path, is_large=True)


def test_the_error_for_invalid_text_names_the_line(folder: Path) -> None:
    (folder / "a.jsonl").write_text('{"text": "a", "label": 1}\n{"text": "\\ud800", "label": 1}\n')
    with refused(ValueError, "a.jsonl, line 2: column 'text': the text is no UTF-8 at character 0"):
        read_sentences(folder / "a.jsonl", Columns(text="text", second=None, labels=("label",)))


@pytest.mark.parametrize("is_large", [False, True])
def test_tokens_equal_those_of_each_sentence(folder: Path, is_large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "LARGE", 10 if is_large else 1 << 20)
    sentences, tokenizer = opened(write(folder / "a.csv"), is_large=is_large), MarkedTokenizer.bytes()
    for context in (16, 200):
        expected = [tokenizer.lay_out(each.first, each.second, context) for each in sentences]
        for _ in range(2):
            rows = TokenRows(sentences, tokenizer, context)
            assert [row.tolist() for row in rows] == [each.tokens.tolist() for each in expected]
            assert {row.dtype for row in rows} == {torch.int32}
            assert rows.lengths.tolist() == [len(each.tokens) for each in expected]
            assert rows.num_cut == sum(each.is_cut for each in expected)
    few = TokenRows(sentences.select(torch.tensor([2])), tokenizer, 200)
    assert (len(few), few[0].tolist()) == (1, expected[2].tokens.tolist())


CELLS = st.text(st.sampled_from('ab ,"\r\n\u2028é'), max_size=6)


@given(
    rows=st.lists(st.tuples(CELLS, CELLS), max_size=4),
    ends=st.sampled_from(["\n", "\r\n", "\r"]),
    chunk=st.sampled_from([1, 2, 5, 1 << 20]),
)
def test_rows_read_in_chunks_equal_those_of_the_whole_text(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], ends: str, chunk: int
) -> None:
    written = io.StringIO(newline="")
    csv.writer(written, lineterminator=ends, quoting=csv.QUOTE_ALL).writerows([("one", "two"), *rows])
    path = tmp_path_factory.mktemp("rows") / "a.csv"
    path.write_bytes(written.getvalue().encode())
    reader = csv.reader(io.StringIO(written.getvalue(), newline=""), strict=True)
    _, *expected = [cells for cells in reader if len(cells) > 1 or "".join(cells).strip()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_files, "_CHUNK", chunk)
        if not expected:
            with refused(ValueError, "has no rows below its header"):
                read_table(path)
            return
        assert [list(row.cells.values()) for row in TableFile(path).rows()] == expected
