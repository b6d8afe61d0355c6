"""Opening of every source of clouds: a folder of files, an .npz file, or the voxels of ModelNet10."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm._settings import check_count, refuse_idle
from fredholm.tasks.files.data_files import data_path, files_below
from fredholm.tasks.files.npz_arrays import ARRAY_SUFFIXES
from fredholm.tasks.files.parts import refuse_part, rows_of_part
from fredholm.tasks.files.read_errors import reads_data
from fredholm.tasks.files.read_every import read_every
from fredholm.tasks.splits.split_files import SPLITS, Split, split_folders
from fredholm.tasks.splits.split_marks import SplitMarks
from fredholm.tasks.targets import ClassAnswers, Kind, NumberAnswers
from fredholm.tasks.targets.labels_table import TABLE, labelled_files, warn_of_unnamed
from fredholm.tasks.targets.target import PLURALS

from .cloud_file import NUM_SAMPLES, SURFACES, TABLES, read_cloud
from .modelnet10_voxels import is_modelnet10_voxels, modelnet10_voxels
from .npz_file import clouds_of_npz, read_npz
from .point_set import Cloud, PointSet

KINDS = (*SURFACES, *TABLES, ".npz")
_UNNAMED = (".xyz", ".npz")
"""Suffixes of files that do not name features."""


@final
class _Files(NamedTuple):
    """Files, with the class or the numbers of each where known, and its split as an index into `SPLITS`.

    `marks` replace `split` where a table has groups or times too.
    """

    paths: list[Path]
    labels: list[str] | None = None
    split: Tensor | None = None
    numbers: NumberAnswers | None = None
    marks: SplitMarks | None = None


@reads_data
def open_points(
    data: str | Path,
    *,
    num_samples: int = NUM_SAMPLES,
    normals: bool = False,
    channels: tuple[str, ...] = (),
    kind: Kind | None = None,
) -> PointSet:
    """Open labelled clouds, with their split where they have one.

    In a folder with a table labels.csv, the table names the files (`labelled_files`), with a class or numbers for each.
    Else a folder has one subfolder a class, with files that `read_cloud` reads or .npz files of one cloud each; they
    are below `train`, `valid` and `test`, or have these below each class, as in ModelNet. Without classes, files are in
    the folder itself or in those of the splits, and their points have labels. The validation split may also be called
    `val`; it and the test split may be absent. Hidden files and those of other kinds are skipped.

    Args:
        data: such a folder, an .npz file (`read_npz`), or the file or folder of `modelnet10_voxels`.
        num_samples: points drawn on the surface of each mesh; refused where there is none.
        normals: add the normals of meshes as features; refused for files without faces.
        channels: names of the features of .xyz and .npz files that have no names, or the ones to read of an .npz file
            that has; refused where nothing reads them.
        kind: the kind of answers of the clouds, classes or numbers; None: whichever the source has.

    Raises:
        ValueError: there is nothing of that name, no file or no label, a file cannot be read, clouds have different
            features, a class is unknown in training, or a setting has no effect.
        ImportError: a file is a mesh, and trimesh is not installed.
    """
    check_count("points", "num_samples", num_samples)
    path = data_path(data)
    if is_modelnet10_voxels(path):
        _refuse(path, num_samples=num_samples, normals=normals, channels=channels)
        return modelnet10_voxels(path)
    if not path.is_dir():
        if path.suffix.lower() != ".npz":
            raise ValueError(f"no clouds at {str(path)!r}; pass a folder of clouds, or an .npz file of them")
        _refuse(path, num_samples=num_samples, normals=normals)
        found = read_npz(path, channels=channels or None)
    else:
        files = _tabled(path, kind) if (path / TABLE).is_file() else _listed(path)
        clouds = _read_all(files.paths, num_samples, normals, channels)
        if not any(cloud.is_sampled for cloud in clouds):
            _refuse(path, num_samples=num_samples)
        if not any(file.suffix.lower() in _UNNAMED for file in files.paths):
            _refuse(path, channels=channels)
        marks = SplitMarks(given=files.split) if files.marks is None else files.marks
        found = PointSet.pack(clouds, labels=files.labels, numbers=files.numbers, marks=marks)
    if found.answers is None and found.point_labels is None:
        raise ValueError(f"{path}: neither clouds nor their points have labels; put clouds into a folder a class, say")
    if kind is not None and found.answers is not None and found.answers.kind != kind:
        come, wanted = PLURALS[found.answers.kind], PLURALS[kind]
        raise ValueError(f"{path}: clouds have {come}; {wanted} stand in {TABLE}, or as targets in an .npz file")
    return found


@reads_data
def read_points(
    path: Path,
    *,
    num_samples: int = NUM_SAMPLES,
    normals: bool = False,
    channels: tuple[str, ...] | None = None,
    part: Split | None = None,
) -> PointSet:
    """Read one file of one or, in an .npz or .npy file, several clouds; see `read_cloud` and `read_npz`.

    Args:
        path: the file.
        num_samples, normals: as in `open_points`, for meshes.
        channels: the features that it must have; None: all.
        part: of a file with a split; see `choose_part`.

    Raises:
        ValueError: it cannot be read, has other features, or no such part.
    """
    if path.suffix.lower() not in ARRAY_SUFFIXES:
        refuse_part(path, part)
        return PointSet.pack([read_cloud(path, num_samples=num_samples, normals=normals, channels=channels)])
    found = read_npz(path, channels=channels)
    rows = rows_of_part(path, found.marks.given, part)
    return found if rows is None else found.select(rows)


def _tabled(root: Path, kind: Kind | None) -> _Files:
    """The files that a table names."""
    found = labelled_files(root, "cloud", kind)
    for file in found.files:
        if file.suffix.lower() not in KINDS:
            raise ValueError(f"{root / TABLE}: {file.name} is no cloud; expected files of {', '.join(KINDS)}")
    warn_of_unnamed(root, [*found.files, root / TABLE], KINDS, "cloud")
    answers = found.answers
    if isinstance(answers, NumberAnswers):
        return _Files(found.files, numbers=answers, marks=found.marks)
    if not isinstance(answers, ClassAnswers):
        raise ValueError(
            f"{root / TABLE}: has several labels a cloud; clouds have one class or numbers: give a column 'label', or "
            "set target to 'number'"
        )
    return _Files(found.files, [answers.names[i] for i in answers.values.tolist()], marks=found.marks)


def _listed(root: Path) -> _Files:
    """The files of a folder."""
    folders, splits = _subfolders(root), split_folders(root)
    if splits and len(splits) == len(folders):
        return _of_splits(root, {split: _below(folder) for split, folder in splits.items()})
    own = {name: split_folders(root / name) for name in folders}
    has_split = [name for name in folders if own[name]]
    if not has_split:
        return _below(root)
    if unsplit := [name for name in folders if not own[name]]:
        raise ValueError(f"{root / unsplit[0]}: has no folder train, but {root / has_split[0]} has; split all or none")
    parts: dict[Split, _Files] = {}
    for split in SPLITS:
        if any(split in found for found in own.values()):
            parts[split] = _joined([(_files(own[name].get(split, root / name / split)), name) for name in folders])
    return _of_splits(root, parts)


def _of_splits(root: Path, parts: dict[Split, _Files]) -> _Files:
    """The files of all splits."""
    named = [split for split, part in parts.items() if part.labels is not None]
    if named and len(named) < len(parts):
        bare = next(split for split in parts if split not in named)
        raise ValueError(f"{root}: the {named[0]} split has class folders, and the {bare} split none; give both some")
    return _Files(
        [path for part in parts.values() for path in part.paths],
        [label for part in parts.values() for label in part.labels or ()] if named else None,
        torch.tensor([SPLITS.index(split) for split, part in parts.items() for _ in part.paths]),
    )


def _below(root: Path) -> _Files:
    """The files of a folder, by classes where it has subfolders."""
    folders = _subfolders(root)
    if not folders:
        return _Files(_files(root))
    return _joined([(_files(root / name), name) for name in folders])


def _joined(parts: Sequence[tuple[list[Path], str]]) -> _Files:
    return _Files([file for files, _ in parts for file in files], [name for files, name in parts for _ in files])


def _subfolders(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def _files(folder: Path) -> list[Path]:
    """The clouds at any depth of a folder, by name."""
    found = sorted(path for path in (files_below(folder) if folder.is_dir() else ()) if path.suffix.lower() in KINDS)
    if not found:
        raise ValueError(f"{folder}: has no clouds ({', '.join(KINDS)}); add some, or remove the folder")
    return found


def _read_all(paths: list[Path], num_samples: int, normals: bool, channels: tuple[str, ...]) -> list[Cloud]:
    def read(file: Path) -> Cloud:
        kind = file.suffix.lower()
        named = (channels or None) if kind in _UNNAMED else None
        if kind == ".npz":
            return _single(file, named)
        return read_cloud(file, num_samples=num_samples, normals=normals, channels=named)

    return read_every(paths, read, "reading clouds")


def _single(file: Path, channels: tuple[str, ...] | None) -> Cloud:
    found = clouds_of_npz(file, channels)
    if len(found) != 1:
        raise ValueError(f"{file}: has {len(found)} clouds; a file in a folder has one; pass the file itself")
    return found[0]


def _refuse(path: Path, **given: object) -> None:
    meshes, names = f"{path}, where there are no meshes", f"{path}, whose features have names, or none"
    for name, value in given.items():
        because, instead = (names, "pass others") if name == "channels" else (meshes, "pass some")
        refuse_idle("", open_points, because, instead, **{name: value})
