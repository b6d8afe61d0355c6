import gzip
from pathlib import Path
from typing import Any

import pytest

from fredholm.tasks.text import TextSplits, open_text, read_text
from tests.refusals import refused
from tests.tasks.text.literal import texts


def write(folder: Path, **files: str) -> Path:
    """Writes a file for each name, `__` standing for a dot; those that end in gz are compressed."""
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        data = text.encode()
        path = folder / name.replace("__", ".")
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return folder


def test_a_file_is_read_unchanged(tmp_path: Path) -> None:
    text = "Zwölf\r\n\n\t€ 𝄞\x00 \u2028end"
    write(tmp_path, a__txt=text, b__txt__gz=text, c__txt="\ufeff" + text)
    assert [read_text(tmp_path / name) for name in ("a.txt", "b.txt.gz", "c.txt")] == [text] * 3


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 au lait")
    (tmp_path / "latin.txt.gz").write_bytes(gzip.compress(b"na\xefve"))
    (tmp_path / "cut.txt").write_bytes(b"a\n" + "für".encode()[:2])
    (tmp_path / "empty.txt").touch()
    (tmp_path / "mark.txt").write_bytes(b"\xef\xbb\xbf")
    (tmp_path / "plain.txt.gz").write_bytes(b"not packed")
    (tmp_path / "half.txt.gz").write_bytes(gzip.compress(b"packed" * 100)[:20])
    for name, *message in (
        ("latin.txt", "is no UTF-8 text: byte 0xe9 at offset 3, in line 1;"),
        ("latin.txt.gz", "byte 0xef at offset 2, unpacked, in line 1"),
        ("cut.txt", "byte 0xc3 at offset 3, in line 2"),
        ("empty.txt", "is empty"),
        ("mark.txt", "is empty"),
        ("plain.txt.gz", "is no whole gzip file"),
        ("half.txt.gz", "is no whole gzip file"),
        ("absent.txt", "cannot be read (No such file or directory)"),
        (".", "cannot be read (Is a directory)"),
    ):
        with refused(ValueError, str(tmp_path / name), *message):
            read_text(tmp_path / name)


def found(splits: TextSplits) -> tuple[tuple[str, ...] | None, ...]:
    """The texts of the training, validation and test documents."""
    return tuple(None if part is None else texts(part) for part in (splits.train, splits.valid, splits.test))


def test_a_file_is_split_at_its_end(tmp_path: Path) -> None:
    text = "".join(f"line {i:02}\n" for i in range(100))
    path = write(tmp_path, book__txt__gz=text) / "book.txt.gz"
    train, valid, test = found(open_text(path, test_fraction=0.1, valid_fraction=0.0))
    assert valid is None
    assert train
    assert test
    assert train[0] + test[0] == text
    assert test[0].count("\n") == 10
    first, second, third = found(open_text(path, test_fraction=0.1, valid_fraction=0.2))
    assert first
    assert second
    assert third == test
    assert first[0] + second[0] == train[0]
    assert second[0].count("\n") == 20
    lines = open_text(path, documents="line", valid_fraction=0.0)
    assert texts(lines.train) == tuple(f"line {i:02}" for i in range(90))


def test_the_names_of_files_give_their_splits(tmp_path: Path) -> None:
    expected = (("a",), ("b",), ("c",))
    write(tmp_path / "plain", train__txt="a", validation__txt__gz="b", test__txt="c")
    assert found(open_text(tmp_path / "plain")) == expected
    write(tmp_path / "ptb", ptb__train__txt="a", ptb__valid__txt="b", ptb__test__txt__gz="c", training_notes__md="x")
    assert found(open_text(str(tmp_path / "ptb"))) == expected
    assert found(open_text(tmp_path / "ptb" / "ptb")) == expected
    write(tmp_path / "parts", **{"wiki-train-0__txt": "a", "wiki-train-1__txt": "A", "wiki-Dev__txt": "b"})
    assert found(open_text(tmp_path / "parts")) == (("a", "A"), ("b",), None)


