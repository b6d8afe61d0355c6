"""Splits of files by their names."""

import difflib
import json
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

import torch
from torch import Tensor

from fredholm.tasks.files.arrow_table import ARROW
from fredholm.tasks.files.data_files import read_bytes

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")
SAVED, SAVED_SPLITS = "state.json", "dataset_dict.json"
"""Files in a folder of Hugging Face's datasets: of a data set without splits, and of one with splits."""
SPLIT_WORDS: dict[str, Split] = {
    "train": "train",
    "training": "train",
    "valid": "valid",
    "validation": "valid",
    "val": "valid",
    "dev": "valid",
    "test": "test",
    "testing": "test",
}
"""Words for splits in names, in lower case."""


@final
@dataclass(frozen=True)
class SplitFiles:
    """Files by split, or all files where their names have no splits.

    `by_split` is empty where names have no splits; else it has a training split and, unless that may be alone, another.
    """

    by_split: dict[Split, tuple[Path, ...]]
    unsplit: tuple[Path, ...]

    @property
    def parts(self) -> dict[Split, tuple[Path, ...]]:
        """Files of each split; all files as training ones where names have no splits."""
        return self.by_split or {"train": self.unsplit}

    @property
    def every(self) -> list[Path]:
        """All files, split by split."""
        return [file for files in self.parts.values() for file in files]

    def split_of_rows(self, counts: Sequence[int]) -> Tensor | None:
        """Returns the split of each row by its number in `SPLITS`, int64; None where names have no splits.

        Args:
            counts: numbers of rows of the files, in the order of `every`.
        """
        if not self.by_split:
            return None
        numbers = [SPLITS.index(split) for split, files in self.by_split.items() for _ in files]
        return torch.tensor(numbers).repeat_interleave(torch.tensor(list(counts)))


def find_split_files(
    path: Path, suffixes: tuple[str, ...], *, what: str, example: str, may_be_alone: bool = False
) -> SplitFiles:
    """Finds the files at a path, by split.

    A split is a word of a name: train or training; valid, validation, val or dev; test or testing. Words are separated
    by dots, hyphens and underscores. A warning lists the files without such a word where others have one. In a data set
    saved by Hugging Face's datasets the splits are those of the set; a single split counts as none.

    Args:
        path: a file, which is taken whole; a folder; a common prefix of the names of files with splits (``folder/ptb``
            for ``folder/ptb.train.txt.gz``); or the folder of a saved data set, where files may be .arrow.
        suffixes: allowed suffixes.
        what: noun for the files, in messages.
        example: a suffix for file names in messages.
        may_be_alone: whether a training split alone is enough.

    Raises:
        ValueError: the path does not exist, there are splits of several data sets, no training split, or no other one.
    """
    if ARROW in suffixes and is_saved(path):
        return _saved(path)
    given = _files(path, suffixes, what)
    named: dict[Path, Split] = {file: split for file in given if (split := _split_of(file, suffixes)) is not None}
    if not named or path.is_file():
        return SplitFiles({}, tuple(given))
    series = sorted({_series(file, suffixes) for file in named})
    if len(series) > 1:
        raise ValueError(f"{path} has splits of several {what}s, {', '.join(series)}; pass {path / series[-1]}, say")
    if others := [file.name for file in given if file not in named]:
        warnings.warn(f"left out, since the name has no split in it: {', '.join(others)}", stacklevel=4)
    by_split: dict[Split, tuple[Path, ...]] = {
        split: tuple(file for file in given if named.get(file) == split) for split in SPLITS if split in named.values()
    }
    if "train" not in by_split:
        raise ValueError(f"{path} has no training {what}; expected a file such as train{example}")
    if len(by_split) == 1 and not may_be_alone:
        raise ValueError(
            f"{path} has no validation and no test {what}; expected files such as valid{example} and test{example}"
        )
    return SplitFiles(by_split, ())


def split_folders(root: Path) -> dict[Split, Path]:
    """Returns the subfolders named as splits, in any case, if one of them is for training; else none.

    Raises:
        ValueError: two folders are one split, or all are validation and test splits, with none for training.
    """
    found: dict[Split, Path] = {}
    folders = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    named = [folder for folder in folders if folder.name.lower() in SPLIT_WORDS]
    for folder in named:
        split = SPLIT_WORDS[folder.name.lower()]
        if split in found:
            raise ValueError(
                f"{root}: has the folders {found[split].name} and {folder.name}, which are one split; keep one"
            )
        found[split] = folder
    if "train" not in found and len(found) > 1 and len(named) == len(folders):  # else they may be classes
        raise ValueError(
            f"{root}: has the folders {' and '.join(folder.name for folder in named)}, and none of examples to learn "
            "from; call one train"
        )
    return {split: found[split] for split in SPLITS if split in found} if "train" in found else {}


