"""Opens series from every source: a file, a pair of files, or a folder."""

import difflib
import math
import re
from collections.abc import Sequence
from pathlib import Path

import torch

from fredholm.tasks.files.arrow_table import PARQUET
from fredholm.tasks.files.data_files import data_path
from fredholm.tasks.files.npz_arrays import ARRAY_SUFFIXES
from fredholm.tasks.files.parts import refuse_part
from fredholm.tasks.files.read_errors import reads_data
from fredholm.tasks.files.read_every import read_every
from fredholm.tasks.images import ImageDataset, idx_folder
from fredholm.tasks.images.idx import is_idx_folder
from fredholm.tasks.splits.split_files import Split
from fredholm.tasks.splits.splits import Splits

from .csv_file import CSV_SUFFIXES, read_class_folders, read_csv, read_tables
from .npz_file import read_npz, read_npz_alone, read_npz_part, read_npz_shards
from .physionet_2012 import is_physionet_2012, physionet_2012
from .recordings import SOUND_SUFFIXES, has_recordings, read_recording, read_recordings
from .series_set import SAME, LabelReading, Series, SeriesSet, SeriesTarget
from .ts_file import read_ts
from .ucr_file import UCR, read_ucr

KINDS = (".ts", ".ts.gz", *UCR, ".csv", ".csv.gz", PARQUET, ".npz")
TEXT = (".txt", ".txt.gz")
"""Suffixes of any text file; in a folder they are read only if no other files exist and their names name splits."""
ALONE = (*(kind for kind in KINDS if kind not in TEXT), ".npy", *SOUND_SUFFIXES)
"""Suffixes of files that may hold one series each."""
_WORDS = ("train", "test")


@reads_data
def open_series(data: str | Path, *, kind: SeriesTarget | None = None) -> Splits[Series]:
    """Open series and their labels or targets, or labels of their samples, in splits or all as one set.

    A split is given by the column or the array `split`, by two files whose names differ in the words train and test,
    which dots, hyphens or underscores separate (`Gun_TRAIN.ts` and `Gun_TEST.ts`), or by other arrays of an .npz file.

    Args:
        data: a .ts (`read_ts`), .tsv or .txt (`read_ucr`), .csv (`read_csv`) or .npz file (`read_npz`), where text may
            be gzipped; a folder with one such file or pair; or the start of a pair's names (`folder/Gun`). Either file
            of a pair opens both. Or a folder with several tables (`read_tables`), whose names may have these words,
            with one subfolder of tables for each class (`read_class_folders`), with several .npz files
            (`read_npz_shards`), with recordings at any depth (`read_recordings`), or with the files of
            `physionet_2012` or `idx_pixels`.
        kind: kind of the labels, where the file format allows several; None: see each reader.

    Raises:
        ValueError: there is no such file or folder, or it is broken, without labels, or of another kind.
    """
    path = data_path(data)
    if kind == "samples":
        _check_samples(path)
    if is_physionet_2012(path) or (path.is_dir() and is_idx_folder(path)):
        if kind not in (None, "class"):
            raise ValueError(f"target is {kind!r}, but {path} has classes; leave it out")
        return _anywhere(physionet_2012(path) if is_physionet_2012(path) else idx_pixels(path))
    reading = LabelReading(kind=kind)
    if path.is_dir() and has_recordings(path):
        return read_recordings(path, reading.of_series)
    if path.is_dir() and not _listed(path) and any(each.is_dir() for each in path.iterdir()):
        if kind not in (None, "class"):
            raise ValueError(f"target is {kind!r}, but the folders of {path} are classes; leave it out")
        return _anywhere(read_class_folders(path))
    if _has_tables(path):
        return _of_tables(path, reading)
    if _has_shards(path):
        files, found = [path], read_npz_shards(path, reading=reading)
    else:
        files = _files(path)
        if len(files) == 2:
            train = _of_pair(files[0], reading=reading)
            return Splits(train, _of_pair(files[1], channels=train.channels, reading=reading.after(train)))
        found = _read(files[0], reading=reading)
    if isinstance(found, Splits):
        return found
    return _given(files[0], found)


