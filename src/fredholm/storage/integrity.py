"""JSON that carries its own SHA-256, and listings of other files with theirs."""

import hashlib
import json
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MAX_BYTES = 256 * 2**20
"""Size limit of JSON files in a run folder; larger ones are refused before they are read."""

_DIGEST = "sha256"


def seal(content: Mapping[str, Any]) -> bytes:
    """Encodes a JSON object with the SHA-256 of its own text as the last entry; equal input gives equal bytes."""
    return _text({**content, _DIGEST: hashlib.sha256(_text(content)).hexdigest()})


def unseal(path: Path) -> dict[str, Any]:
    """Reads the content that `seal` encoded from a file.

    Raises:
        ValueError: the file is missing, too large, or differs by any byte from what was written.
        OSError: the file cannot be read.
    """
    data = read_bytes(path)
    content = parse_object(path, data)
    digest = content.pop(_DIGEST, None)
    if not isinstance(digest, str):
        raise ValueError(f"{path} has no {_DIGEST} of itself; it is damaged or of another program")
    try:
        is_whole = seal(content) == data
    except (ValueError, RecursionError):  # a lone surrogate, or deeper nesting than `seal` ever writes
        is_whole = False
    if not is_whole:
        raise ValueError(f"{path} is damaged: it is not what its own SHA-256 says")
    return content


def parse_object(path: Path, data: bytes) -> dict[str, Any]:
    """Parses the JSON object in the content of a file.

    Raises:
        ValueError: the content is not JSON, or not an object.
    """
    try:
        content = json.loads(data)
    except RecursionError as error:
        raise ValueError(f"{path} is not valid JSON: it is nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}; expected an object")
    return content


def listed(data: bytes) -> dict[str, Any]:
    """Returns the entry of a file in a listing: its size and SHA-256."""
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def check_listed(path: Path, entry: Mapping[str, Any], listing: str = "manifest.json") -> None:
    """Reads a file of any size, and compares it with its entry in the listing.

    Raises:
        ValueError: the file is missing or differs.
        OSError: the file cannot be read.
    """
    size = file_size(path)
    if size != entry["bytes"]:
        raise ValueError(f"{path} is damaged: it has {size} bytes, and {listing} lists {entry['bytes']}")
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != entry["sha256"]:
            raise _changed(path, listing)


def read_listed(path: Path, entry: Mapping[str, Any], listing: str = "manifest.json") -> bytes:
    """Reads a small file after comparing it with its entry in a listing; errors as of `check_listed`."""
    data = read_bytes(path)
    if listed(data) != entry:
        raise _changed(path, listing)
    return data


def check_listing(path: Path, listing: Any) -> dict[str, dict[str, Any]]:
    """Checks a listing that was read from the file `path`, whose names must be those of files beside it.

    Raises:
        ValueError: it is not a valid listing.
    """
    if not isinstance(listing, dict):
        raise ValueError(f"{path} lists no files")
    for name, entry in listing.items():
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{,100}", name):
            raise ValueError(f"{path} lists {_short(name)}, which is no file beside it")
        fits = isinstance(entry, dict) and entry.keys() == {"bytes", "sha256"}
        if not (fits and type(entry["bytes"]) is int and isinstance(entry["sha256"], str)):
            raise ValueError(f"{path} lists {_short(name)} without its size and SHA-256")
    return listing


def read_bytes(path: Path, most: int = MAX_BYTES) -> bytes:
    """Reads a regular file.

    Raises:
        ValueError: it is missing, no regular file, or larger than `most`.
        OSError: it cannot be read.
    """
    size = file_size(path)
    if size > most:
        raise ValueError(f"{path} has {size} bytes; expected at most {most}")
    return path.read_bytes()


def is_missing(path: Path) -> bool:
    """Whether no file or folder has that name; raises an OSError where that cannot be determined."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    return False


def file_size(path: Path) -> int:
    """Returns the size of a regular file in bytes.

    Raises:
        ValueError: it is missing, or no regular file.
        OSError: the size cannot be determined.
    """
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ValueError(f"{path} is missing") from error
    if not stat.S_ISREG(found.st_mode):  # reading a pipe would block
        raise ValueError(f"{path} is no file")
    return found.st_size


def _changed(path: Path, listing: str) -> ValueError:
    return ValueError(f"{path} is damaged: its SHA-256 is not the one that {listing} lists")


def _text(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=1) + "\n").encode()


def _short(name: str) -> str:
    return repr(name if len(name) <= 80 else f"{name[:77]}...")
