import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from fredholm.tasks.sentences import (
    Columns,
    Sentence,
    SentenceCells,
    Table,
    choose_columns,
    open_sentences,
    read_sentences,
    read_table,
    with_answers,
)
from tests.refusals import refused

COLUMNS = Columns(text="text", second=None, labels=("label",))


def write(path: Path, text: str) -> Path:
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def rows(table: Table) -> list[tuple[int, list[str]]]:
    return [(row.line, list(row.cells.values())) for row in table.rows]


def test_csv_has_quotes_and_rows_with_line_breaks(tmp_path: Path) -> None:
    text = '\ufeff text ,label\r\n"a, ""b""\r\nc",1\r\n\r\nd,0\r\n'
    for name in ("t.csv", "t.csv.gz"):
        table = read_table(write(tmp_path / name, text))
        assert table.names == ("text", "label")
        assert rows(table) == [(2, ['a, "b"\r\nc', "1"]), (5, ["d", "0"])]


def test_quotation_marks_are_plain_characters_in_tsv(tmp_path: Path) -> None:
    table = read_table(write(tmp_path / "a.csv.tsv.gz", '1\t"so he said\n0\tno, "never" \n'), ("label", "text"))
    assert table.names == ("label", "text")
    assert rows(table) == [(1, ["1", '"so he said']), (2, ["0", 'no, "never" '])]


def test_jsonl_has_texts_numbers_and_booleans(tmp_path: Path) -> None:
    objects = [
        {"text": "für\n\u2028 a", "label": 1, "tags": ["x", 2], "no": [["x"]], "bar": ["a|b"]},
        {"label": True, "text": "b", "more": None},
        {"label": 0.5, "text": "c"},
    ]
    table = read_table(write(tmp_path / "t.jsonl", "\n\n".join(map(json.dumps, objects)) + "\n"))
    assert table.names == ("text", "label", "tags")
    assert [(row.line, row.cells) for row in table.rows] == [
        (1, {"text": "für\n\u2028 a", "label": "1", "tags": "x|2"}),
        (3, {"label": "true", "text": "b"}),
        (5, {"label": "0.5", "text": "c"}),
    ]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.txt", "a", "t.txt: is of no known kind; expected .csv, .csv.gz, .tsv"),
        ("t.csv", "", "t.csv: is empty"),
        ("t.csv", "text,label\n\n", "t.csv: has no rows below its header"),
        ("t.csv", "text,label\na,1\nb,c,0\n", "t.csv, line 3: has 3 cells; expected 2: text, label (quote a cell"),
        ("t.tsv", "text\tlabel\na\n", "t.tsv, line 2: has 1 cells; expected 2: text, label"),
        ("t.csv", "text,label,text\na,b,c\n", "t.csv, line 1: column 'text' is there twice"),
        ("t.csv", 'text,label\nx,1\n"a,1\nb,2\n', "t.csv, line 3: a quotation mark opens a cell"),
        (
            "t.csv",
            f"text,label\nx,1\n{'y ' * 70_000},1\n",
            "t.csv, line 3: a cell is longer than 131,072 letters; cut it",
        ),
        ("t.jsonl", '{"text": "a"}\n{"text": "b", "text": "c"}\n', "t.jsonl, line 2: 'text' is there twice; keep one"),
        ("t.jsonl", '{"text": "a"}\n{"text": "b"\n', "t.jsonl, line 2: does not parse as JSON: Expecting"),
        ("t.jsonl", '{"text": "a"}\n["b"]\n', "t.jsonl, line 2: is a list; expected an object"),
        ("t.jsonl", 'null\n{"text": "a"}\n', "t.jsonl, line 1: is null; expected an object, {...}"),
        ("t.jsonl", '{"text": "a"}\n5\n', "t.jsonl, line 2: is a number; expected an object"),
        ("t.jsonl", "\n \n", "t.jsonl: has no rows"),
        ("t.csv", "\n\n", "t.csv: has no rows; expected a header"),
        ("absent.csv", None, "absent.csv: cannot be read"),
    ],
)
def test_files_that_are_no_tables_are_refused(tmp_path: Path, name: str, text: str | None, message: str) -> None:
    if text is not None:
        write(tmp_path / name, text)
    with refused(ValueError, f"{tmp_path}/{message}"):
        read_table(tmp_path / name)


