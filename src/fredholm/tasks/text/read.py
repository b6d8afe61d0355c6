"""From text files to strings."""

from pathlib import Path

from fredholm.tasks.files.data_files import read_bytes
from fredholm.tasks.files.read_errors import reads_data

TEXT_SUFFIXES = (".txt", ".txt.gz")


@reads_data
def read_text(path: Path) -> str:
    """The text of a UTF-8 file, gzipped if its name ends in .gz; a byte order mark at its start is dropped.

    Raises:
        ValueError: the file is absent, may not be read, is empty, no gzip or one that unpacks to too much, or no UTF-8
            (the message says at which byte and line).
    """
    data = read_bytes(path)
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
