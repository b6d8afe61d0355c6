"""Documents, the texts between end-of-text tokens, read from their files piece by piece.

They are stretches of text files, or rows in a column of files with rows.

Texts are not kept in memory: a document is a position in files, and every pass reads them again.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, final, get_args

from fredholm.tasks.files.arrow_table import COLUMN_SUFFIXES, ArrowTable
from fredholm.tasks.files.cache import CacheEntry
from fredholm.tasks.files.read_record import FileState, recorded

from .json_lines import JSONL_SUFFIXES, json_lines
from .read import TEXT_SUFFIXES, lines_of, text_chunks
from .tokenizer import utf8

ROW_SUFFIXES = (*JSONL_SUFFIXES, *COLUMN_SUFFIXES)
"""Suffixes of files with rows, each of which is a document."""
DOCUMENT_SUFFIXES = (*TEXT_SUFFIXES, *ROW_SUFFIXES)
TABLES = (".csv", ".tsv")
"""Suffixes of tables, whose texts are among other cells."""
TEXT_COLUMNS = ("text", "content", "document")
"""Usual names of a column of documents."""

Separator = Literal["file", "blank line", "line"]
"""End of a document: the end of its file, one or more blank lines, or the end of a line."""

PIECE = 1 << 16
"""Approximate number of characters per call of a tokenizer; libraries use some hundred bytes per token."""
_BLANK = re.compile(r"[ \t]*\r?\n")


class DocumentPart(NamedTuple):
    """A part of a document's text, and whether it is the first one."""

    text: str
    is_first: bool


class Place(NamedTuple):
    """A position between two characters: the index of a document, and the number of its characters before."""

    document: int
    character: int


BEGINNING = Place(0, 0)


class Size(NamedTuple):
    """Amount of text."""

    documents: int
    characters: int