@pytest.mark.parametrize("text", ["x\n1\n\n3\n\n", 'x\n1\n""\n3\n'])
def test_an_empty_line_between_rows_of_one_column_is_a_row(tmp_path: Path, text: str) -> None:
    write(tmp_path / "t.csv", text)
    rows = [(2, {"x": "1"}), (3, {"x": ""}), (4, {"x": "3"})]
    assert read_table(tmp_path / "t.csv").rows == rows
    assert read_table(tmp_path / "t.csv", ("y",)).rows[2] == (3, {"y": ""})
    write(tmp_path / "t.csv", 'x\n\n1\n2\n""\n')
    assert [tuple(row.cells.values()) for row in read_table(tmp_path / "t.csv").rows] == [("",), ("1",), ("2",), ("",)]
    write(tmp_path / "t.csv", '\n""\nx,y\n\n1,2\n""\n \n3,4\n')
    assert [row.line for row in read_table(tmp_path / "t.csv").rows] == [5, 8]


def test_the_error_for_invalid_bytes_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"text,label\ncaf\xe9,1\n")
    with refused(ValueError, "t.csv: is no UTF-8 text: byte 0xe9 at offset 14, in line 2; convert the file"):
        read_table(tmp_path / "t.csv")


def test_names_of_columns_have_no_effect_on_jsonl(tmp_path: Path) -> None:
    with refused(ValueError, "columns=('text',) has no effect here, where columns have names"):
        read_table(write(tmp_path / "t.jsonl", '{"text": "a"}'), ("text",))


@pytest.mark.parametrize(
    ("names", "text", "second", "label"),
    [
        (["id", "Text", "Label"], "Text", None, "Label"),
        (["label", "sentence1", "sentence2"], "sentence1", "sentence2", "label"),
        (["question", "sentence", "score"], "question", "sentence", "score"),
        (["rating", "class", "review"], "review", None, "class"),
        (["second", "text", "label"], "text", "second", "label"),
    ],
)
def test_usual_names_are_found(names: list[str], text: str, second: str | None, label: str) -> None:
    expected = Columns(text=text, second=second, labels=(label,))
    assert choose_columns(names, text=None, second=None) == expected


def test_columns_named_by_settings_take_precedence() -> None:
    names = ["text", "second", "label", "kind"]
    cases: list[tuple[dict[str, Any], Columns]] = [
        ({"text": "second"}, Columns(text="second", second=None, labels=("label",))),
        ({"second": "kind"}, Columns(text="text", second="kind", labels=("label",))),
        ({"labels": ("kind",)}, Columns(text="text", second="second", labels=("kind",))),
    ]
    for given, expected in cases:
        settings: dict[str, Any] = {"text": None, "second": None} | given
        assert choose_columns(names, **settings) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"text": "sentense"}, "no column 'sentense' for the text; did you mean 'sentence'?"),
        ({"second": "xyzzy"}, "no column 'xyzzy' for the second sentence; the columns are phrase, sentence, truth"),
        ({"text": "sentence"}, "no column has a usual name of the label (label, class"),
        ({"labels": ("truth",), "text": "truth"}, "column 'truth' would be read as two things"),
    ],
)
def test_missing_columns_are_refused(given: dict[str, Any], message: str) -> None:
    with refused(ValueError, message):
        settings: dict[str, Any] = {"text": None, "second": None} | given
        choose_columns(["phrase", "sentence", "truth"], **settings)


def test_the_error_proposes_the_only_remaining_column() -> None:
    with refused(ValueError, "usual name of the label", "name one (label_columns=mood)"):
        choose_columns(["review", "mood", "split"], text=None, second=None)
    with refused(ValueError, "usual name of the text", "name one (text_column=words)"):
        choose_columns(["words", "label"], text=None, second=None)


def test_the_error_for_a_missing_text_says_which_setting_names_it() -> None:
    with refused(ValueError, "the columns are 1, a fine film: name one (text_column=), or all", "(columns=)"):
        choose_columns(["1", "a fine film"], text=None, second=None)


def test_sentences_know_the_line_of_their_row(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "label,text\n 1 ,a b\n0,c\n")
    found = read_sentences(path, COLUMNS)
    assert list(found.sentences) == [Sentence("a b", None, path, 2), Sentence("c", None, path, 3)]
    assert (found.labels, found.marks) == ({"label": ["1", "0"]}, {})
    path = write(tmp_path / "u.csv", "other,text\nx,a\n")
    found = read_sentences(path, Columns(text="text", second="other", labels=("label",)))
    assert (list(found.sentences), found.labels) == ([Sentence("a", "x", path, 2)], {})


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.csv", "text,label\na,1\n ,0\n", "t.csv, line 3: column 'text': the text is empty; leave the row out"),
        ("t.csv", "phrase,label\na,1\n", "t.csv: has no column 'text'; the columns are phrase, label"),
        ("t.jsonl", '{"text": "a"}\n{"label": 1}', "t.jsonl, line 2: has no text or number 'text'"),
        ("t.jsonl", '{"text": "a"}\n{"text": NaN}', "t.jsonl, line 2: has no text or number 'text'"),
    ],
)
def test_files_without_valid_sentences_are_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    with refused(ValueError, f"{tmp_path}/{message}"):
        read_sentences(write(tmp_path / name, text), COLUMNS)


