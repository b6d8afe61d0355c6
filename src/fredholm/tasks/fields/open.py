"""Opening of every source of sampled functions."""

import contextlib
import dataclasses
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fredholm._settings import refuse_idle
from fredholm.domains import Grid
from fredholm.tasks.files.arrow_table import PARQUET
from fredholm.tasks.files.data_files import data_path
from fredholm.tasks.files.npz_arrays import ARRAY_SUFFIXES, array_names, load_arrays, refuse_unread
from fredholm.tasks.files.parts import part_of, refuse_part
from fredholm.tasks.files.read_errors import reads_data
from fredholm.tasks.images import ImageDataset, open_images
from fredholm.tasks.images.arrays import KERAS, MEDMNIST
from fredholm.tasks.splits.split_files import Split
from fredholm.tasks.splits.splits import Splits

from .csv_file import read_csv
from .field_set import FieldSet, Samples
from .neuralop import Problem, is_neuralop, neuralop
from .npz_file import KNOWN, ROWS, WHOLE, read_npz, read_npz_shards, unnamed_channels, unnamed_coordinates

FIELD_TABLES = (".csv", ".csv.gz", PARQUET)
"""Suffixes of tables of samples."""
ALONG_ROWS = ("y", "x")
"""Coordinates of images: down and to the right, from 0 to 1, as rows and columns."""
CHUNK = 4096
"""Images that are read at a time."""


@reads_data
def open_fields(data: str | Path, *, coordinates: tuple[str, ...] = ()) -> Splits[FieldSet]:
    """Opens sampled functions with their splits, or all as one set.

    Args:
        data: a .csv file (`read_csv`, also gzipped), an .npz file (`read_npz`), a folder of .npz files
            (`read_npz_shards`), the .npz file of `neuralop`, or any source of `tasks.images.open_images`, whose images
            become functions (`image_fields`).
        coordinates: columns of a table that are coordinates; empty: the existing ones of x, y and z. Refused for other
            sources.

    Raises:
        ValueError: the path does not exist, the source is invalid, or a setting has no effect.
    """
    path = data_path(data)
    if not path.name.lower().endswith(FIELD_TABLES):
        refuse_idle("", open_fields, f"{path}, which is no table", "pass a .csv file", coordinates=coordinates)
    if path.is_file() and is_neuralop(path):
        return neuralop(path)
    if not _has_shards(path) and (
        not path.is_file() or not path.name.lower().endswith((*FIELD_TABLES, ".npz")) or _holds_images(path)
    ):
        return image_fields(open_images(data))
    if path.is_dir():
        found = read_npz_shards(path)
    else:
        found = read_fields(path, coordinates=coordinates) if path.suffix.lower() != ".npz" else read_npz(path)
    if isinstance(found, Splits):
        return found
    if len(found) < 2:
        raise ValueError(
            f"{path}: holds one function; expected one to learn from and one to test on at least; in a table the "
            "column 'field' distinguishes them. To learn a single function use `fredholm train table` on a table whose "
            "rows are samples: the coordinates, and --task.label-columns with the value"
        )
    return Splits(found, is_given=False)


@reads_data
def open_functions(
    data: str | Path,
    *,
    coordinates: tuple[str, ...] = (),
    targets: tuple[str, ...] = (),
    problem: Problem = "darcy",
    resolution: int = 16,
) -> Splits[FieldSet] | FieldSet:
    """Opens pairs of input and target functions, with their split, where they have one.

    Args:
        data: an .npz file (`read_npz`) with `target_values` or `trajectories`, a folder of these, that of `neuralop`, a
            .csv file with target columns `targets`, or a folder with `given.csv` and `target.csv`, whose functions are
            matched by the column `field` and may have different points.
        coordinates: columns of a table that are coordinates; empty: the existing ones of x, y and z.
        targets: target columns of a single table.
        problem, resolution: settings of the data set of `neuralop`.

    Raises:
        ValueError: the path does not exist, the source is invalid, there are no targets, or a setting has no effect.
    """
    path = data_path(data)
    is_table = path.name.lower().endswith(FIELD_TABLES)
    for because, idle, instead in (
        (is_table or path.is_dir(), {"coordinates": coordinates}, "pass a .csv file"),
        (is_table, {"targets": targets}, "pass a .csv file"),
        (is_neuralop(path), {"problem": problem, "resolution": resolution}, "pass neuralop_pde.npz"),
    ):
        if not because:
            refuse_idle("", open_functions, f"{path}, which has none", instead, **idle)
    if path.is_file() and is_neuralop(path):
        return neuralop(path, problem, resolution)
    has_shards = _has_shards(path)
    if path.is_dir() and not has_shards:
        return _matched(path, coordinates)
    if not has_shards and (not path.is_file() or not (is_table or path.suffix.lower() == ".npz")):
        raise ValueError(
            f"no functions at {str(path)!r}; pass an .npz file or a folder of these, a .csv file, or a folder with "
            "given.csv and target.csv"
        )
    if is_table:
        found = _with_targets(read_csv(path, coordinates=coordinates), targets, path)
    else:
        found = read_npz_shards(path) if has_shards else read_npz(path)
    for part in (found.train, found.valid, found.test) if isinstance(found, Splits) else (found,):
        if part is not None and part.other_targets is None:
            raise ValueError(
                f"{path}: has no target functions; expected the array target_values or trajectories, or in a "
                "table the columns of --task.targets"
            )
    return found