@reads_data
def read_series(
    path: Path,
    *,
    channels: tuple[str, ...] | None = None,
    part: Split | None = None,
) -> SeriesSet:
    """Read one file of series, without labels; for a file with a split see `choose_part`.

    Raises:
        ValueError: the file is of no known kind, broken, or has no such part.
    """
    if path.name.lower().endswith(ARRAY_SUFFIXES):
        return read_npz_part(path, channels=channels, part=part)
    refuse_part(path, part)
    return _of_pair(path, channels=channels).in_memory()


@reads_data
def read_series_alone(files: Sequence[Path], *, channels: tuple[str, ...] | None = None) -> SeriesSet:
    """Reads series with the same channels, each from its own file.

    Args:
        files: at least one, of any kinds of ALONE. An array `(T,)` or `(T, C)` in an .npy or .npz file is one series.
        channels: the expected channels; None: those of the first file.

    Raises:
        ValueError: a file is broken, of no known kind, has other channels or several series.
        ImportError: a file is a recording of sound, and soundfile is not installed.
    """
    parts = list[SeriesSet]()

    def read(file: Path) -> None:
        known = channels or (parts[0].channels if parts else None)
        if file.name.lower().endswith(ARRAY_SUFFIXES):
            found = read_npz_alone(file, channels=known)
        else:
            found = read_series(file, channels=known)
        if len(found) != 1:
            raise ValueError(f"{file}: has {len(found)} series; expected one: write each into a file of its own")
        parts.append(found)

    read_every(files, read, "reading series")
    first = parts[0]
    regular = all(each.is_regular and math.isclose(each.spacing, first.spacing, rel_tol=SAME) for each in parts)
    return SeriesSet.pack(
        [each.values[0].numpy() for each in parts],
        times=None if regular else [each.sample_times[0].numpy() for each in parts],
        spacing=first.spacing,
        channels=first.channels,
        names=tuple(map(str, files)),
    )


def _given(path: Path, found: Series) -> Splits[Series]:
    """The parts of series that have marks of a split; all as one set where they have none."""
    if not found.has_answers:
        raise ValueError(
            f"{path}: the series have no labels; give each one a class, labels or a number, or each row a class, "
            "in a table in a column 'label'. What comes after their end is predicted by fredholm train forecast"
        )
    if found.marks.given is None:
        return Splits(found, is_given=False)
    parts = [(found.marks.given == number).nonzero()[:, 0] for number in range(3)]
    try:
        found.keys.check_parts(found.marks.given)
        train, valid, test = (found.select(part) if len(part) else None for part in parts)
        if train is None:
            raise ValueError("the split has nothing to train on; expected 'train' at least once")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return Splits(train, test, valid)


def _check_samples(path: Path) -> None:
    """Raises a ValueError unless data at a path may have labels of samples."""
    kinds = (*CSV_SUFFIXES, ".npz")
    files = [path] if path.is_file() else _listed(path) if path.is_dir() else []
    if path.is_dir() and not (files and all(file.name.lower().endswith(kinds) for file in files)):
        raise ValueError(
            f"target is 'samples', but {path} holds no tables; classes of samples are read from {', '.join(kinds)}"
        )
    for file in files:
        if not file.name.lower().endswith(kinds):
            raise ValueError(f"target is 'samples', but {file} has no labels of samples; write {', '.join(kinds)}")


def _has_tables(path: Path) -> bool:
    """Whether the path is a folder of several tables that are not a training and a test file."""
    files = _listed(path) if path.is_dir() else []
    is_pair = len(files) == 2 and sorted(map(str, map(_split_of, files))) == ["test", "train"]
    return len(files) > 1 and not is_pair and all(file.name.lower().endswith(CSV_SUFFIXES) for file in files)


def _of_tables(path: Path, reading: LabelReading) -> Splits[Series]:
    """The series of the tables of a folder, whose names may say their splits."""
    files = _listed(path)
    parts = {word: [file for file in files if _split_of(file) == word] for word in (None, *_WORDS)}
    if not parts["train"] and not parts["test"]:
        return _given(path, read_tables(files, reading=reading))
    if parts[None] or not parts["train"] or not parts["test"]:
        odd = (parts[None] or files)[0].name
        raise ValueError(f"{path}: some tables are called train or test, but not {odd}; name all so, or none")
    train = read_tables(parts["train"], reading=reading)
    return Splits(train, read_tables(parts["test"], channels=train.channels, reading=reading.after(train)))


