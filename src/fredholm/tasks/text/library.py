"""The package `tokenizers`, which learns and applies tokens, imported on demand."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from fredholm.tasks.files.limits import check_counted
from fredholm.tasks.files.read_record import recorded

from .read import read_text

if TYPE_CHECKING:
    import tokenizers

Made = TypeVar("Made")


def tokenizers_library() -> ModuleType:
    """Imports the package.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import tokenizers
    except ImportError as error:
        raise ImportError('these tokens need tokenizers; get it with: pip install "fredholm[data]"') from error
    return tokenizers


def library_version() -> str:
    """Returns the version of the package; another one may tokenise texts differently."""
    return tokenizers_library().__version__


def library_tokenizer(state: str) -> "tokenizers.Tokenizer":
    """Builds the package's tokenizer from its JSON.

    Raises:
        ValueError: the JSON is no tokenizer.
        ImportError: the package is not installed.
    """
    library = tokenizers_library()
    _check_numbers(state)
    try:
        return library.Tokenizer.from_str(state)
    except Exception as error:  # the library raises a bare Exception
        raise ValueError(f"this is no tokenizer of the tokenizers library: {error}") from error


def cuts_bytes_at_words(parts: dict[str, Any]) -> bool:
    """Whether a tokenizer in JSON splits raw bytes into words by a pattern that never reads across lines."""
    words = parts["pre_tokenizer"] or {}
    is_plain = words.get("type") == "ByteLevel" and not words["add_prefix_space"] and words["use_regex"]
    return is_plain and not parts["normalizer"]


def made_from_file(file: Path, make: Callable[[str], Made]) -> Made:
    """Applies `make` to the JSON in a `tokenizer.json`; errors name the file.

    Raises:
        ValueError: the file cannot be read, or `make` raises one.
    """
    try:
        return make(read_text(recorded(file, is_start=True)))
    except ValueError as error:
        raise ValueError(str(error) if str(file) in str(error) else f"{file}: {error}") from error


def _check_numbers(state: str) -> None:
    """Raises a ValueError for too large a token number, which would make the library run out of memory and crash."""
    try:
        parsed = json.loads(state)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"this is no tokenizer of the tokenizers library: {type(error).__name__}: {error}") from error
    parsed = parsed if isinstance(parsed, dict) else {}
    model, added = parsed.get("model"), parsed.get("added_tokens")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    numbers = list(vocabulary.values()) if isinstance(vocabulary, dict) else []
    numbers += [token.get("id") for token in (added if isinstance(added, list) else ()) if isinstance(token, dict)]
    largest = max((number for number in numbers if isinstance(number, int)), default=0)
    check_counted(f"tokens up to number {largest}", largest + 1, "number them from 0 on")
