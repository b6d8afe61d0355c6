"""Opening of every source of images with masks: a folder of files, or an .npz file."""

import os
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm.tasks.files.data_files import data_path
from fredholm.tasks.files.read_errors import reads_data
from fredholm.tasks.files.read_every import read_every
from fredholm.tasks.files.table_text import columns_by_word
from fredholm.tasks.files.terminal_text import first_few
from fredholm.tasks.images.read import IMAGE_SUFFIXES, is_grey, size_of
from fredholm.tasks.images.resize import check_image_size
from fredholm.tasks.sentences.table import read_table
from fredholm.tasks.splits.split_files import SPLITS, split_folders
from fredholm.tasks.splits.split_marks import MARKS, SplitMarks, marks_of_cells

from .classes import named_classes
from .mask_set import IGNORED, MaskedImages, MaskFiles
from .npz_file import masks_of_npz, masks_of_shards
from .read import read_mask

IMAGES, MASKS, CLASSES, TABLE = "images", "masks", "classes.txt", "images.csv"
"""Names of the folders, the file of class names and the table of images."""
_USUAL = ("file", *MARKS)
"""Columns of the table."""

_Pair = tuple[Path, Path]


@final
class _Inspected(NamedTuple):
    """Size of an image, whether it is grey, and the class numbers in its mask, the largest last."""

    size: tuple[int, int]
    is_grey: bool
    numbers: list[int]


@reads_data
def open_masks(data: str | Path, *, image_size: tuple[int, int] | None = None) -> MaskedImages:
    """Opens images with a class per pixel, with their split where they have one.

    A folder has `images`, image files, and `masks`, PNG files of the same names up to the suffix (`read_mask`), or
    these names capitalised, as `Images`; or `train`, `valid` (or `val`) and `test` with these two below each, of which
    the last two may be absent. Values of masks are class numbers from 0; 255 is a pixel whose class is unknown.
    `classes.txt` beside them has a class name a line, in the order of the numbers; without it the names are the
    numbers, up to the largest in any mask. An optional `images.csv` divides the images: `file`, the path of each image
    in the folder, and columns `split`, `group` or `time` (see `marks_of_cells`), in any case. Hidden files and those of
    other kinds are skipped. Every mask is read here, images only on demand.

    Args:
        data: such a folder, an .npz file (`masks_of_npz`), or a folder of these (`masks_of_shards`).
        image_size: height and width to return (images are scaled to cover it and cropped, with their masks); None: the
            size that all images share.

    Raises:
        ValueError: the path does not exist, an image has no mask or a mask no image, sizes differ, a number has no
            class, there are fewer than two classes, no pixel has a class, a file cannot be read, or a table does not
            name each image once.
        ImportError: pillow is not installed.
    """
    if image_size is not None:
        check_image_size(image_size)
    path = data_path(data)
    if path.is_dir():
        has_arrays = _below(path, IMAGES) is None and any(each.suffix.lower() == ".npz" for each in path.iterdir())
        found = masks_of_shards(path, image_size) if has_arrays else _folder(path, image_size)
    elif path.suffix.lower() == ".npz" and path.is_file():
        found = masks_of_npz(path, image_size)
    else:
        raise ValueError(
            f"no images at {str(path)!r}; pass a folder with {IMAGES} and {MASKS}, an .npz file, or a folder of these"
        )
    if len(found.classes) < 2:
        raise ValueError(
            f"{path} has the classes {list(found.classes)}; expected at least 2 ({IGNORED} says that a class is not "
            f"known; in masks of 0 and {IGNORED} write 1 for {IGNORED})"
        )
    return found


def truth_beside(file: Path) -> Path | None:
    """Returns the mask of an image in a folder `images`; None where there is none."""
    masks = _below(file.parent.parent, MASKS) if file.parent.name.lower() == IMAGES else None
    mask = None if masks is None else masks / f"{file.stem}.png"
    return mask if mask is not None and mask.is_file() else None


def _below(folder: Path, name: str) -> Path | None:
    """Returns the subfolder of that name, in any case; None where there is none, or more than one."""
    if (folder / name).is_dir():
        return folder / name
    found = [each for each in folder.iterdir() if each.name.lower() == name and each.is_dir()]
    return found[0] if len(found) == 1 else None


