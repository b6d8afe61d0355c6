"""Sentences and pairs of sentences from the rows of tables; large texts stay on disk."""

import hashlib
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Self, final

import numpy as np
from torch import Tensor

from fredholm.tasks.files.cache import CacheEntry
from fredholm.tasks.files.read_errors import reads_data
from fredholm.tasks.files.read_record import FileState, recorded
from fredholm.tasks.splits.split_marks import MARKS
from fredholm.tasks.text.tokenizer import utf8

from .columns import Columns
from .table import Row, TableFile

_END = 0xFF
"""The byte after each text; UTF-8 has no such byte."""
_CHUNK = 1 << 20


@final
class Sentence(NamedTuple):
    """A sentence or pair, with its file and line."""

    first: str
    second: str | None
    path: Path
    line: int

    @property
    def texts(self) -> tuple[str, ...]:
        """The sentence, or both."""
        return (self.first,) if self.second is None else (self.first, self.second)

    @property
    def place(self) -> str:
        """File and line, for messages."""
        return f"{self.path}, line {self.line}"


class _Whole(NamedTuple):
    """All sentences of some files."""

    content: np.ndarray
    """The texts in UTF-8, uint8, with `_END` after each."""
    ends: np.ndarray
    """Positions of `_END`, int64 `(n,)`, or `(2 n,)` for pairs."""
    files: tuple[Path, ...]
    file_of: np.ndarray
    lines: np.ndarray
    key: tuple[object, ...]
    """Cache key of the sentences, valid while no file changes."""


@final
class Sentences(Sequence[Sentence]):
    """The sentences or pairs of some files, or a selection; texts are decoded on demand.

    Args:
        whole: all sentences of the files.
        numbers: indices of the selection, int64 `(n,)`; None: all.
    """

    def __init__(self, whole: _Whole, numbers: np.ndarray | None = None) -> None:
        self._whole = whole
        self._numbers = np.arange(len(whole.lines)) if numbers is None else numbers
        self._texts_each = len(whole.ends) // max(1, len(whole.lines))

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> Sentence:  # type: ignore[override]
        number, whole = int(self._numbers[index]), self._whole
        path, line = whole.files[whole.file_of[number]], int(whole.lines[number])
        texts = [part.decode() for part in self._encoded(number)]
        return Sentence(texts[0], texts[1] if len(texts) > 1 else None, path, line)

    def select(self, indices: Tensor) -> Self:
        """The sentences at `indices`, int64 `(m,)`."""
        return type(self)(self._whole, self._numbers[indices.numpy()])

    @property
    def key(self) -> tuple[object, ...]:
        """Cache key of the selection, valid while no file changes."""
        return (*self._whole.key, hashlib.blake2b(self._numbers.tobytes(), digest_size=16).hexdigest())

    @property
    def texts(self) -> Iterable[str]:
        """All texts, both of a pair; they can be iterated over repeatedly."""
        return _Texts(self)

    def distinct_names(self) -> Sequence[str]:
        """A distinct name for each sentence, made on demand: its texts, and how often these occurred before."""
        return _Names(self)

    def digests(self) -> np.ndarray:
        """A digest of the texts of each sentence or pair, uint64 `(n,)`."""
        found = np.empty(len(self), np.uint64)
        for i, number in enumerate(self._numbers.tolist()):
            digest = hashlib.blake2b(digest_size=8)
            for part in self._encoded(number):
                digest.update(part + b"\xff")
            found[i] = int.from_bytes(digest.digest(), "little")
        return found

    def _encoded(self, number: int) -> list[bytes]:
        ends, first = self._whole.ends, number * self._texts_each
        starts = [0 if i == 0 else int(ends[i - 1]) + 1 for i in range(first, first + self._texts_each)]
        return [self._whole.content[start : ends[first + i]].tobytes() for i, start in enumerate(starts)]


@final
class _Texts(Iterable[str]):
    def __init__(self, sentences: Sentences) -> None:
        self._sentences = sentences

    def __iter__(self) -> Iterator[str]:
        for sentence in self._sentences:
            yield from sentence.texts


@final
class _Names(Sequence[str]):
    def __init__(self, sentences: Sentences) -> None:
        self._sentences = sentences

    def __len__(self) -> int:
        return len(self._sentences)

    def __getitem__(self, index: int) -> str:  # type: ignore[override]
        sentence = self._sentences[index]
        return f"{(sentence.first, sentence.second)}, {self._before[index]}"

    @cached_property
    def _before(self) -> np.ndarray:
        """The number of earlier sentences with the same texts, int64 `(n,)`."""
        digests = self._sentences.digests()
        order, places = np.argsort(digests, kind="stable"), np.arange(len(digests))
        is_new = np.append(True, np.diff(digests[order]) != 0)[: len(order)]
        found = np.empty(len(order), np.int64)
        found[order] = places - np.maximum.accumulate(np.where(is_new, places, 0))
        return found


@final
@dataclass(frozen=True)
class SentenceCells:
    """Sentences, with the cells of their labels and marks."""

    sentences: Sentences
    labels: dict[str, list[str]]
    """Cells of each column of labels; empty where there are no such columns."""
    marks: dict[str, list[str]]
    """Cells of the columns of `MARKS` that the tables have, by their words."""
    weights: dict[str, list[str]]
    """Cells of the column of weights; empty where the tables have none."""

    def select(self, indices: Tensor) -> Self:
        """The cells of the sentences at `indices`, int64 `(m,)`."""
        labels, marks, weights = (
            {name: [column[i] for i in indices.tolist()] for name, column in part.items()}
            for part in (self.labels, self.marks, self.weights)
        )
        return replace(self, sentences=self.sentences.select(indices), labels=labels, marks=marks, weights=weights)

    def place(self, i: int, name: str) -> str:
        """File, line and column of a cell of sentence i, for messages."""
        return f"{self.sentences[i].place}: column {name!r}"