def test_files_without_splits_are_joined_in_order_of_their_names(tmp_path: Path) -> None:
    write(tmp_path, b__txt="b" * 10, a__txt="a" * 10, c__txt__gz="c" * 10, notes__md="x")
    assert found(open_text(tmp_path, valid_fraction=0.0)) == (("a" * 10, "b" * 10), None, ("c" * 10,))


def test_a_training_and_a_test_file_leave_the_validation_split_to_be_cut_off(tmp_path: Path) -> None:
    write(tmp_path, train__txt="".join(f"line {i}\n" for i in range(10)), test__txt="c")
    assert found(open_text(tmp_path, valid_fraction=0.2))[1:] == (("line 8\nline 9\n",), ("c",))
    assert open_text(tmp_path, valid_fraction=0.0).valid is None
    with refused(ValueError, "valid_fraction is 1.0; pass a number from 0 to below 1"):
        open_text(tmp_path, valid_fraction=1.0)


def test_settings_without_effect_are_refused_and_ignored_files_reported(tmp_path: Path) -> None:
    write(tmp_path, train__txt="a", test__txt="c", readme__txt="x")
    with pytest.warns(UserWarning, match="left out, since the name has no split in it: readme.txt"):
        assert found(open_text(tmp_path, valid_fraction=0.0)) == (("a",), None, ("c",))
    (tmp_path / "readme.txt").unlink()
    write(tmp_path, valid__txt="b")
    changes: list[dict[str, Any]] = [{"test_fraction": 0.2}, {"valid_fraction": 0.2}]
    for settings in changes:
        with refused(ValueError, f"{next(iter(settings))}=0.2 has no effect", "which has splits; leave it at"):
            open_text(tmp_path, **settings)


def test_missing_and_empty_sources_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "two", a__train__txt="a", b__train__txt="b", b__test__txt="b")
    write(tmp_path / "untrained", test__txt="a", valid__txt="b")
    write(tmp_path / "images", a__png="a")
    write(tmp_path / "ptb", ptb__train__txt="a", ptb__test__txt="a")
    write(tmp_path / "book", book__txt="some text\n", blank__txt=" \n")
    cases: list[tuple[str, dict[str, Any], list[str]]] = [
        ("two", {}, ["splits of several texts, a, b", "pass", "two/b"]),
        ("untrained", {}, ["has no training text"]),
        ("images", {}, ["holds no .txt, .txt.gz, .jsonl, .jsonl.gz, .arrow or .parquet file"]),
        ("nowhere/at.txt", {}, ["no text at", "nowhere' is no folder"]),
        ("ptb/ptt", {}, ["no text at", "did you mean", "ptb/ptb'"]),
        ("book/bok.txt", {}, ["did you mean", "book/book.txt'"]),
        ("book/xyzzy", {}, ["xyzzy': pass a text file or a folder"]),
        ("book/blank.txt", {"documents": "line"}, ["blank.txt: there is no document"]),
        ("book/book.txt", {"test_fraction": 0.0}, ["test_fraction is 0.0"]),
        ("book/book.txt", {"test_fraction": 0.5, "valid_fraction": 0.5}, ["valid_fraction 0.5"]),
        ("book/book.txt", {"valid_fraction": -0.5}, ["valid_fraction -0.5"]),
    ]
    for path, settings, message in cases:
        with refused(ValueError, *message):
            open_text(tmp_path / path, **settings)


def test_the_shared_texts(shared_data: Path) -> None:
    splits = found(open_text(shared_data / "text_lm" / "ptb"))
    assert [part[0].count("\n") for part in splits if part] == [42068, 3370, 3761]
    plays = open_text(shared_data / "text_lm" / "tinyshakespeare.txt.gz", valid_fraction=0.0)
    assert plays.test is not None
    assert plays.train.size.characters + plays.test.size.characters == 1_115_394
    with pytest.warns(UserWarning, match="tinyshakespeare"):
        assert found(open_text(shared_data / "text_lm")) == splits