@final
class Documents(Iterable[str]):
    """The documents of some files in order, or a range of them; those without text are left out.

    Iteration yields the texts of `parts`.

    Args:
        files: UTF-8 text, gzipped where a name ends in .gz; or files with rows (`ROW_SUFFIXES`), each a document.
        separator: end of a document in text files.
        column: column of rows with the document; None: one with a usual name.
        start: beginning of the range.
        stop: end of the range; None: the end of the last file.

    Raises:
        ValueError: the separator is unknown.
    """

    def __init__(
        self,
        files: Sequence[Path],
        separator: Separator,
        column: str | None = None,
        start: Place = BEGINNING,
        stop: Place | None = None,
    ) -> None:
        if separator not in get_args(Separator):
            raise ValueError(f"documents is {separator!r}; expected 'file', 'blank line' or 'line'")
        for file in files:
            if file.name.lower().removesuffix(".gz").endswith(TABLES):
                raise ValueError(
                    f"{file}: is a table, whose commas and quotation marks would be learnt as text; give its texts as "
                    f"one of {', '.join(DOCUMENT_SUFFIXES)}"
                )
        self._separator: Separator = separator
        self._column = column
        self._files, self._start, self._stop = tuple(files), start, stop
        self._states = [_state_of(file) for file in self._files]
        self._size: Size | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """Identifier of the text while no file changes; equal for equal texts."""
        files = [(str(file.resolve()), *state) for file, state in zip(self._files, self._states, strict=True)]
        return (files, self._separator, self._column, self._start, self._stop)

    @property
    def file_bytes(self) -> int:
        """Size of all files in bytes."""
        return sum(state.size for state in self._states)

    @property
    def size(self) -> Size:
        """Number of documents and characters, counted once."""
        if self._size is None:
            documents = characters = 0
            for part in self._stretch():
                documents, characters = documents + part.is_first, characters + len(part.text)
            self._size = Size(documents, characters)
        return self._size

    def parts(self) -> Iterator[DocumentPart]:
        """Yields all text in parts of about `PIECE` characters, which end where documents end, or as `pieces` cuts.

        Raises:
            ValueError: as of `read_text`, a file has no document, or it changed meanwhile.
        """
        waiting, length, enough, is_first = list[str](), 0, PIECE, True
        for part in self._stretch():
            if part.is_first and waiting:
                yield DocumentPart("".join(waiting), is_first)
                waiting, length, enough, is_first = [], 0, PIECE, True
            waiting.append(part.text)
            length += len(part.text)
            if length > enough:
                *whole, rest = pieces("".join(waiting))
                for text in whole:
                    yield DocumentPart(text, is_first)
                    is_first = False
                waiting, length = [rest], len(rest)
                enough = max(PIECE, 2 * length)  # text without a cut is not searched again for each part that is added
        if waiting:
            yield DocumentPart("".join(waiting), is_first)

    def __iter__(self) -> Iterator[str]:
        """Yields the texts of `parts`."""
        return (part.text for part in self.parts())

    def cut(self, fraction: float) -> tuple[Self, Self]:
        """Splits off the end, about a share of all characters.

        Several documents are cut between two of them, at the nearest place; a single one at the start of the next line,
        or where nothing would be left then, within the line.

        Args:
            fraction: share of the characters of the second part, above 0 and below 1.

        Returns:
            The parts before and after the cut, with at least one document each.

        Raises:
            ValueError: the fraction is out of range, or a single document has fewer than two characters.
        """
        if not 0 < fraction < 1:
            raise ValueError(f"a share of {fraction} cannot be split off; pass a number above 0 and below 1")
        kept = CacheEntry("cut", self.key, fraction).value(lambda: self._cut(fraction), size=self.file_bytes)
        place = Place(*kept["place"])
        first = type(self)(self._files, self._separator, self._column, self._start, place)
        second = type(self)(self._files, self._separator, self._column, place, self._stop)
        first._size, second._size = (Size(*size) for size in kept["sizes"])
        return first, second

    def _cut(self, fraction: float) -> dict[str, tuple[int, ...] | list[Size]]:
        """Returns the place of the cut, and the amounts of text before and after it."""
        count, characters = self.size
        if count > 1:
            document, passed = self._nearest_end(characters * (1 - fraction))
            place = Place(self._start.document + document, 0)
            return {"place": place, "sizes": [Size(document, passed), Size(count - document, characters - passed)]}
        if characters < 2:
            raise ValueError("a text of one character cannot be split; pass more text")
        at = self._line_from(min(max(round(characters * (1 - fraction)), 1), characters - 1))
        place = Place(self._start.document, self._start.character + at)
        return {"place": place, "sizes": [Size(1, at), Size(1, characters - at)]}

    def _nearest_end(self, wanted: float) -> tuple[int, int]:
        """Returns the number of documents (not all) that end nearest to `wanted` characters, and their characters."""
        best, passed, documents = (0, 0), 0, 0
        for part in self._stretch():
            if part.is_first and documents:
                if best == (0, 0) or abs(passed - wanted) < abs(best[1] - wanted):
                    best = documents, passed
                elif passed > wanted:
                    break
            documents, passed = documents + part.is_first, passed + len(part.text)
        return best

    def _line_from(self, at: int) -> int:
        """Returns the start of the line after character `at - 1`, or `at` where nothing would be left."""
        passed = 0
        for part in self._stretch():
            if line := part.text.find("\n", max(0, at - 1 - passed)) + 1:
                return passed + line if passed + line < self.size.characters else at
            passed += len(part.text)
        return at

    def _stretch(self) -> Iterator[DocumentPart]:
        """Yields the text from start to stop, cut anywhere."""
        number, within = -1, 0
        for part in self._whole():
            if part.is_first:
                number, within = number + 1, 0
            begin, within = within, within + len(part.text)
            first, last, is_first = 0, len(part.text), part.is_first
            if number == self._start.document:
                first, is_first = max(0, self._start.character - begin), begin <= self._start.character
            if self._stop is not None:
                if (number, begin) >= self._stop:
                    return
                if number == self._stop.document:
                    last = min(last, self._stop.character - begin)
            if number >= self._start.document and first < last:
                yield DocumentPart(part.text[first:last], is_first)

    def _whole(self) -> Iterator[DocumentPart]:
        """Yields the text of all documents of all files, cut anywhere."""
        for file, state in zip(self._files, self._states, strict=True):
            _check_unchanged(file, state)
            is_blank = True
            has_rows = file.name.lower().endswith(ROW_SUFFIXES)
            for part in _of_rows(file, self._column) if has_rows else _OF[self._separator](text_chunks(file)):
                is_blank = False
                yield part
            if is_blank:
                raise ValueError(f"{file}: there is no document: the text is blank")
            _check_unchanged(file, state)