def read_functions(
    path: Path,
    *,
    coordinates: tuple[str, ...],
    channels: tuple[str, ...],
    targets: tuple[str, ...],
    part: Split | None = None,
) -> FieldSet:
    """Reads functions of a file, or of a folder with `given.csv` and `target.csv`, for a prediction.

    Target functions are read too, where they exist.

    Raises:
        ValueError: see `read_fields`, and `open_functions` of folders.
    """
    if path.is_dir():
        refuse_part(path, part)
        return _matched(path, coordinates, channels, targets)
    if path.name.lower().endswith(FIELD_TABLES):
        refuse_part(path, part)
        with contextlib.suppress(ValueError):  # a table without targets is read below, which reports its mistakes
            whole = read_csv(path, coordinates=coordinates, channels=(*channels, *targets))
            return _with_targets(whole, targets, path)
    return read_fields(path, coordinates=coordinates, channels=channels, part=part)


def _with_targets(table: FieldSet, targets: tuple[str, ...], path: Path) -> FieldSet:
    """Returns a table with columns of these names as targets; unchanged where there are none."""
    if not targets:
        return table
    if missing := [name for name in targets if name not in table.channels]:
        raise ValueError(f"{path}: no column {missing[0]!r} with values; the columns are {', '.join(table.channels)}")
    channels = tuple(name for name in table.channels if name not in targets)
    if not channels:
        raise ValueError(f"{path}: all columns with values are targets; expected at least one that is given")
    given, other = (
        table.given.with_values(table.given.values[..., [table.channels.index(name) for name in names]])
        for names in (channels, targets)
    )
    return dataclasses.replace(table, given=given, other_targets=other, channels=channels, other_channels=targets)


def _matched(
    folder: Path,
    coordinates: tuple[str, ...],
    channels: tuple[str, ...] | None = None,
    targets: tuple[str, ...] | None = None,
) -> FieldSet:
    """Returns the functions of given.csv, with those of target.csv of the same names."""
    given, other = (
        read_csv(_table(folder, name), coordinates=coordinates, channels=columns)
        for name, columns in (("given", channels), ("target", targets))
    )
    if given.coordinates != other.coordinates:
        raise ValueError(
            f"{folder}: given.csv has the coordinates {', '.join(given.coordinates)}, target.csv "
            f"{', '.join(other.coordinates)}; make them equal"
        )
    named = [[name.partition(", ")[2] for name in fields.names] for fields in (given, other)]
    for ours, theirs, file in ((*named, "target.csv"), (*named[::-1], "given.csv")):
        if alone := sorted(set(ours) - set(theirs)):
            raise ValueError(f"{folder / file}: has no {alone[0] or 'function'}, which the other file has")
    place = {name: i for i, name in enumerate(named[1])}
    order = torch.tensor([place[name] for name in named[0]])
    return dataclasses.replace(given, other_targets=other.given.select(order), other_channels=other.channels)


def is_function_folder(folder: Path) -> bool:
    """Whether a folder has the tables of `read_functions`."""
    return any((folder / f"given{suffix}").is_file() for suffix in FIELD_TABLES)


def _table(folder: Path, name: str) -> Path:
    for suffix in FIELD_TABLES:
        if (folder / f"{name}{suffix}").is_file():
            return folder / f"{name}{suffix}"
    raise ValueError(f"{folder}: has no {name}.csv; expected given.csv and target.csv")


