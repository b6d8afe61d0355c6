"""From text files to strings."""

import gzip
import zlib
from pathlib import Path

from fredholm.tasks.noted import noted

TEXT_SUFFIXES = (".txt", ".txt.gz")


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, gzipped if its name ends in .gz; a byte order mark at its start is dropped.

    Raises:
        ValueError: the file is absent, may not be read, is empty, no gzip, or no UTF-8 (the message says at which byte
            and line).
    """
    try:
        data = noted(path).read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror}); pass a text file") from error
    if path.suffix == ".gz":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path}: is no whole gzip file ({error}); unpack it or drop the .gz") from error
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        byte, unpacked = data[error.start], ", unpacked" if path.suffix == ".gz" else ""
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path}: is no UTF-8 text: byte 0x{byte:02x} at offset {error.start}{unpacked}, in line {line}; convert "
            "the file"
        ) from error
    text = text.removeprefix("\ufeff")
    if not text:
        raise ValueError(f"{path}: is empty; pass a file with text")
    return text
