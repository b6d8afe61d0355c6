"""Reading of text files."""

import codecs
from collections.abc import Iterable, Iterator
from pathlib import Path

from fredholm.tasks.files.data_files import chunks_of
from fredholm.tasks.files.read_errors import reads_data

TEXT_SUFFIXES = (".txt", ".txt.gz")
_MARK = "\ufeff"


@reads_data
def read_text(path: Path) -> str:
    """Reads a UTF-8 file, gzipped if its name ends in .gz; a byte order mark at its start is dropped.

    Raises:
        ValueError: the file is missing, unreadable, empty, no gzip file or one that decompresses to too much, or no
            UTF-8 (the message gives byte and line).
    """
    return "".join(text_chunks(path))


def text_chunks(path: Path) -> Iterator[str]:
    """Yields the text of `read_text` in non-empty pieces; errors are raised when reading reaches them."""
    decoder, before, lines, is_empty = codecs.getincrementaldecoder("utf-8")(), 0, 1, True
    for data in _with_end(chunks_of(path)):
        waiting = len(decoder.getstate()[0])
        try:
            text = decoder.decode(data or b"", final=data is None)
        except UnicodeDecodeError as error:
            at, unpacked = before - waiting + error.start, ", unpacked" if path.suffix.lower() == ".gz" else ""
            line = lines + error.object.count(b"\n", 0, error.start)
            raise ValueError(
                f"{path}: is no UTF-8 text: byte 0x{error.object[error.start]:02x} at offset {at}{unpacked}, in line "
                f"{line}; convert the file"
            ) from error
        before, lines = before + len(data or b""), lines + text.count("\n")
        text = text.removeprefix(_MARK) if is_empty else text
        if text:
            is_empty = False
            yield text
    if is_empty:
        raise ValueError(f"{path}: is empty; pass a file with text")


def text_lines(path: Path) -> Iterator[str]:
    """Yields the lines of `read_text` with their ends; errors are raised when reading reaches them."""
    return lines_of(text_chunks(path))


def lines_of(chunks: Iterable[str]) -> Iterator[str]:
    """Yields the lines of a text with their ends, which are only \\n."""
    waiting: list[str] = []
    for chunk in chunks:
        first, *others = chunk.split("\n")
        waiting.append(first)
        for other in others:
            yield "".join(waiting) + "\n"
            waiting = [other]
    if any(waiting):
        yield "".join(waiting)


def _with_end(chunks: Iterator[bytes]) -> Iterator[bytes | None]:
    yield from chunks
    yield None