def _anywhere(splits: Splits[SeriesSet]) -> Splits[Series]:
    return Splits(splits.train, splits.test, splits.valid, is_given=splits.is_given)


def _has_shards(path: Path) -> bool:
    """Whether the path is a folder of .npz files that are not a training and a test file."""
    files = _listed(path) if path.is_dir() else []
    is_pair = len(files) == 2 and sorted(map(str, map(_split_of, files))) == ["test", "train"]
    return len(files) > 1 and not is_pair and all(file.suffix.lower() == ".npz" for file in files)


def _of_pair(path: Path, *, channels: tuple[str, ...] | None = None, reading: LabelReading | None = None) -> Series:
    """The series of one file of a pair of a training and a test file."""
    found = _read(path, channels=channels, reading=reading)
    if isinstance(found, Splits):
        raise ValueError(f"{path}: holds a training and a test set, and lies beside another; keep one of them")
    return found


def _read(
    path: Path, *, channels: tuple[str, ...] | None = None, reading: LabelReading | None = None
) -> Series | Splits[Series]:
    """The series of one file, with their splits where it has them."""
    name = path.name.lower()
    if name.endswith(SOUND_SUFFIXES):
        return read_recording(path, channels)
    name = name.removesuffix(".gz")
    if name.endswith((".csv", PARQUET)):
        return read_csv(path, channels=channels, reading=reading)
    if name.endswith(".ts"):
        return read_ts(path, channels=channels, reading=reading)
    if name.endswith(UCR):
        return read_ucr(path, channels=channels, reading=reading)
    if not name.endswith(ARRAY_SUFFIXES):
        raise ValueError(f"{path}: is of no known kind; expected {', '.join((*KINDS, '.npy', *SOUND_SUFFIXES))}")
    return read_npz(path, channels=channels, reading=reading)


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
    kinds = ", ".join(KINDS)
    if not files and start is None:
        raise ValueError(f"no series at {str(path)!r}: the folder holds no file of {kinds}")
    if not files:
        close = difflib.get_close_matches(path.name, [file.name for file in _listed(folder)], n=1)
        hint = f"did you mean {str(folder / close[0])!r}?" if close else f"pass a file or a folder of {kinds}"
        raise ValueError(f"no series at {str(path)!r}: there is no such file or folder; {hint}")
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
    found = sorted(file for file in folder.iterdir() if file.name.lower().endswith(KINDS) and file.is_file())
    others = [file for file in found if not file.name.lower().endswith(TEXT)]
    return others or [file for file in found if _split_of(file)]


def _split_of(file: Path) -> str | None:
    return next((word for word in re.split(r"[._-]", file.name.lower()) if word in _WORDS), None)


def _stem(file: Path) -> str:
    """The name without its split and kind: `Gun` of `Gun_TRAIN.ts`."""
    words = re.split(r"[._-]", file.name)
    at = next((i for i, word in enumerate(words) if word.lower() in _WORDS), 1)
    return file.name[: len("_".join(words[:at]))]


def idx_pixels(folder: str | Path) -> Splits[SeriesSet]:
    """Images read pixel by pixel, row after row: sequential MNIST (Le, Jaitly, Hinton 2015).

    A folder in the format of MNIST becomes series of one channel, `pixel`, with brightness from 0 to 1 as samples.

    Raises:
        ValueError: `idx_folder` refuses the folder.
    """
    splits = idx_folder(folder)
    assert splits.test is not None
    return Splits(_pixels_of(splits.train), _pixels_of(splits.test))


def _pixels_of(images: ImageDataset) -> SeriesSet:
    every = torch.arange(len(images))
    values = images.images(every).flatten(1)[..., None].float() / 255
    return SeriesSet(
        values=values,
        lengths=torch.full((len(values),), values.shape[1]),
        answers=images.answers,
        channels=("pixel",),
        names=tuple(images.name(i) for i in range(len(values))),
    )
