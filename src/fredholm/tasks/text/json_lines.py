"""Reading of JSON Lines files, with an object a line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, final

from .read import text_lines

JSONL_SUFFIXES = (".jsonl", ".jsonl.gz")

_KINDS = {list: "a list", str: "a text", bool: "a truth value", int: "a number", float: "a number", type(None): "null"}
"""Names of JSON types, for messages."""


@final
class JsonLine(NamedTuple):
    """A line number, counted from 1, and the object on that line."""

    line: int
    found: dict[str, Any]


def json_lines(path: Path) -> Iterator[JsonLine]:
    """Yields the objects of a JSONL file, UTF-8, gzipped if its name ends in .gz; empty lines are skipped.

    They are read one after the other; errors are raised when reading reaches them.

    Raises:
        ValueError: as of `read_text`; a line is invalid JSON, is no object, or repeats a name.
    """
    for number, line in enumerate(text_lines(path), 1):
        if not line.strip():
            continue
        try:
            found: Any = json.loads(line, object_pairs_hook=_once)
        except RecursionError as error:
            raise ValueError(f"{path}, line {number}: is nested too deeply; make it flatter") from error
        except KeyError as error:
            raise ValueError(f"{path}, line {number}: {error} is there twice; keep one") from error
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: does not parse as JSON: {error}") from error
        if not isinstance(found, dict):
            raise ValueError(f"{path}, line {number}: is {_KINDS[type(found)]}; expected an object, {{...}}")
        yield JsonLine(number, found)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Builds an object; raises a KeyError for a repeated name, of which JSON would keep the last value."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise KeyError(next(name for name in names if names.count(name) > 1))
    return found
