"""One entry for every source of series: a file, a pair of files, or a folder with one."""

import re
from pathlib import Path

import torch

from fredholm._settings import refuse_idle
from fredholm.tasks.images.idx import is_idx_folder
from fredholm.tasks.npz_arrays import ARRAY_SUFFIXES
from fredholm.tasks.parts import refuse_part
from fredholm.tasks.split_files import Split
from fredholm.tasks.splits import Splits
from fredholm.tasks.stratified_split import DEFAULT_TEST_FRACTION, stratified_split
from fredholm.tasks.table_text import PARQUET

from .csv_file import read_csv
from .idx_pixels import idx_pixels
from .npz_file import read_npz, read_npz_part
from .physionet_2012 import is_physionet_2012, physionet_2012
from .series_set import SeriesSet
from .ts_file import read_ts

KINDS = (".ts", ".ts.gz", ".csv", ".csv.gz", PARQUET, ".npz")
_WORDS = ("train", "test")


def open_series(
    data: str | Path, *, test_fraction: float = DEFAULT_TEST_FRACTION, split_seed: int = 0
) -> Splits[SeriesSet]:
    """Open labelled series as a training and a test set.

    A split is given by two files whose names differ in the words train and test, which stand between dots, hyphens and
    underscores (`Gun_TRAIN.ts` and `Gun_TEST.ts`), or by the arrays of an .npz file. Else `stratified_split` makes one.

    Args:
        data: a .ts, .csv (`read_csv`, also gzipped) or .npz file (`read_npz`); a folder with one such file or pair; or
            the start of a pair's names (`folder/Gun`). One file of a pair stands for both. Or the folder of
            `physionet_2012`, or of `idx_pixels`.
        test_fraction: share of the test set, above 0 and below 1, where the source does not bring its own split.
        split_seed: picks one of many such splits.

    Raises:
        ValueError: nothing of that name, the source is broken or without labels, or settings of a split where it has
            one.
    """
    path = Path(data).expanduser()
    if is_physionet_2012(path):
        return _fixed(path, physionet_2012(path), test_fraction)
    if path.is_dir() and is_idx_folder(path):
        return _fixed(path, idx_pixels(path), test_fraction)
    files = _files(path)
    if len(files) == 2:
        train = _of_pair(files[0])
        test = _of_pair(files[1], channels=train.channels, classes=train.classes)
        return _fixed(path, Splits(train, test), test_fraction)
    found = _read(files[0])
    if isinstance(found, Splits):
        return _fixed(path, found, test_fraction)
    if found.labels is None:
        raise ValueError(f"{files[0]}: the series have no labels; expected a class each")
    try:
        parts = stratified_split(found.names, found.labels.tolist(), test_fraction, split_seed)
    except ValueError as error:
        raise ValueError(f"{files[0]}: {error}") from error
    train, test = (found.select(torch.tensor(part, dtype=torch.int64)) for part in parts)
    return Splits(train, test, is_given=False)


def read_series(
    path: Path,
    *,
    channels: tuple[str, ...] | None = None,
    part: Split | None = None,
) -> SeriesSet:
    """Read one file of series; see `read_csv`, `read_ts` and `read_npz`, and `choose_part` of one with a split.

    Raises:
        ValueError: it is of no known kind, broken, or has no such part.
    """
    if path.name.endswith(ARRAY_SUFFIXES):
        return read_npz_part(path, channels=channels, part=part)
    refuse_part(path, part)
    return _of_pair(path, channels=channels)


def _of_pair(
    path: Path, *, channels: tuple[str, ...] | None = None, classes: tuple[str, ...] | None = None
) -> SeriesSet:
    """What a file of a training and a test file holds."""
    found = _read(path, channels=channels, classes=classes)
    if isinstance(found, Splits):
        raise ValueError(f"{path}: holds a training and a test set, and lies beside another; keep one of them")
    return found


def _read(
    path: Path, *, channels: tuple[str, ...] | None = None, classes: tuple[str, ...] | None = None
) -> SeriesSet | Splits[SeriesSet]:
    """What one file holds."""
    name = path.name.removesuffix(".gz")
    if name.endswith((".csv", PARQUET)):
        return read_csv(path, channels=channels, classes=classes)
    if name.endswith(".ts"):
        return read_ts(path, channels=channels, classes=classes)
    if not name.endswith(ARRAY_SUFFIXES):
        raise ValueError(f"{path}: is of no known kind; expected {', '.join((*KINDS, '.npy'))}")
    return read_npz(path, channels=channels, classes=classes)


def _files(path: Path) -> list[Path]:
    """One file, or the training and the test file of a pair."""
    if path.is_file():
        word = _split_of(path)
        other = [file for file in _listed(path.parent) if word and _stem(file) == _stem(path) and _split_of(file)]
        return _pair(path, other) if len(other) > 1 else [path]
    folder, start = (path, None) if path.is_dir() else (path.parent, path.name)
    if not folder.is_dir():
        raise ValueError(f"no series at {str(path)!r}: {str(folder)!r} is no folder; pass a file or a folder")
    files = [file for file in _listed(folder) if start is None or (_split_of(file) and _stem(file) == start)]
    if not files:
        raise ValueError(f"no series at {str(path)!r}; expected {', '.join(KINDS)}")
    if len(files) == 1:
        return files
    return _pair(path, files)


def _pair(path: Path, files: list[Path]) -> list[Path]:
    by_word = {word: [file for file in files if _split_of(file) == word] for word in _WORDS}
    if len(files) != 2 or any(len(found) != 1 for found in by_word.values()):
        names = ", ".join(file.name for file in files[:6])
        raise ValueError(
            f"{path}: has the files {names}; pass one of them, or a folder with one training and one test file"
        )
    return [by_word[word][0] for word in _WORDS]


def _listed(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.name.endswith(KINDS) and file.is_file())


def _split_of(file: Path) -> str | None:
    return next((word for word in re.split(r"[._-]", file.name.lower()) if word in _WORDS), None)


def _stem(file: Path) -> str:
    """The name without its split and kind: `Gun` of `Gun_TRAIN.ts`."""
    words = re.split(r"[._-]", file.name)
    at = next((i for i, word in enumerate(words) if word.lower() in _WORDS), 1)
    return file.name[: len("_".join(words[:at]))]


def _fixed(path: Path, splits: Splits[SeriesSet], test_fraction: float) -> Splits[SeriesSet]:
    fixed, given = f"{path}, which has its own split", {"test_fraction": test_fraction}
    refuse_idle("", open_series, fixed, "pass series without a split", **given)
    return splits
