"""Sentences of words with labels, in files of one word a line or of one sentence a line or row."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

from fredholm.tasks.files.arrow_table import COLUMN_SUFFIXES as ROW_SUFFIXES
from fredholm.tasks.files.arrow_table import ArrowTable
from fredholm.tasks.files.limits import COUNTED, check_counted
from fredholm.tasks.files.read_errors import reads_data
from fredholm.tasks.splits.split_marks import MARKS
from fredholm.tasks.text import JSONL_SUFFIXES, json_lines
from fredholm.tasks.text.read import text_lines

COLUMN_SUFFIXES = tuple(
    f"{kind}{end}" for kind in (".conll", ".conllu", ".iob", ".bio", ".tsv", ".txt") for end in ("", ".gz")
)
LIST_SUFFIXES = (*JSONL_SUFFIXES, *ROW_SUFFIXES)
WORD_SUFFIXES = (*COLUMN_SUFFIXES, *LIST_SUFFIXES)
NOT_KNOWN = "_"
"""Label of a word in columns whose label is not known; null in lists."""
WORDS = ("tokens", "words")
LABELS = ("tags", "labels", "ner_tags", "pos_tags", "chunk_tags", "upos", "ner", "pos")
_DOCUMENT = "-DOCSTART-"
_UNIVERSAL = (".conllu", ".conllu.gz")
_NUMBER = re.compile(r"-?[1-9]\d*")
_NO_WORD = re.compile(r"\d+[-.]\d+")
"""Number of a line of CoNLL-U that is no word: several words in one, or a word that is left out."""


@final
class LabelledWords(NamedTuple):
    """The words of a sentence, with their labels.

    Args:
        words: the words; there may be none.
        labels: one for each word, None where it is not known; None: they are not read.
        path: file.
        lines: line of each word; of lists, that of the sentence.
        line: line of the sentence; of .parquet and .arrow, the number of its row.
        marks: split, group and time of the sentence by their words in `MARKS`, where the file has them.
    """

    words: tuple[str, ...]
    labels: tuple[str | None, ...] | None
    path: Path
    lines: tuple[int, ...]
    line: int
    marks: dict[str, str]

    @property
    def place(self) -> str:
        """File and line, for messages."""
        return f"{self.path}, line {self.line}"


@final
@dataclass(frozen=True, kw_only=True)
class WordColumns:
    """The places of words and labels in files.

    Args:
        word, label: numbers of columns, from 1 or, below 0, from the end; for files of lists their names.
    """

    word: str
    label: str


def has_lists(path: Path) -> bool:
    """Whether a file has a list of words for each sentence, and no columns of words."""
    return path.name.lower().endswith(LIST_SUFFIXES)


def choose_columns(path: Path, word: str | None, label: str | None) -> WordColumns:
    """The columns as given, or the usual ones of the file.

    They are the first and the last column; of CoNLL-U the second and the fourth; of lists the first names of WORDS and
    of LABELS that the first sentence has.

    Raises:
        ValueError: lists have no usual name, or there are none.
    """
    if not has_lists(path):
        usual = ("2", "4") if path.name.lower().endswith(_UNIVERSAL) else ("1", "-1")
        return WordColumns(word=word or usual[0], label=label or usual[1])
    first = next(_found_lists(path), None)
    if first is None:
        raise _has_no_sentences(path)
    names = list(first[1])
    return WordColumns(
        word=word or _usual(path, names, WORDS, "word_column"),
        label=label or _usual(path, names, LABELS, "label_column"),
    )


def columns_to_predict(path: Path, columns: WordColumns) -> WordColumns:
    """The columns of a run for a file of its kind; for one of the other kind the usual ones."""
    if has_lists(path) != bool(_NUMBER.fullmatch(columns.word)):
        return columns
    return choose_columns(path, None, LABELS[0])  # labels are not read


def _usual(path: Path, names: list[str], usual: tuple[str, ...], setting: str) -> str:
    by_word = {name.lower(): name for name in reversed(names)}
    found = [by_word[word] for word in usual if word in by_word]
    if not found:
        raise ValueError(
            f"{path}: no list has a usual name ({', '.join(usual)}); the names are {', '.join(names)}: give one "
            f"({setting}=)"
        )
    return found[0]


@reads_data
def read_words(path: Path, columns: WordColumns, *, is_labelled: bool) -> list[LabelledWords]:
    """The sentences of a file; UTF-8, gzipped if its name ends in .gz.

    In .jsonl every line is an object with a list of words and a list of as many labels, texts or whole numbers; its
    `split`, `group` and `time` are marks. In .parquet and .arrow every row has these columns. In other files every line
    is a word: its columns are separated by tabs, or by blanks where the line has no tab. An empty line ends a sentence,
    as does a line of -DOCSTART-. Comments begin with #: all such lines in .conllu, and elsewhere those above a sentence
    that do not have the columns of words. In .conllu, lines of several words in one (1-2) and of words that are left
    out (8.1) are skipped.

    Args:
        path: the file.
        columns: places of words and labels.
        is_labelled: whether labels and marks are read; else the sentences have none.

    Raises:
        ValueError: the file cannot be read, has no sentences, a line has another number of columns than the first one
            or no such column, or the lists of a line are missing, of other values or of different lengths.
    """
    found = list(_listed_words(path, columns, is_labelled) if has_lists(path) else _rows(path, columns, is_labelled))
    if not found:
        raise _has_no_sentences(path)
    return found


_EXPECTED = {
    True: 'lines or rows such as {"tokens": ["the", "cat"], "tags": ["DET", "NOUN"]}',
    False: "a word with its label on each line, and an empty line after each sentence",
}


def _has_no_sentences(path: Path) -> ValueError:
    return ValueError(f"{path}: has no sentences; expected {_EXPECTED[has_lists(path)]}")


def _found_lists(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the number of each line or row, from 1, with its values by name."""
    if not path.name.lower().endswith(ROW_SUFFIXES):
        yield from json_lines(path)
        return
    table = ArrowTable(path)
    check_counted(f"{path}: its rows", table.num_rows, "save it as .jsonl", max(COUNTED, table.num_bytes))
    yield from enumerate(table.rows(), 1)