def _folder(root: Path, image_size: tuple[int, int] | None) -> MaskedImages:
    parts = {} if _below(root, IMAGES) is not None else split_folders(root)
    named = named_classes(root / CLASSES)
    pairs: list[_Pair] = []
    split: list[int] = []
    for part, folder in (parts or {"train": root}).items():
        own = _pairs(folder)
        pairs += own
        split += [SPLITS.index(part)] * len(own)
    sizes, all_grey, largest, is_labelled = [], True, -1, list[bool]()
    for found in _inspected(pairs, None if named is None else len(named)):
        numbers = found.numbers
        sizes.append(found.size)
        all_grey &= found.is_grey
        largest = max(largest, *numbers, -1)
        is_labelled.append(len(numbers) > 0)
    marks = _marks(root, pairs, torch.tensor(split) if parts else None)
    given = torch.zeros(len(pairs)) if marks.given is None else marks.given
    for number, part in enumerate(SPLITS):
        own = torch.tensor(is_labelled)[given == number]
        if len(own) and not bool(own.any()):
            where = f"{root}" if marks.given is None else f"{root}, {part} split"
            raise ValueError(f"{where}: all pixels of all masks are {IGNORED}, not labelled; give some a class")
    if image_size is None:
        other = next((i for i, size in enumerate(sizes) if size != sizes[0]), None)
        if other is not None:
            raise ValueError(
                f"images differ in size: {pairs[0][0]} is {_text(sizes[0])}, {pairs[other][0]} is "
                f"{_text(sizes[other])}; pass image_size, the height and width to bring all to"
            )
    source = MaskFiles(pairs, channels=1 if all_grey else 3, image_size=image_size or sizes[0])
    classes = tuple(map(str, range(largest + 1))) if named is None else named
    return MaskedImages(source, classes, marks=marks)


def _marks(root: Path, pairs: list[_Pair], split: Tensor | None) -> SplitMarks:
    """Reads the table of images, if there is one; adds the split by folders."""
    file = root / TABLE
    if not file.is_file():
        return SplitMarks(given=split)
    table = read_table(file)
    try:
        columns = columns_by_word(table.names, _USUAL)
    except ValueError as error:
        raise ValueError(f"{file}, {error}") from error
    words = [word for word in MARKS if word in columns]
    if "file" not in columns or not words or set(columns) - set(_USUAL):
        raise ValueError(
            f"{file}, line 1: the columns are {', '.join(table.names)}; expected file, and split, group or time, and "
            "no others"
        )
    if split is not None and "split" in words:
        raise ValueError(f"{file}, line 1: has a column 'split', but images are in folders of splits; leave it out")
    rows = {row.cells[columns["file"]].strip(): row for row in table.rows}
    if len(rows) < len(table.rows):
        raise ValueError(f"{file}: names an image twice; expected a row an image")
    names = [image.relative_to(root).as_posix() for image, _ in pairs]
    for name in names:
        if name not in rows:
            raise ValueError(f"{file}: has no row of {name}; expected one of each image")
    if unknown := rows.keys() - set(names):
        raise ValueError(f"{file}: names {min(unknown)!r}, which is none of the images; expected such as {names[0]}")
    marks = marks_of_cells(
        {word: [rows[name].cells[columns[word]] for name in names] for word in words},
        lambda i, word: f"{file}, line {rows[names[i]].line}: column {columns[word]!r}",
    )
    return marks if split is None else replace(marks, given=split)


def _pairs(folder: Path) -> list[_Pair]:
    """Returns the images of a folder with their masks, by name."""
    found: list[Path] = []
    for name in (IMAGES, MASKS):
        below = _below(folder, name)
        if below is None:
            others = sorted({each.name for each in folder.iterdir() if each.is_dir()} - {IMAGES, MASKS})
            there = f", but {first_few(others, 4)}" if others else ""
            do = f"name the folder of images {IMAGES!r} and that of their masks {MASKS!r}"
            raise ValueError(f"{folder}: has no folder {name!r}{there}; {do}")
        found.append(below)
    images, masks = map(_by_stem, found)
    if not images and not masks:
        raise ValueError(f"{found[0]}: has no images ({', '.join(IMAGE_SUFFIXES)}); add some")
    for stem, image in images.items():
        if stem not in masks:
            raise ValueError(f"{image}: has no mask; add {found[1] / stem}.png, or remove the image")
    for stem, mask in masks.items():
        if stem not in images:
            raise ValueError(f"{mask}: has no image in {found[0]}; add one, or remove the mask")
    return [(image, masks[stem]) for stem, image in images.items()]


def _by_stem(folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.suffix.lower() not in IMAGE_SUFFIXES or not path.is_file():
            continue
        if path.stem in found:
            raise ValueError(f"{folder}: has {found[path.stem].name} and {path.name}, of one name; rename one")
        found[path.stem] = path
    return found


def _inspected(pairs: list[_Pair], num_classes: int | None) -> list[_Inspected]:
    """Reads the headers of all images and the values of all masks, several at a time, in order."""
    pool = ThreadPoolExecutor(min(len(pairs), os.cpu_count() or 1))
    try:
        found = [pool.submit(_inspect, pair, num_classes) for pair in pairs]
        return read_every(found, Future.result, "reading masks")
    finally:
        pool.shutdown(cancel_futures=True)


def _inspect(pair: _Pair, num_classes: int | None) -> _Inspected:
    image, mask = pair
    size, values = size_of(image), read_mask(mask)
    if tuple(values.shape) != size:
        raise ValueError(f"{mask}: is {_text(tuple(values.shape))}; its image {image.name} is {_text(size)}")
    numbers = [number for number in values.unique().tolist() if number != IGNORED]
    if num_classes is not None and numbers and numbers[-1] >= num_classes:
        raise ValueError(f"{mask}: has the class number {numbers[-1]}; there are {num_classes} classes, from 0 on")
    return _Inspected(size, is_grey(image), numbers)


def _text(size: tuple[int, ...]) -> str:
    return " x ".join(map(str, size))