@reads_data
def read_fields(
    path: Path,
    *,
    coordinates: tuple[str, ...] = (),
    channels: tuple[str, ...] | None = None,
    part: Split | None = None,
) -> FieldSet:
    """Reads one file of sampled functions; see `read_csv` and `read_npz`.

    Args:
        path: the file.
        coordinates, channels: columns of a table, or the required names of an array file, in order where it has names.
        part: part of a file with a split; see `choose_part`.

    Raises:
        ValueError: its kind is unknown, it is invalid, or has no such part, or other coordinates or channels.
    """
    if path.name.lower().endswith(FIELD_TABLES):
        refuse_part(path, part)
        return read_csv(path, coordinates=coordinates, channels=channels)
    if not path.name.lower().endswith(ARRAY_SUFFIXES):
        raise ValueError(f"{path}: is of no known kind; expected {', '.join((*FIELD_TABLES, *ARRAY_SUFFIXES))}")
    found = part_of(path, read_npz(path), part)
    for what, got, expected, unnamed in (
        ("coordinates", found.coordinates, coordinates or None, unnamed_coordinates),
        ("channels", found.channels, channels, unnamed_channels),
    ):
        if expected is None:
            continue
        # names contradict each other only where both sides have them, or where they are the same in another order
        are_named = got != unnamed(len(got)) and (expected != unnamed(len(expected)) or {*got} == {*expected})
        if len(got) != len(expected) or (are_named and got != expected):
            raise ValueError(f"{path}: has the {what} {', '.join(got)}; expected {', '.join(expected)}, in this order")
    return found


@reads_data
def read_places(path: Path, coordinates: tuple[str, ...]) -> Tensor:
    """Reads positions, `(N, s)` in float64: the coordinates of a table, or the array `pos` of an .npz file.

    Raises:
        ValueError: its kind is unknown, it is invalid, of other coordinates, or of several functions.
    """
    if path.suffix.lower() != ".npz":
        found = read_fields(path, coordinates=coordinates, channels=())
        if len(found) != 1:
            raise ValueError(f"{path}: holds the places of {len(found)} functions; expected those of one")
        return found.given.pos[0]
    arrays = load_arrays(path)
    try:
        refuse_unread(arrays, (*KNOWN, *WHOLE), form="")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    pos = arrays.get("pos", np.empty(0))
    if (
        pos.dtype.kind not in "iuf"
        or pos.ndim != 2
        or pos.shape[1:] != (len(coordinates),)
        or not pos.size
        or not np.isfinite(pos).all()
    ):
        raise ValueError(
            f"{path}: pos is {pos.dtype} {pos.shape}; expected finite numbers (N, {len(coordinates)}) of "
            f"{', '.join(coordinates)}"
        )
    return torch.from_numpy(pos).double()


def _has_shards(path: Path) -> bool:
    """Whether a folder has .npz files of functions."""
    if not path.is_dir() or is_function_folder(path):
        return False
    first = next((file for file in sorted(path.iterdir()) if file.suffix.lower() == ".npz"), None)
    return first is not None and bool({*ROWS} & {*array_names(first)})


def _holds_images(path: Path) -> bool:
    if path.suffix.lower() != ".npz":
        return False
    names = array_names(path)
    return any(layout.named("train")[0] in names for layout in (KERAS, MEDMNIST))


def image_fields(images: Splits[ImageDataset]) -> Splits[FieldSet]:
    """Converts images to functions of the plane: brightness from 0 to 1 at the pixel centres; labels are dropped."""
    train, test, valid = (
        None if part is None else _sampled(part) for part in (images.train, images.test, images.valid)
    )
    assert train is not None
    return Splits(train, test, valid, is_given=images.is_given)


def _sampled(images: ImageDataset) -> FieldSet:
    n, (height, width) = len(images), images.image_size
    values = torch.empty(n, height * width, images.channels)
    for indices in torch.arange(n).split(CHUNK):
        values[indices] = images.images(indices).flatten(2).mT.float() / 255
    return FieldSet(
        given=Samples(Grid(height, width).pos.expand(n, -1, -1), values, None),
        coordinates=ALONG_ROWS,
        channels=("grey",) if images.channels == 1 else ("red", "green", "blue"),
        names=tuple(images.name(i) for i in range(n)),
    )