@pytest.fixture
def sentence_cells(tmp_path: Path) -> Callable[..., SentenceCells]:
    """A function that makes sentences with the given cells in columns of labels."""

    def made(**labels: Sequence[str]) -> SentenceCells:
        names, rows = tuple(labels), list(zip(*labels.values(), strict=True))
        lines = [",".join(("text", *names)), *(",".join((f"text {i}", *cells)) for i, cells in enumerate(rows))]
        path = write(tmp_path / "t.csv", "\n".join(lines))
        return read_sentences(path, Columns(text="text", second=None, labels=names))

    return made


def test_classes_are_numbered_in_order(sentence_cells: Callable[..., SentenceCells]) -> None:
    found = with_answers(sentence_cells(label=["10", "9", "a", "9"]), None)
    assert found.answer_names == ("9", "10", "a")
    assert torch.equal(found.answers.values, torch.tensor([1, 0, 2, 0]))
    known = with_answers(sentence_cells(label=["a"]), "class", found.answer_names)
    assert (known.answer_names, known.answers.values.tolist()) == (found.answer_names, [2])
    with refused(ValueError, "t.csv, line 3: column 'label': class 'b' is none of 9, 10, a, those of the training"):
        with_answers(sentence_cells(label=["a", "b"]), "class", found.answer_names)
    with refused(ValueError, "t.csv, line 2: column 'label': is empty; expected a class"):
        with_answers(sentence_cells(label=[""]), None)


def test_numbers_are_finite(sentence_cells: Callable[..., SentenceCells]) -> None:
    found = with_answers(sentence_cells(score=["1", "-2.5e1"]), "number")
    assert torch.equal(found.answers.values, torch.tensor([[1.0], [-25.0]], dtype=torch.float64))
    for word in ("abc", "nan", "inf", "", "1_0"):
        with refused(ValueError, "t.csv, line 3: column 'score': ", f"{word!r} is no finite number"):
            with_answers(sentence_cells(score=["1", word]), "number")


def test_the_kind_of_a_column_follows_from_its_cells(sentence_cells: Callable[..., SentenceCells]) -> None:
    for cells, kind in (
        (("1", "2"), "class"),
        (("1", "2.5"), "number"),
        (("1.0", "2"), "class"),
        (("1.5", "x"), "class"),
    ):
        assert with_answers(sentence_cells(label=cells), None).answers.kind == kind
    labels = with_answers(sentence_cells(label=["b|a", "", "c"]), "labels").answers
    assert (labels.names, labels.values.tolist()) == (
        ("a", "b", "c"),
        [[True, True, False], [False] * 3, [False, False, True]],
    )
    with refused(ValueError, "t.csv, line 2: column 'label': label 'a' is none of b, those of the training data"):
        with_answers(sentence_cells(label=["a"]), "labels", ("b",))
    with refused(ValueError, "the columns are wet, cold; the training data have cold, wet"):
        with_answers(sentence_cells(wet=["1", "1"], cold=["0", "0"]), None, ("cold", "wet"))


def test_groups_and_times_of_labelled_sentences_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "text,Group,label,time\na,p,1,3\nb,q,0,1\na,p,0,2\n")
    found = open_sentences(path).splits
    keys = found.train.keys
    assert (found.is_given, keys.groups) == (False, ("p", "q", "p"))
    assert len(set(keys.names)) == 3
    assert keys.times is not None
    assert keys.times.tolist() == [3, 1, 2]
    part = found.train.select(torch.tensor([2, 1]))
    assert (part.keys.groups, part.keys.strata) == (("p", "q"), [0, 0])
    path = write(tmp_path / "s.csv", "text,split,label\na,train,1\nb,test,0\nc,train,0\n")
    splits = open_sentences(path).splits
    assert [each.first for each in splits.train.sentences] == ["a", "c"]
    assert [each.first for each in splits.held_out("test").sentences] == ["b"]
    with refused(ValueError, "s.csv: the split has nothing to train on"):
        open_sentences(write(tmp_path / "s.csv", "text,split,label\na,,1\nb,test,0\n"))
    folder = tmp_path / "two"
    folder.mkdir()
    write(folder / "a.csv", "text,label,group\na,1,p\n")
    write(folder / "b.csv", "text,label\nb,0\n")
    with refused(ValueError, "some files have a column 'group', others none; give it to all"):
        open_sentences(folder)


def test_a_header_beside_names_of_columns_is_refused(tmp_path: Path) -> None:
    with refused(ValueError, "t.csv, line 1: has 'text' in the column 'text': a header; leave columns= out"):
        read_table(write(tmp_path / "t.csv", "text,kind\na,b\n"), ("text", "label"))