def is_saved(path: Path) -> bool:
    """Whether a folder was saved by Hugging Face's datasets (`save_to_disk`)."""
    return (path / SAVED).is_file() or (path / SAVED_SPLITS).is_file()


def _saved(folder: Path) -> SplitFiles:
    """Returns the files of a saved data set."""
    if not (folder / SAVED_SPLITS).is_file():
        return SplitFiles({}, _shards(folder))
    names = _listed(folder / SAVED_SPLITS, "splits")
    if odd := [name for name in names if not isinstance(name, str) or Path(name).name != name or name == ".."]:
        raise ValueError(f"{folder / SAVED_SPLITS}: {odd[0]!r} is no name of a split; save the data again")
    if len(names) == 1:
        return SplitFiles({}, _shards(folder / names[0]))
    if others := [name for name in names if name.lower() not in SPLIT_WORDS]:
        warnings.warn(f"left out, since the names are of no split: {', '.join(others)}", stacklevel=5)
    by_split: dict[Split, tuple[Path, ...]] = {}
    for name in names:
        if (split := SPLIT_WORDS.get(name.lower())) is not None:
            if split in by_split:
                raise ValueError(f"{folder} has several {split} splits: {', '.join(names)}; keep one")
            by_split[split] = _shards(folder / name)
    if "train" not in by_split:
        raise ValueError(f"{folder} has no split 'train'; the splits are {', '.join(names)}")
    return SplitFiles({split: by_split[split] for split in SPLITS if split in by_split}, ())


def _shards(folder: Path) -> tuple[Path, ...]:
    """Returns the files of one split, in order."""
    listed = _listed(folder / SAVED, "_data_files")
    names = [str(each.get("filename")) if isinstance(each, dict) else "" for each in listed]
    if odd := [name for name in names if Path(name).name != name or Path(name).suffix != ARROW]:
        raise ValueError(f"{folder / SAVED}: {odd[0]!r} is no name of a {ARROW} file; save the data again")
    return tuple(folder / name for name in names)


def _listed(path: Path, name: str) -> list[Any]:
    try:
        found = json.loads(read_bytes(path))[name]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path}: has no list {name!r} as datasets writes it ({error}); save the data again"
        ) from error
    if not isinstance(found, list) or not found:
        raise ValueError(f"{path}: {name!r} is no list of at least one; save the data again")
    return found


def _files(path: Path, suffixes: tuple[str, ...], what: str) -> list[Path]:
    """Returns the files at a path, sorted by name."""
    if path.is_file():
        return [path]
    folder, start = (path, "") if path.is_dir() else (path.parent, path.name)
    if not folder.is_dir():
        raise ValueError(f"no {what} at {str(path)!r}: {str(folder)!r} is no folder; pass a {what} file or a folder")
    try:
        listed = sorted(file for file in folder.iterdir() if file.name.lower().endswith(suffixes) and file.is_file())
    except PermissionError as error:
        raise ValueError(f"{folder}: may not be read; change its permissions") from error
    if path.is_dir():
        if not listed:
            kinds = f"{', '.join(suffixes[:-1])} or {suffixes[-1]}"
            raise ValueError(f"{path} holds no {kinds} file; pass a folder that does, or one file")
        return listed
    found = [file for file in listed if _split_of(file, suffixes) is not None and _series(file, suffixes) == start]
    if not found:
        split = {_series(file, suffixes) for file in listed if _split_of(file, suffixes) is not None}
        close = difflib.get_close_matches(start, {file.name for file in listed} | split, n=1, cutoff=0.5)
        hint = f"did you mean {str(folder / close[0])!r}? Otherwise " if close and close[0] else ""
        raise ValueError(f"no {what} at {str(path)!r}: {hint}pass a {what} file or a folder of such files")
    return found


def _name(file: Path, suffixes: tuple[str, ...]) -> str:
    lower = file.name.lower()
    return next((file.name[: -len(end)] for end in suffixes if lower.endswith(end)), file.name)


def _split_of(file: Path, suffixes: tuple[str, ...]) -> Split | None:
    words = re.split(r"[._-]", _name(file, suffixes).lower())
    return next((SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS), None)


def _series(file: Path, suffixes: tuple[str, ...]) -> str:
    """Returns the part of the name before the word of its split: `ptb` for `ptb.train.txt`."""
    words = re.split(r"([._-])", _name(file, suffixes))
    at = next((i for i, word in enumerate(words) if word.lower() in SPLIT_WORDS), len(words))
    return "".join(words[:at]).rstrip("._-")