@reads_data
def read_sentences(path: Path, columns: Columns, names: tuple[str, ...] = ()) -> SentenceCells:
    """The sentences of one file, whose labels may be absent; see `TableFile` for `names`.

    Raises:
        ValueError: `TableFile` refuses the file; a column of sentences is missing, or a text is empty.
    """
    return read_tables([TableFile(path, names)], columns)


def read_tables(
    files: Sequence[TableFile], columns: Columns, *, is_labelled: bool = False, weights: str | None = None
) -> SentenceCells:
    """The sentences of some tables, which are read once, or twice where another run has cached large texts.

    Args:
        files: the tables.
        columns: the columns to read.
        is_labelled: whether labels are required, and columns of splits are read; else labels may be absent, and
            columns of splits are ignored.
        weights: column of weights, which the files may lack; None: there is none.

    Raises:
        ValueError: as `read_sentences`; or a required label is missing, or only some files have a column of splits.
    """
    for file in files:
        needed = [columns.text] + ([] if columns.second is None else [columns.second])
        for name in needed + (list(columns.labels) if is_labelled else []):
            if name not in file.names:
                raise ValueError(f"{file.path}: has no column {name!r}; the columns are {', '.join(file.names)}")
    reading = _Reading(files, columns, is_labelled=is_labelled, weights=weights)
    states = [(str(file.path.resolve()), *FileState.of(recorded(file.path))) for file in files]
    key = (
        "sentences",
        states,
        columns.text,
        columns.second,
        [file.names for file in files],
        [file.form for file in files],
    )
    content = CacheEntry(*key).array(reading.encoded, np.uint8)
    if not reading.is_done:
        for _ in reading.encoded():
            pass
    ends = _ends_in(content)
    if len(ends) != len(reading.lines) * (1 if columns.second is None else 2):
        raise ValueError(f"{files[0].path}: changed while it was read; leave the data as they are and begin again")
    whole = _Whole(
        content,
        ends,
        tuple(file.path for file in files),
        np.array(reading.file_of, np.int32),
        np.array(reading.lines, np.int64),
        key,
    )
    for word, column in [*reading.marks.items(), *reading.weights.items()]:
        if len(column) != len(whole.lines):
            raise ValueError(f"some files have a column {word!r}, others none; give it to all")
    return SentenceCells(Sentences(whole), reading.labels, reading.marks, reading.weights)


@final
class _Reading:
    """A reader of some tables, which collects their lines, labels, marks and weights while it yields their texts."""

    def __init__(self, files: Sequence[TableFile], columns: Columns, *, is_labelled: bool, weights: str | None) -> None:
        self._files, self._is_labelled, self._weights = tuple(files), is_labelled, weights
        self._texts = [columns.text] + ([] if columns.second is None else [columns.second])
        has_labels = all(name in file.names for file in files for name in columns.labels)
        self._labels = columns.labels if has_labels else ()
        self._begin()

    def _begin(self) -> None:
        self.is_done = False
        self.file_of, self.lines = array("i"), array("q")
        self.labels: dict[str, list[str]] = {name: [] for name in self._labels}
        self.marks: dict[str, list[str]] = {}
        self.weights: dict[str, list[str]] = {}

    def encoded(self) -> Iterator[np.ndarray]:
        """The texts of all files, in UTF-8 with `_END` after each, part by part."""
        self._begin()
        waiting = bytearray()
        for number, file in enumerate(self._files):
            file.check_cells()
            marks = {name.lower(): name for name in reversed(file.names) if name.lower() in MARKS}
            marks = marks if self._is_labelled else {}
            weights = [self._weights] if self._weights is not None and self._weights in file.names else []
            for row in file.rows([*self._texts, *self._labels, *marks.values(), *weights]):
                for name in self._texts:
                    waiting += _text(file.path, row, name)
                    waiting.append(_END)
                self.file_of.append(number)
                self.lines.append(row.line)
                for name, cells in self.labels.items():
                    cells.append(sys.intern(_cell(file.path, row, name).strip()))
                for word, name in marks.items():
                    self.marks.setdefault(word, []).append(sys.intern(_cell(file.path, row, name)))
                for name in weights:
                    self.weights.setdefault(name, []).append(sys.intern(_cell(file.path, row, name).strip()))
                if len(waiting) >= _CHUNK:
                    yield np.frombuffer(bytes(waiting), np.uint8)
                    waiting.clear()
        yield np.frombuffer(bytes(waiting), np.uint8)
        self.is_done = True


def _ends_in(content: np.ndarray) -> np.ndarray:
    """Positions of `_END`, int64."""
    found = [np.empty(0, np.int64)]
    for start in range(0, len(content), _CHUNK):
        found.append(np.flatnonzero(content[start : start + _CHUNK] == _END) + start)
    return np.concatenate(found)


def _text(path: Path, row: Row, column: str) -> bytes:
    text = _cell(path, row, column)
    if not text.strip():
        raise ValueError(f"{path}, line {row.line}: column {column!r}: the text is empty; leave the row out")
    try:
        return utf8(text)
    except ValueError as error:
        raise ValueError(f"{path}, line {row.line}: column {column!r}: {error}") from error


def _cell(path: Path, row: Row, column: str) -> str:
    if column not in row.cells:
        raise ValueError(f"{path}, line {row.line}: has no text or number {column!r}; give each row one")
    return row.cells[column]
