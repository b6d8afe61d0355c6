"""One entry for every source of text: a file, a folder, or files that share the start of their names."""

import difflib
import re
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fredholm._settings import refuse_idle

from .documents import Separator, cut_documents, split_documents
from .read import TEXT_SUFFIXES, read_text

Split = Literal["train", "valid", "test"]
DEFAULT_TEST_FRACTION = 0.1
_WORDS: dict[str, Split] = {
    "train": "train",
    "valid": "valid",
    "validation": "valid",
    "val": "valid",
    "dev": "valid",
    "test": "test",
}


@dataclass(frozen=True)
class TextSplits:
    """The documents of each split; None where the source has none."""

    train: tuple[str, ...]
    valid: tuple[str, ...] | None
    test: tuple[str, ...] | None


def open_text(
    data: str | Path,
    *,
    documents: Separator = "file",
    test_fraction: float = DEFAULT_TEST_FRACTION,
    valid_fraction: float = 0.0,
) -> TextSplits:
    """Open text as training, validation and test documents.

    Files end in .txt or .txt.gz. Their split is a word of their names: train; valid, validation, val or dev; test. The
    words are what stands between dots, hyphens and underscores.

    Args:
        data: a file, a folder, or a path to which the names of files with splits are longer (``folder/ptb`` for
            ``folder/ptb.train.txt.gz``). A file, and a folder in which no name has a split, are cut at their end: the
            last part is the test split, the one before it the validation split.
        documents: what ends a document.
        test_fraction: share of the characters in the test split where names give none, above 0 and below 1.
        valid_fraction: share in the validation split, likewise; 0: there is none.

    Raises:
        ValueError: there is nothing of that name, a file is empty, unreadable or no UTF-8, or shares of splits where
            the files have theirs.
    """
    path = Path(data).expanduser()
    given = _files(path)
    named: dict[Path, Split] = {file: split for file in given if (split := _split_of(file)) is not None}
    if named and not path.is_file():
        shares = {"test_fraction": test_fraction, "valid_fraction": valid_fraction}
        refuse_idle("", open_text, f"{path}, which has splits", "pass text without splits", **shares)
        return _named_splits(path, given, named, documents)
    texts = _documents(given, documents)
    if not 0 <= valid_fraction < 1 or not 0 < test_fraction < 1 or valid_fraction + test_fraction >= 1:
        raise ValueError(
            f"test_fraction is {test_fraction} and valid_fraction {valid_fraction}; pass numbers from 0 (the first "
            "above 0) that leave some text to train on"
        )
    try:
        rest, test = cut_documents(texts, test_fraction)
        if valid_fraction == 0:
            return TextSplits(tuple(rest), None, tuple(test))
        train, valid = cut_documents(rest, valid_fraction / (1 - test_fraction))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return TextSplits(tuple(train), tuple(valid), tuple(test))


def _files(path: Path) -> list[Path]:
    """The text files that a path stands for, by name."""
    if path.is_file():
        return [path]
    folder, start = (path, "") if path.is_dir() else (path.parent, path.name)
    if not folder.is_dir():
        raise ValueError(f"no text at {str(path)!r}: {str(folder)!r} is no folder; pass a text file or a folder")
    try:
        listed = sorted(file for file in folder.iterdir() if file.name.endswith(TEXT_SUFFIXES) and file.is_file())
    except PermissionError as error:
        raise ValueError(f"{folder}: may not be read; change its permissions") from error
    if path.is_dir():
        if not listed:
            raise ValueError(f"{path} holds no .txt or .txt.gz file; pass a folder that does, or one file")
        return listed
    found = [file for file in listed if _split_of(file) is not None and _series(file) == start]
    if not found:
        close = difflib.get_close_matches(start, {file.name for file in listed} | {_series(f) for f in listed}, n=1)
        hint = f"did you mean {str(folder / close[0])!r}? Otherwise " if close and close[0] else ""
        raise ValueError(f"no text at {str(path)!r}: {hint}pass a text file or a folder of such files")
    return found


def _named_splits(path: Path, given: list[Path], named: dict[Path, Split], documents: Separator) -> TextSplits:
    series = sorted({_series(file) for file in named})
    if len(series) > 1:
        raise ValueError(f"{path} has splits of several texts, {', '.join(series)}; pass {path / series[-1]}, say")
    if others := [file.name for file in given if file not in named]:
        warnings.warn(f"left out, since the name has no split in it: {', '.join(others)}", stacklevel=3)
    parts: dict[Split, tuple[str, ...]] = {}
    for split in ("train", "valid", "test"):
        if files := [file for file in given if named.get(file) == split]:
            parts[split] = tuple(_documents(files, documents))
    if "train" not in parts:
        raise ValueError(f"{path} has no training text; expected a file such as train.txt")
    if len(parts) == 1:
        raise ValueError(f"{path} has no validation and no test text; expected files such as valid.txt and test.txt")
    return TextSplits(parts["train"], parts.get("valid"), parts.get("test"))


def _documents(files: Iterable[Path], separator: Separator) -> list[str]:
    found: list[str] = []
    for file in files:
        text = read_text(file)
        try:
            found += split_documents(text, separator)
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from error
    return found


def _name(file: Path) -> str:
    return file.name.removesuffix(".gz").removesuffix(".txt")


def _split_of(file: Path) -> Split | None:
    return next((_WORDS[word] for word in re.split(r"[._-]", _name(file).lower()) if word in _WORDS), None)


def _series(file: Path) -> str:
    """The part of the name before the word of its split: `ptb` of `ptb.train.txt`."""
    words = re.split(r"([._-])", _name(file))
    at = next((i for i, word in enumerate(words) if word.lower() in _WORDS), len(words))
    return "".join(words[:at]).rstrip("._-")
