"""Recordings of sound as series: one file each, in class folders or listed in a table, decoded on demand."""

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, final

import numpy as np
import torch

from fredholm.tasks.files.channel_names import chosen_channels
from fredholm.tasks.files.class_folders import class_folders, files_of_kinds
from fredholm.tasks.files.read_every import read_every
from fredholm.tasks.files.read_record import recorded
from fredholm.tasks.splits.split_marks import NO_MARKS, SplitMarks
from fredholm.tasks.splits.splits import Splits
from fredholm.tasks.targets import Answers, ClassAnswers, Kind
from fredholm.tasks.targets.labels_table import TABLE, labelled_files, warn_of_unnamed

from .series_set import Series, SeriesSet
from .stored_series import StoredSeries

SOUND_SUFFIXES = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".aiff", ".aif")


@final
@dataclass(frozen=True, kw_only=True)
class Recordings(StoredSeries):
    """Recordings at one rate, each in its own file, which is decoded on demand.

    Amplitudes are float32; those that were whole numbers are from -1 to below 1.

    Args:
        files: files that `places` index.
    """

    files: tuple[Path, ...]

    @property
    def shards(self) -> None:
        """None: each recording is a separate file."""
        return None

    @property
    def _longest(self) -> int:
        return int(self.lengths.max()) if len(self) else 1

    def _values(self) -> Sequence[np.ndarray]:
        places = zip(self.places.tolist(), self.lengths.tolist(), strict=True)
        return [_decoded(self.files[place], length) for place, length in places]


def has_recordings(folder: Path) -> bool:
    """Whether a folder holds recordings at any depth."""
    return bool(files_of_kinds(folder, SOUND_SUFFIXES))


def read_recordings(root: Path, kind: Kind | None = None) -> Splits[Series]:
    """The recordings of a folder: those listed in `labels.csv` (`labelled_files`), or those of `class_folders`.

    Args:
        root: the folder.
        kind: kind of the answers in the table; None: inferred from the cells. Folders are classes.

    Raises:
        ValueError: `labelled_files` or `class_folders` refuses the folder; it has neither a table nor subfolders; a
            file cannot be decoded, is empty, or has another number of channels than the first.
        ImportError: soundfile is not installed.
    """
    if (root / TABLE).is_file():
        files, answers, marks = labelled_files(root, "recording", kind)
        whole = _opened(files, root, answers, marks)
        try:
            splits: Splits[Series] = marks.divided(whole)
        except ValueError as error:
            raise ValueError(f"{root / TABLE}: {error}") from error
        warn_of_unnamed(root, files, SOUND_SUFFIXES, "recording")
        return splits
    if kind not in (None, "class"):
        raise ValueError(f"target is {kind!r}, but the folders of {root} are classes; leave it out, or add {TABLE}")
    if not any(each.is_dir() and not each.name.startswith(".") for each in root.iterdir()):
        raise ValueError(
            f"{root}: nothing is known of its recordings; put them into one subfolder a class, or name them in {TABLE} "
            "with the columns file and label"
        )
    classes, parts = class_folders(root, SOUND_SUFFIXES, "recordings", "dog/1.wav")
    every = [file for files, _ in parts.values() for file in files]
    labels = [label for _, labels in parts.values() for label in labels]
    whole = _opened(every, root, ClassAnswers(names=classes, values=torch.tensor(labels, dtype=torch.int64)), NO_MARKS)
    if len(parts) == 1:
        return Splits(whole, is_given=False)
    ends = np.cumsum([len(files) for files, _ in parts.values()])
    found = {
        split: whole.select(torch.arange(int(end) - len(files), int(end)))
        for (split, (files, _)), end in zip(parts.items(), ends, strict=True)
    }
    return Splits(found["train"], found.get("test"), found.get("valid"))


def read_recording(path: Path, channels: tuple[str, ...] | None = None) -> Series:
    """One recording, without a label.

    Args:
        path: the file.
        channels: names of the channels, as many as the file has; None: any.

    Raises:
        ValueError: it cannot be decoded, is empty, or has another number of channels.
        ImportError: soundfile is not installed.
    """
    return _opened([path], path.parent, None, NO_MARKS, channels)


@final
class _Header(NamedTuple):
    """Rate and size of a recording, from the header of its file."""

    rate: int
    num_samples: int
    num_channels: int


def _opened(
    files: Sequence[Path],
    root: Path,
    answers: Answers | None,
    marks: SplitMarks,
    channels: tuple[str, ...] | None = None,
) -> Series:
    """Recordings, named by their paths relative to `root`; with several rates they are read with their times."""
    headers = read_every(files, lambda file: _header(recorded(file)), "reading headers")
    for file, header in zip(files, headers, strict=True):
        if header.num_channels != headers[0].num_channels:
            raise ValueError(
                f"{file}: has {_channels(header.num_channels)}, and {files[0]} {_channels(headers[0].num_channels)}; "
                "give all as many"
            )
    names = tuple(file.relative_to(root).as_posix() for file in files)
    try:
        named = chosen_channels(headers[0].num_channels, own=None, known=channels)[0]
    except ValueError as error:
        raise ValueError(f"{files[0]}: {error}") from error
    if len({header.rate for header in headers}) == 1:
        return Recordings(
            files=tuple(files),
            places=torch.arange(len(files)),
            lengths=torch.tensor([header.num_samples for header in headers], dtype=torch.int64),
            spacing=1 / headers[0].rate,
            answers=answers,
            channels=named,
            names=names,
            marks=marks,
        ).check()
    return SeriesSet.pack(
        [_decoded(file, header.num_samples) for file, header in zip(files, headers, strict=True)],
        times=[np.arange(header.num_samples) / header.rate for header in headers],
        answers=answers,
        channels=named,
        names=names,
        marks=marks,
    )


def _channels(count: int) -> str:
    return f"{count} channel{'s' * (count > 1)}"


@contextmanager
def _soundfile_errors(path: Path) -> Iterator[None]:
    """Turns errors of soundfile in reading a file into the errors of readers."""
    if importlib.util.find_spec("soundfile") is None:
        raise ImportError(f'{path}: recordings are read by soundfile, which is missing: pip install "fredholm[audio]"')
    import soundfile

    try:
        yield
    except soundfile.SoundFileError as error:
        raise ValueError(f"{path}: cannot be decoded; expected {', '.join(SOUND_SUFFIXES)}") from error


def _header(path: Path) -> _Header:
    with _soundfile_errors(path):
        import soundfile

        found = soundfile.info(str(path))
    if found.frames < 1:
        raise ValueError(f"{path}: has no samples; expected at least one")
    return _Header(found.samplerate, found.frames, found.channels)


def _decoded(path: Path, num_samples: int) -> np.ndarray:
    """`(samples, C)`, float32."""
    with _soundfile_errors(path):
        import soundfile

        values, _ = soundfile.read(str(path), dtype="float32", always_2d=True)
    if len(values) != num_samples:
        raise ValueError(f"{path}: says that it has {num_samples:,} samples, and has {len(values):,}; write it again")
    return values
