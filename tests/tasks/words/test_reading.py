import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from fredholm.tasks.words import LabelledWords, WordColumns, open_words, read_words
from fredholm.tasks.words.word_file import choose_columns
from tests.faults.samples import columns
from tests.refusals import refused


def read(path: Path, text: str, *, word: str | None = None, label: str | None = None) -> list[LabelledWords]:
    path.write_text(text)
    return read_words(path, choose_columns(path, word, label), is_labelled=True)


def pairs(sentences: Sequence[LabelledWords]) -> list[list[tuple[str, str | None]]]:
    return [list(zip(each.words, each.labels or (), strict=True)) for each in sentences]


CONLL = """-DOCSTART- -X- O O

EU NNP B-NP B-ORG
rejects VBZ B-VP O


# CD B-NP O
1 CD I-NP _
"""
UNIVERSAL = """# sent_id = 1
# text = Vámonos al mar
1-2\tVámonos\t_\t_\t_
1\tVamos\tir\tVERB\t_
2\tnos\tnosotros\tPRON\t_
2.1\tlo\tello\tPRON\t_
3\t#\t#\tSYM\t_

"""


def test_columns_are_separated_by_blanks_or_tabs(tmp_path: Path) -> None:
    found = read(tmp_path / "a.conll", CONLL)
    assert pairs(found) == [[("EU", "B-ORG"), ("rejects", "O")], [("#", "O"), ("1", None)]]
    assert [each.lines for each in found] == [(3, 4), (7, 8)]
    assert [each.line for each in found] == [3, 7]
    tabs = "New York\tB-x\nis\u00a0a\tO\n"
    assert pairs(read(tmp_path / "a.tsv", tabs)) == [[("New York", "B-x"), ("is\u00a0a", "O")]]
    assert pairs(read(tmp_path / "b.txt", "the  O\r\n\r\ncat   O")) == [[("the", "O")], [("cat", "O")]]


def test_a_setting_names_the_columns(tmp_path: Path) -> None:
    assert pairs(read(tmp_path / "a.conll", CONLL, label="-2"))[0] == [("EU", "B-NP"), ("rejects", "B-VP")]
    assert pairs(read(tmp_path / "a.conll", CONLL, word="2", label="1"))[0] == [("NNP", "EU"), ("VBZ", "rejects")]
    rows = '{"text": ["a"], "tokens": ["b"], "tags": [1], "kinds": [null]}\n'
    assert pairs(read(tmp_path / "a.jsonl", rows, word="text", label="kinds")) == [[("a", None)]]


def test_universal_columns_have_comments_ranges_and_empty_nodes(tmp_path: Path) -> None:
    expected = [[("Vamos", "VERB"), ("nos", "PRON"), ("#", "SYM")]]
    assert pairs(read(tmp_path / "a.conllu", UNIVERSAL)) == expected


def test_comments_elsewhere_stand_above_a_sentence(tmp_path: Path) -> None:
    text = "# id 1 of many\na O\n# O\n\n# another one\n\nb O\n"
    assert pairs(read(tmp_path / "a.conll", text)) == [[("a", "O"), ("#", "O")], [("b", "O")]]


def test_json_lines_have_lists(tmp_path: Path) -> None:
    rows = [
        {"id": 7, "tokens": ["the", "cat"], "ner_tags": [0, 3]},
        {"id": 8, "tokens": [], "ner_tags": []},
        {"id": 9, "tokens": ["a"], "ner_tags": [None], "split": "test", "group": 4},
    ]
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress("".join(f"{json.dumps(row)}\n" for row in rows).encode()))
    found = read_words(path, choose_columns(path, None, None), is_labelled=True)
    assert pairs(found) == [[("the", "0"), ("cat", "3")], [], [("a", None)]]
    assert found[2].marks == {"split": "test", "group": "4"}
    alone = read_words(path, WordColumns(word="tokens", label="none"), is_labelled=False)
    assert [each.labels for each in alone] == [None] * 3


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_rows_of_tables_have_lists(tmp_path: Path, kind: str) -> None:
    rows = {
        "id": [7, 8, 9],
        "tokens": [["the", "cat"], [], ["a"]],
        "ner_tags": [[0, 1], [], [-1]],
        "split": ["train", "train", "test"],
    }
    (tmp_path / f"a.{kind}").write_bytes(columns(f".{kind}", {"ner_tags": ["O", "B-pet"]}, **rows))
    splits, _ = open_words(tmp_path / f"a.{kind}")
    assert pairs(splits.train.sentences) == [[("the", "O"), ("cat", "B-pet")], []]
    assert splits.test is not None
    assert pairs(splits.test.sentences) == [[("a", None)]]
    assert splits.test.sentences[0].place == f"{tmp_path}/a.{kind}, line 3"
    (tmp_path / f"b.{kind}").write_bytes(columns(f".{kind}", words=["the cat"]))
    with refused(ValueError, f"b.{kind}, line 1: 'words' is 'the cat'; expected a list"):
        read_words(tmp_path / f"b.{kind}", WordColumns(word="words", label="tags"), is_labelled=False)
    with refused(ValueError, f"b.{kind}, line 1: has no list 'tokens'; the names are words (word_column)"):
        read_words(tmp_path / f"b.{kind}", WordColumns(word="tokens", label="tags"), is_labelled=True)


