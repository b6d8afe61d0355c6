"""From text files to strings."""

import codecs
from collections.abc import Iterable, Iterator
from pathlib import Path

from fredholm.tasks.files.data_files import chunks_of
from fredholm.tasks.files.read_errors import reads_data

TEXT_SUFFIXES = (".txt", ".txt.gz")
_MARK = "\ufeff"


@reads_data
def read_text(path: Path) -> str:
    """The text of a UTF-8 file, gzipped if its name ends in .gz; a byte order mark at its start is dropped.

    Raises:
        ValueError: the file is absent, may not be read, is empty, no gzip or one that unpacks to too much, or no UTF-8
            (the message says at which byte and line).
    """
    return "".join(text_chunks(path))


def text_chunks(path: Path) -> Iterator[str]:
    """The text of `read_text` piece by piece, none of them empty; errors come where reading meets them."""
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
    """The lines of `read_text` with their ends; errors come where reading meets them."""
    return lines_of(text_chunks(path))


def lines_of(chunks: Iterable[str]) -> Iterator[str]:
    """The lines of a text with their ends, which are \\n alone."""
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
