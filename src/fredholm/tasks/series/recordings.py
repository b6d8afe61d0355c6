"""Recordings of sound as series: a file each, in class folders or named by a table, decoded when they are asked for."""

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Self, final

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from fredholm.tasks.files.class_folders import class_folders, files_of_kinds
from fredholm.tasks.files.noted import noted
from fredholm.tasks.splits.split_marks import NO_MARKS, SplitMarks
from fredholm.tasks.splits.splits import Splits
from fredholm.tasks.targets import Answers, ClassAnswers, Kind
from fredholm.tasks.targets.labels_table import TABLE, labelled_files, warn_of_unnamed

from .naming import unnamed_channels
from .series_set import Series, SeriesSet

SOUND_SUFFIXES = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".aiff", ".aif")
CHUNK = 1 << 21
"""Values that are decoded at a time where all are, padded to the longest."""


@final
@dataclass(frozen=True, kw_only=True)
class Recordings(Series):
    """n recordings of C channels at one rate, in files that stay encoded until they are asked for.

    Args:
        files: one a recording.
        lengths: int64 `(n,)`, samples of each.
        spacing: seconds between two samples.
        answers, channels, names, marks: see `SeriesSet`.
    """

    files: tuple[Path, ...]
    lengths: Tensor
    spacing: float
    answers: Answers | None
    channels: tuple[str, ...]
    names: tuple[str, ...]
    marks: SplitMarks

    @property
    def is_regular(self) -> bool:
        """True."""
        return True

    @property
    def extents(self) -> Tensor:
        """See `Series.extents`."""
        return (self.lengths - 1).double() * self.spacing

    @property
    def shards(self) -> None:
        """None: each file lies for itself."""
        return None

    def select(self, indices: Tensor) -> Self:
        """Those at `indices`, int64 `(m,)`, which stay where they are."""
        chosen = indices.tolist()
        return replace(
            self,
            files=tuple(self.files[i] for i in chosen),
            lengths=self.lengths[indices],
            answers=None if self.answers is None else self.answers.select(indices),
            names=tuple(self.names[i] for i in chosen),
            marks=self.marks.select(indices),
        )

    def read(self, indices: Tensor) -> SeriesSet:
        """See `Series.read`: amplitudes in float32, of whole numbers from -1 to below 1.

        Raises:
            ValueError: a file cannot be decoded, or has not as many samples as it says; a sample is infinite.
        """
        some = self.select(indices)
        values = [_decoded(file, length) for file, length in zip(some.files, some.lengths.tolist(), strict=True)]
        return SeriesSet.pack(
            values,
            spacing=self.spacing,
            answers=some.answers,
            channels=self.channels,
            names=some.names,
            marks=some.marks,
        )

    def chunks(self) -> Iterator[SeriesSet]:
        """See `Series.chunks`."""
        longest = int(self.lengths.max()) if len(self) else 1
        size = max(1, CHUNK // (longest * len(self.channels)))
        return (self.read(indices) for indices in torch.arange(len(self)).split(size))

    def check(self) -> Self:
        """They, once all were decoded and none was refused."""
        with tqdm(total=len(self), desc="reading recordings", unit="file", delay=1.0, leave=False, disable=None) as bar:
            for chunk in self.chunks():
                bar.update(len(chunk))
        return self


def has_recordings(folder: Path) -> bool:
    """Whether there are some at any depth of a folder."""
    return bool(files_of_kinds(folder, SOUND_SUFFIXES))


def read_recordings(root: Path, kind: Kind | None = None) -> Splits[Series]:
    """The recordings of a folder: those that `labels.csv` names (`labelled_files`), or those of `class_folders`.

    Args:
        root: the folder.
        kind: what the answers of a table are; None: as the cells say. Folders are classes.

    Raises:
        ValueError: what these refuse; there are neither; a file cannot be decoded, is empty, or has another number of
            channels than the first.
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
    """One recording, of which nothing else is known.

    Args:
        path: the file.
        channels: the known ones, as many as it has; None: any.

    Raises:
        ValueError: it cannot be decoded, is empty, or has another number of channels.
        ImportError: soundfile is not installed.
    """
    return _opened([path], path.parent, None, NO_MARKS, channels)


@final
class _Header(NamedTuple):
    """What a file says of itself."""

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
    """Recordings whose names are told from the folder `root` on; of several rates all are read, with their times."""
    bar = tqdm(files, desc="reading headers", unit="file", delay=1.0, leave=False, disable=None)
    headers = [_header(noted(file)) for file in bar]
    for file, header in zip(files, headers, strict=True):
        if header.num_channels != headers[0].num_channels:
            raise ValueError(
                f"{file}: has {_channels(header.num_channels)}, and {files[0]} {_channels(headers[0].num_channels)}; "
                "give all as many"
            )
    names = tuple(file.relative_to(root).as_posix() for file in files)
    try:
        named = unnamed_channels(headers[0].num_channels, channels)
    except ValueError as error:
        raise ValueError(f"{files[0]}: {error}") from error
    if len({header.rate for header in headers}) == 1:
        return Recordings(
            files=tuple(files),
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
def _told(path: Path) -> Iterator[None]:
    """What stands in it reads a file with soundfile, whose errors become those of a reader."""
    if importlib.util.find_spec("soundfile") is None:
        raise ImportError(f'{path}: recordings are read by soundfile, which is missing: pip install "fredholm[audio]"')
    import soundfile

    try:
        yield
    except soundfile.SoundFileError as error:
        raise ValueError(f"{path}: cannot be decoded; expected {', '.join(SOUND_SUFFIXES)}") from error


def _header(path: Path) -> _Header:
    with _told(path):
        import soundfile

        found = soundfile.info(str(path))
    if found.frames < 1:
        raise ValueError(f"{path}: has no samples; expected at least one")
    return _Header(found.samplerate, found.frames, found.channels)


def _decoded(path: Path, num_samples: int) -> np.ndarray:
    """`(samples, C)`, float32."""
    with _told(path):
        import soundfile

        values, _ = soundfile.read(str(path), dtype="float32", always_2d=True)
    if len(values) != num_samples:
        raise ValueError(f"{path}: says that it has {num_samples:,} samples, and has {len(values):,}; write it anew")
    return values