WRONG: dict[str, tuple[str, str, str]] = {
    "columns": ("a.conll", "a O\nb\n", "line 2: has 1 columns; the first word has 2"),
    "one column": ("a.conll", "a\nb\n", "line 1: words and labels are both in column 1 of 1"),
    "no label": ("a.tsv", "a\tO\nb\t\n", "line 2: has no label in column 2; write _"),
    "no word": ("a.tsv", "a\tO\n \tO\n", "line 2: has no word in column 1"),
    "nothing": ("a.conll", "\n\n", "has no sentences; expected a word with its label on each line"),
    "no list": ("a.jsonl", '{"tokens": "a b", "tags": ["O", "O"]}\n', "line 1: 'tokens' is 'a b'; expected a list"),
    "null": ("a.jsonl", '{"tokens": ["a"], "tags": null}\n', "line 1: 'tags' is null; expected a list"),
    "no lists": ("a.jsonl", "\n", "has no sentences; expected lines or rows such as {"),
    "lengths": ("a.jsonl", '{"tokens": ["a"], "tags": []}\n', "line 1: has 1 words and 0 labels"),
    "names": ("a.jsonl", '{"text": ["a"], "tags": ["O"]}\n', "no list has a usual name (tokens, words)"),
    "kinds": ("a.jsonl", '{"tokens": [1], "tags": ["O"]}\n', "'tokens' has 1; expected texts"),
    "labels": ("a.jsonl", '{"tokens": ["a"], "tags": [0.5]}\n', "'tags' has 0.5; expected texts or whole numbers"),
    "later": (
        "a.jsonl",
        '{"tokens": ["a"], "tags": ["O"]}\n{"tokens": ["a"]}\n',
        "line 2: has no list 'tags'; the names are tokens (label_column)",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_read_is_refused_with_its_line(case: str, tmp_path: Path) -> None:
    name, text, message = WRONG[case]
    with refused(ValueError, message):
        read(tmp_path / name, text)


def test_numbers_of_columns_are_checked(tmp_path: Path) -> None:
    with refused(ValueError, "line 1: has 2 columns, and no column 3 (label_column)"):
        read(tmp_path / "a.conll", "a O\n", label="3")
    with refused(ValueError, "word_column is 'tokens'; expected a number of a column"):
        read(tmp_path / "a.conll", "a O\n", word="tokens")


def test_splits_are_named_by_files_or_lines(tmp_path: Path) -> None:
    for name, text in (("train", "a O\nb B-x\n\nc O\n"), ("test", "c B-x\n"), ("dev", "b _\n")):
        (tmp_path / f"own.{name}.conll").write_text(text)
    splits, columns = open_words(tmp_path)
    assert [len(part) for part in (splits.train, splits.valid, splits.test) if part is not None] == [2, 1, 1]
    assert (splits.train.names, columns) == (("B-x", "O"), WordColumns(word="1", label="-1"))
    assert splits.train.counts.tolist() == [1, 2]
    (tmp_path / "own.test.conll").write_text("c O\nd B-y\n")
    with refused(ValueError, "own.test.conll, line 2: label 'B-y' is none of those in training, B-x, O; correct it"):
        open_words(tmp_path)
    rows = [{"tokens": [word], "tags": ["O"], "split": split} for word, split in (("a", "train"), ("b", "test"))]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    splits, _ = open_words(tmp_path / "rows.jsonl")
    assert splits.test is not None
    assert splits.test.sentences[0].words == ("b",)
    with refused(ValueError, "has lists and columns of words"):
        (tmp_path / "own.test.conll").rename(tmp_path / "own.testing.jsonl")
        open_words(tmp_path / "own")