def _listed_words(path: Path, columns: WordColumns, is_labelled: bool) -> Iterator[LabelledWords]:
    for line, found in _found_lists(path):
        where = f"{path}, line {line}"
        words = _listed(found, columns.word, where)
        if words is None:
            raise ValueError(f"{where}: has no list {columns.word!r}; the names are {', '.join(found)} (word_column)")
        for word in words:
            if not isinstance(word, str):
                raise ValueError(f"{where}: {columns.word!r} has {word!r}; expected texts")
        if not is_labelled:
            yield LabelledWords(tuple(words), None, path, (line,) * len(words), line, {})
            continue
        labels = _listed(found, columns.label, where)
        if labels is None:
            raise ValueError(f"{where}: has no list {columns.label!r}; the names are {', '.join(found)} (label_column)")
        if len(labels) != len(words):
            raise ValueError(f"{where}: has {len(words)} words and {len(labels)} labels; expected one for each")
        named = tuple(_label(label, columns.label, where) for label in labels)
        marks = {name: str(found[name]) for name in MARKS if name in found}
        yield LabelledWords(tuple(words), named, path, (line,) * len(words), line, marks)


def _listed(found: dict[str, Any], name: str, where: str) -> list[Any] | None:
    if name not in found:
        return None
    if not isinstance(values := found[name], list):
        value = "null" if values is None else repr(str(values)[:40])
        raise ValueError(f"{where}: {name!r} is {value}; expected a list, with an entry for each word")
    return values


def _label(label: Any, name: str, where: str) -> str | None:
    if label is None:
        return None
    if isinstance(label, bool) or not isinstance(label, str | int) or label == "":
        raise ValueError(f"{where}: {name!r} has {label!r}; expected texts or whole numbers, or null if not known")
    return str(label)


class _Line(NamedTuple):
    number: int
    cells: list[str]
    is_comment: bool


def _rows(path: Path, columns: WordColumns, is_labelled: bool) -> Iterator[LabelledWords]:
    places, is_universal = _places(columns, is_labelled), path.name.lower().endswith(_UNIVERSAL)
    lines = [_Line(number, _cells(line), line.startswith("#")) for number, line in enumerate(text_lines(path), 1)]
    width = next((len(line.cells) for line in lines if _is_row(line) and not line.is_comment), None)
    if width is None:  # a file whose words all begin with # has no comments
        width = next((len(line.cells) for line in lines if _is_row(line)), 0)
    waiting = list[_Line]()
    for line in lines:
        if not _is_row(line):
            yield from _sentence(path, waiting, places, width)
            waiting = []
            continue
        is_comment = line.is_comment and (is_universal or (not waiting and len(line.cells) != width))
        if is_comment or (is_universal and _NO_WORD.fullmatch(line.cells[0])):
            continue
        if len(line.cells) != width:
            raise ValueError(
                f"{path}, line {line.number}: has {len(line.cells)} columns; the first word has {width}; separate "
                "columns by tabs, or by blanks in all lines"
            )
        waiting.append(line)
    yield from _sentence(path, waiting, places, width)


def _is_row(line: _Line) -> bool:
    return bool(line.cells) and line.cells[0] != _DOCUMENT


def _cells(line: str) -> list[str]:
    text = line.strip(" \r\n")
    if not text.strip():
        return []
    # words may have other kinds of blanks, such as those that do not break
    return line.rstrip("\r\n").split("\t") if "\t" in text else re.split(" +", text)


def _places(columns: WordColumns, is_labelled: bool) -> dict[str, int]:
    """The numbers of the columns to read, by the names of their settings."""
    found = dict[str, int]()
    for setting, cell in (("word_column", columns.word), ("label_column", columns.label))[: 1 + is_labelled]:
        if not _NUMBER.fullmatch(cell):
            raise ValueError(f"{setting} is {cell!r}; expected a number of a column, 1 for the first, -1 for the last")
        found[setting] = int(cell)
    return found


def _sentence(path: Path, lines: list[_Line], places: dict[str, int], width: int) -> Iterator[LabelledWords]:
    """Yields the sentence of some lines, unless there are none."""
    if not lines:
        return
    indices = {name: place - 1 if place > 0 else width + place for name, place in places.items()}
    where = f"{path}, line {lines[0].number}"
    for name, index in indices.items():
        if not 0 <= index < width:
            raise ValueError(f"{where}: has {width} columns, and no column {places[name]} ({name})")
    word, label = indices["word_column"], indices.get("label_column")
    if label == word:
        raise ValueError(
            f"{where}: words and labels are both in column {word + 1} of {width}; give each its column (word_column, "
            "label_column)"
        )
    words, labels = list[str](), list[str | None]()
    for line in lines:
        if not line.cells[word].strip():
            raise ValueError(f"{path}, line {line.number}: has no word in column {word + 1}; expected one")
        words.append(line.cells[word])
        if label is not None:
            cell = line.cells[label].strip()
            if not cell:
                raise ValueError(
                    f"{path}, line {line.number}: has no label in column {label + 1}; write {NOT_KNOWN} where it is "
                    "not known"
                )
            labels.append(None if cell == NOT_KNOWN else cell)
    numbers = tuple(line.number for line in lines)
    yield LabelledWords(tuple(words), tuple(labels) if label is not None else None, path, numbers, numbers[0], {})