def _state_of(file: Path) -> FileState:
    try:
        return FileState.of(recorded(file))
    except OSError as error:
        raise ValueError(f"{file}: cannot be read ({error.strerror}); pass a text file") from error


def _check_unchanged(file: Path, state: FileState) -> None:
    if _state_of(file) != state:
        raise ValueError(f"{file}: changed since it was opened; leave the data as they are and begin again")


def pieces(text: str) -> Iterator[str]:
    """Cuts text before line ends that no blank follows, where word patterns cut it too.

    GPT-2's pattern makes blanks before such an end a word and the end another; BERT's drops both.
    """
    start = 0
    while start < len(text):
        end = text.find("\n", start + PIECE)
        while 0 < end + 1 < len(text) and text[end + 1].isspace():
            end = text.find("\n", end + 1)
        end = len(text) if end + 1 in (0, len(text)) else end
        yield text[start:end]
        start = end


def _of_rows(file: Path, requested: str | None) -> Iterator[DocumentPart]:
    """Yields the documents in a column of a file with rows."""
    if file.name.lower().endswith(JSONL_SUFFIXES):
        column = requested
        for line, found in json_lines(file):
            column = column or _text_column(file, tuple(found), None)
            yield from _of_row(found, column, f"{file}, line {line}")
        return
    table = ArrowTable(file)
    column = _text_column(file, table.names, requested)
    for number, found in enumerate(table.rows([column]), 1):
        yield from _of_row(found, column, f"{file}, row {number}")


def _of_row(found: dict[str, Any], column: str, place: str) -> Iterator[DocumentPart]:
    text = found.get(column)
    if not isinstance(text, str):
        fault = "is missing" if text is None else f"is of type {type(text).__name__}"
        raise ValueError(f"{place}: {column!r} {fault}; give each row a text, or name another column (text_column=)")
    try:
        utf8(text)
    except ValueError as error:
        raise ValueError(f"{place}: {column!r}: {error}") from error
    if text.strip():
        yield DocumentPart(text, True)


def _text_column(file: Path, names: Sequence[str], requested: str | None) -> str:
    usual = [name for name in TEXT_COLUMNS if name in names]
    chosen = requested or (usual[0] if usual else names[0] if len(names) == 1 else "")
    if chosen not in names:
        what = f"no column {requested!r}" if requested else f"no column with a usual name ({', '.join(TEXT_COLUMNS)})"
        raise ValueError(f"{file}: {what}; the columns are {', '.join(names) or 'none'}: name one (text_column=)")
    return chosen


def _of_files(chunks: Iterator[str]) -> Iterator[DocumentPart]:
    for number, chunk in enumerate(chunks):
        yield DocumentPart(chunk, number == 0)


def _of_lines(chunks: Iterator[str]) -> Iterator[DocumentPart]:
    for line in lines_of(chunks):
        text = _without_end(line)
        if text.strip():
            yield DocumentPart(text, True)


def _of_paragraphs(chunks: Iterator[str]) -> Iterator[DocumentPart]:
    """Yields documents separated by blank lines, which end before the line end above the first blank one."""
    document: list[str] = []  # pending lines: all of them while the document has no text, then the last
    has_text = has_begun = False
    is_between = False
    for line in lines_of(chunks):
        is_blank = _BLANK.fullmatch(line) is not None
        if is_blank and is_between:
            continue
        if is_blank and document:
            document[-1] = _without_end(document[-1])
            if has_text:
                yield DocumentPart("".join(document), not has_begun)
            document, has_text, has_begun, is_between = [], False, False, True
            continue
        if has_text:
            yield DocumentPart("".join(document), not has_begun)
            document, has_begun = [], True
        document.append(line)
        has_text, is_between = has_text or bool(line.strip()), False
    if has_text:
        yield DocumentPart("".join(document), not has_begun)


_OF: dict[Separator, Callable[[Iterator[str]], Iterator[DocumentPart]]] = {
    "file": _of_files,
    "line": _of_lines,
    "blank line": _of_paragraphs,
}


def _without_end(line: str) -> str:
    return line.removesuffix("\n").removesuffix("\r") if line.endswith("\n") else line
