"""The arrays of .npz and .npy files that a user hands over."""

import contextlib
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.lib.npyio import NpzFile
from torch import Tensor

from fredholm.tasks.noted import noted
from fredholm.tasks.split_files import SPLIT_WORDS, SPLITS, Split

ARRAY_SUFFIXES = (".npz", ".npy")


def load_arrays(path: Path, *, alone: str | None = None) -> dict[str, np.ndarray]:
    """All arrays of an .npz file; objects are refused.

    Args:
        path: the file.
        alone: the name that the array of an .npy file gets; None: such a file is refused.

    Raises:
        ValueError: it cannot be read as one.
    """
    if alone is not None and path.suffix.lower() == ".npy":
        return {alone: _single(path)}
    with _opened(path) as opened:
        return {name: opened[name] for name in opened.files}


def array_names(path: Path) -> tuple[str, ...]:
    """The names of its arrays, which are not read; errors as for `load_arrays`."""
    with _opened(path) as opened:
        return tuple(opened.files)


def split_words(has: Callable[[str], bool]) -> dict[Split, str]:
    """By which word each split is named in a file, such as val.

    Args:
        has: whether there are arrays of a word of `SPLIT_WORDS`.

    Raises:
        ValueError: two words for one split.
    """
    found: dict[Split, str] = {}
    for word, split in SPLIT_WORDS.items():
        if has(word):
            if split in found:
                raise ValueError(f"has arrays of {found[split]} and of {word}, which are one split; keep one")
            found[split] = word
    return {split: found[split] for split in SPLITS if split in found}


def arrays_of_splits(arrays: Mapping[str, np.ndarray]) -> dict[Split, dict[str, np.ndarray]]:
    """The arrays of each split whose names begin with its word and a _, without that, and those that all share.

    Empty where no names begin with train_. Errors as for `split_words`.
    """
    if not any(name.startswith("train_") for name in arrays):
        return {}
    words = split_words(lambda word: any(name.startswith(f"{word}_") for name in arrays))
    starts = tuple(f"{word}_" for word in words.values())
    shared = {name: array for name, array in arrays.items() if not name.startswith(starts)}
    return {
        split: shared
        | {name.removeprefix(f"{word}_"): own for name, own in arrays.items() if name.startswith(f"{word}_")}
        for split, word in words.items()
    }


def split_of_rows(arrays: Mapping[str, np.ndarray], count: int, *, is_test: Sequence[str] = ()) -> Tensor | None:
    """The array `split`, one entry a row, as numbers in `SPLITS`, int64 `(count,)`, -1 of rows in none; None: no split.

    The entries are words of `SPLIT_WORDS`, or "" of a row in none; or the numbers 0 train, 1 valid, 2 test.

    Args:
        arrays: of the file.
        count: of the rows.
        is_test: further names, of arrays that are True in the test split and False in training.

    Raises:
        ValueError: it is none.
    """
    if (named := next((name for name in is_test if name in arrays), None)) is not None:
        if arrays[named].dtype.kind != "b" or arrays[named].shape != (count,):
            raise ValueError(f"{named} is {arrays[named].dtype} {arrays[named].shape}; expected bool ({count},)")
        return SPLITS.index("test") * torch.from_numpy(arrays[named]).long()
    if "split" not in arrays:
        return None
    split = arrays["split"]
    if split.shape != (count,) or split.dtype.kind not in "iuU":
        raise ValueError(f"split is {split.dtype} {split.shape}; expected words or integers ({count},), one a row")
    if split.dtype.kind != "U":
        for i in np.flatnonzero((split < 0) | (split > 2))[:1].tolist():
            raise ValueError(f"split[{i}] is {split[i]}; expected 0 (train), 1 (valid) or 2 (test)")
        return torch.from_numpy(split.astype(np.int64))
    numbers = {"": -1} | {word: SPLITS.index(each) for word, each in SPLIT_WORDS.items()}
    for i, word in enumerate(split.tolist()):
        if word.lower() not in numbers:
            raise ValueError(f"split[{i}] is {word!r}; expected train, valid or test, or '' where a row is in none")
    return torch.tensor([numbers[word.lower()] for word in split.tolist()], dtype=torch.int64)


def _single(path: Path) -> np.ndarray:
    try:
        found = np.load(noted(path), allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ValueError(f"{path}: cannot be read as an .npy file ({reason}); pass one without objects") from error
    if not isinstance(found, np.ndarray):
        found.close()
        raise ValueError(f"{path}: is an .npz file by its content; rename it")
    return found


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[NpzFile]:
    try:
        with np.load(noted(path), allow_pickle=False) as opened:
            if not isinstance(opened, NpzFile):
                raise ValueError("it holds a single array")
            yield opened
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ValueError(f"{path}: cannot be read as an .npz file ({reason}); pass one without objects") from error
