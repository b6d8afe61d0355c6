"""Reading of text files."""

import codecs
from collections.abc import Iterable, Iterator
from pathlib import Path

from fredholm.tasks.files.data_files import chunks_of
from fredholm.tasks.files.read_errors import reads_data

TEXT_SUFFIXES = (".txt", ".txt.gz")
_MARK = "\ufeff"
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


@reads_data
def read_text(path: Path) -> str:
    """Reads a text file, gzipped if its name ends in .gz; a byte order mark at its start is dropped.

    Raises:
        ValueError: the file is missing, unreadable, empty, no gzip file or one that decompresses to too much, or
            neither UTF-8 nor what its byte order mark says (the message gives byte and line).
    """
    return "".join(text_chunks(path))


def text_chunks(path: Path, encoding: str | None = None, advice: str = "convert the file") -> Iterator[str]:
    """Yields the text of `read_text` in non-empty pieces; errors are raised when reading reaches them.

    Args:
        path: the file.
        encoding: name of its encoding; None: the one of its byte order mark, or UTF-8.
        advice: what to do about text in another encoding, for messages.
    """
    decoder, name, before, lines, is_empty = None, "", 0, 1, True
    chunks = chunks_of(path) if encoding is None else _checked(path, encoding)
    for data in _with_end(chunks):
        if decoder is None:
            name = _encoding_of(path, data or b"", encoding)
            decoder = codecs.getincrementaldecoder(name)()
        waiting = len(decoder.getstate()[0])
        try:
            text = decoder.decode(data or b"", final=data is None)
        except UnicodeDecodeError as error:
            byte, at = error.object[error.start], before - waiting + error.start
            unpacked = ", unpacked" if path.suffix.lower() == ".gz" else ""
            line = lines + error.object.count(b"\n", 0, error.start)
            raise ValueError(
                f"{path}: is no {name.upper()} text: byte 0x{byte:02x} at offset {at}{unpacked}, "
                f"in line {line}; {advice}"
            ) from error
        before, lines = before + len(data or b""), lines + text.count("\n")
        text = text.removeprefix(_MARK) if is_empty else text
        if text:
            is_empty = False
            yield text
    if is_empty:
        raise ValueError(f"{path}: is empty; pass a file with text")


def _checked(path: Path, encoding: str) -> Iterator[bytes]:
    """Yields the content of a file; raises a ValueError at its end if it is UTF-8 and this is another encoding.

    Nearly any text can be decoded in an encoding of one byte a letter, and would be read wrongly.
    """
    other = None if codecs.lookup(encoding).name.startswith("utf") else codecs.getincrementaldecoder("utf-8")()
    is_plain = True
    for data in _with_end(chunks_of(path)):
        is_plain &= data is None or data.isascii()
        try:
            if other is not None:
                other.decode(data or b"", final=data is None)
        except UnicodeDecodeError:
            other = None
        if data is not None:
            yield data
    if other is not None and not is_plain:
        raise ValueError(f"{path}: is UTF-8 text, and would be read wrongly as {encoding}; pass csv.encoding=utf-8")


def _encoding_of(path: Path, start: bytes, named: str | None) -> str:
    """Returns the encoding of a text that starts with these bytes."""
    if start.startswith(b"PK\x03\x04"):
        raise ValueError(f"{path}: is no text but a zip archive, such as a spreadsheet in .xlsx; save it as text")
    marked = next((name for mark, name in _BYTE_ORDER_MARKS if start.startswith(mark)), None)
    if marked is not None and named is not None and not codecs.lookup(named).name.startswith(marked):
        raise ValueError(
            f"{path}: begins with the byte order mark of {marked}; pass csv.encoding={marked}, and not {named}"
        )
    return marked or named or "utf-8"


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
