"""Images and masks in an .npz file of numpy arrays."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fredholm.tasks.files.array_names import no_array
from fredholm.tasks.files.cache import LARGE
from fredholm.tasks.files.mapped import Rows, arrays_of_folder
from fredholm.tasks.files.npz_arrays import load_arrays, refuse_unread, split_of_rows
from fredholm.tasks.files.parts import rows_of_part
from fredholm.tasks.files.read_errors import reads_data
from fredholm.tasks.images.arrays import check_pixels_array, pixels_of, with_channels
from fredholm.tasks.splits.split_files import SPLITS, Split
from fredholm.tasks.splits.split_marks import ARRAYS, marks_of_arrays

from .classes import checked_classes
from .mask_set import IGNORED, MaskArrays, MaskedImages

ROWS = ("images", "masks")
"""Arrays with a row per image, which may be large."""
_KNOWN = (*ROWS, "classes", "split", *ARRAYS)
CHUNK = 1 << 20
"""Number of pixels of masks that are checked together."""


def masks_of_npz(path: Path, image_size: tuple[int, int] | None = None) -> MaskedImages:
    """Reads `images` uint8 `(n, H, W)` or `(n, H, W, 3)` and `masks` uint8 `(n, H, W)`, 255 where a class is unknown.

    `classes` are the names of the class numbers, where the file has them. For `split`, `groups` and `example_times`
    `(n,)` see `marks_of_arrays`.

    Args:
        path: path of the file.
        image_size: height and width to return; None: the size of the images.

    Raises:
        ValueError: the file is invalid, or arrays are missing, unknown or inconsistent. The message names file and
            array.
    """
    arrays = load_arrays(path, map_from=LARGE)
    try:
        for name in ROWS:
            if name not in arrays:
                raise no_array(name, arrays, _KNOWN)
        refuse_unread(arrays, _KNOWN, form="")
        images, masks = (Rows([arrays[name]], [path.name]) for name in ROWS)
        names = [f"{path}:images[{i}]" for i in range(len(images))]
        return _masked(images, masks, arrays, names, None, image_size)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def masks_of_shards(folder: Path, image_size: tuple[int, int] | None = None) -> MaskedImages:
    """Reads a folder of .npz files, each with `images` and `masks`, as one data set.

    A split is a word of a name, as in train-00000.npz, train-00001.npz and test-00000.npz (`find_split_files`). Where
    names have none, `split` is read. Otherwise as `masks_of_npz`; `classes` are equal in all files.

    Args:
        folder: the folder of the files.
        image_size: see `masks_of_npz`.

    Raises:
        ValueError: as of `masks_of_npz`, or files are inconsistent.
    """
    (images, masks), arrays, split = arrays_of_folder(folder, what="mask file", rows=ROWS, shared=("classes",))
    try:
        refuse_unread(arrays, _KNOWN, form="")
        places = (images.place(i) for i in range(len(images)))
        names = [f"{folder / file}:images[{row}]" for file, row in places]
        return _masked(images, masks, arrays, names, split, image_size)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from error


@reads_data
def images_of_npz(path: Path, channels: int, *, part: Split | None = None) -> Tensor:
    """Reads `images` alone, or an .npy file, as uint8 `(n, channels, H, W)`.

    Args:
        path: path of the file.
        channels: 1 (grey) or 3 (RGB), to which images are converted.
        part: part of a file with `split`; see `choose_part`.

    Raises:
        ValueError: the file is invalid, or has no such array or part. The message names file and array.
    """
    arrays = load_arrays(path, alone="images")
    if "images" not in arrays:
        raise ValueError(f"{path}: {no_array('images', arrays, _KNOWN)}")
    if not arrays["images"].size:
        raise ValueError(f"{path}: images has the shape {arrays['images'].shape}; expected at least one image")
    try:
        refuse_unread(arrays, _KNOWN, form="")
        images = with_channels(pixels_of(arrays["images"], "images"), channels)
        split = split_of_rows(arrays, len(images))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    rows = rows_of_part(path, split, part)
    return images if rows is None else images[rows]


def _masked(
    images: Rows,
    masks: Rows,
    others: dict[str, np.ndarray],
    names: list[str],
    split: Tensor | None,
    image_size: tuple[int, int] | None,
) -> MaskedImages:
    """Builds the set from image and mask arrays, further arrays, and a split by the names of files."""
    check_pixels_array(images, "images")
    if not len(images):
        raise ValueError(f"images have the shape {images.shape}; expected at least one image")
    if masks.dtype != np.uint8 or masks.shape != images.shape[:3]:
        raise ValueError(f"masks are {masks.dtype} {masks.shape}; expected uint8 {images.shape[:3]}, one a pixel")
    named = checked_classes(others["classes"].ravel().astype(str).tolist(), "classes") if "classes" in others else None
    largest, is_labelled, at_most = -1, np.zeros(len(masks), dtype=bool), IGNORED if named is None else len(named)
    for some in torch.arange(len(masks)).split(max(1, CHUNK // math.prod(masks.shape[1:]))):
        own = masks[some.numpy()]
        known = own != IGNORED
        is_labelled[some.numpy()] = known.any((1, 2))
        tops = np.where(known, own.astype(np.int16), -1).max((1, 2))
        for i in np.flatnonzero(tops >= at_most)[:1]:
            file, row = masks.place(int(some[i]))
            where = f"masks[{row}]" if len(masks.counts) == 1 else f"{file}, masks[{row}]"
            raise ValueError(f"{where} has the class number {tops[i]}; there are {at_most} classes")
        largest = max(largest, int(tops.max()))
    if largest < 0:
        raise ValueError(f"all pixels of all masks are {IGNORED}, not labelled; give some a class")
    classes = tuple(map(str, range(largest + 1))) if named is None else named
    marks = marks_of_arrays(others, len(images))
    marks = marks if split is None else replace(marks, given=split)
    if marks.given is not None:
        for number, part in enumerate(SPLITS):
            own = is_labelled[marks.given.numpy() == number]
            if len(own) and not own.any():
                raise ValueError(f"all pixels of the {part} split are {IGNORED}, not labelled; give some a class")
    return MaskedImages(MaskArrays(images, masks, names, image_size), classes, marks=marks)
