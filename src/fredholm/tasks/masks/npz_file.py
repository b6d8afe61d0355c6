"""Images and masks in an .npz file of numpy arrays."""

from pathlib import Path

import numpy as np
import torch

from fredholm.tasks.files.npz_arrays import load_arrays, split_of_rows
from fredholm.tasks.files.parts import rows_of_part
from fredholm.tasks.files.read_errors import reads_data
from fredholm.tasks.images.arrays import pixels_of, with_channels
from fredholm.tasks.splits.split_files import SPLITS, Split
from fredholm.tasks.splits.split_marks import marks_of_arrays

from .classes import checked_classes
from .mask_set import IGNORED, MaskArrays, MaskedImages


def masks_of_npz(path: Path, image_size: tuple[int, int] | None = None) -> MaskedImages:
    """Read `images` uint8 `(n, H, W)` or `(n, H, W, 3)` and `masks` uint8 `(n, H, W)`, 255 where a class is not known.

    `classes` are the names of the class numbers, where the file has them; `split`, `groups` and
    `example_times` `(n,)`: see `marks_of_arrays`.

    Args:
        path: the file.
        image_size: height and width to deliver; None: the size the images have.

    Raises:
        ValueError: it is no such file, or arrays are missing or do not fit together. The message names file and array.
    """
    arrays = load_arrays(path)
    try:
        return _read(path, arrays, image_size)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


@reads_data
def images_of_npz(path: Path, channels: int, *, part: Split | None = None) -> torch.Tensor:
    """Read `images` alone, or an .npy file, as uint8 `(n, channels, H, W)`.

    Args:
        path: the file.
        channels: 1 (grey) or 3 (RGB), to which images are brought.
        part: of a file with `split`; see `choose_part`.

    Raises:
        ValueError: it is no such file, or has no such array or part. The message names file and array.
    """
    arrays = load_arrays(path, alone="images")
    if "images" not in arrays:
        raise ValueError(f"{path}: has no array 'images'; the arrays are {', '.join(arrays) or 'none'}")
    if not arrays["images"].size:
        raise ValueError(f"{path}: images has the shape {arrays['images'].shape}; expected at least one image")
    try:
        images = with_channels(pixels_of(arrays["images"], "images"), channels)
        split = split_of_rows(arrays, len(images))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    rows = rows_of_part(path, split, part)
    return images if rows is None else images[rows]


def _read(path: Path, arrays: dict[str, np.ndarray], image_size: tuple[int, int] | None) -> MaskedImages:
    for name in ("images", "masks"):
        if name not in arrays:
            raise ValueError(f"has no array {name!r}; the arrays are {', '.join(arrays) or 'none'}")
    images, masks = arrays["images"], arrays["masks"]
    pixels = pixels_of(images, "images")
    if not images.size:
        raise ValueError(f"images have the shape {images.shape}; expected at least one image")
    if masks.dtype != np.uint8 or masks.shape != images.shape[:3]:
        raise ValueError(f"masks are {masks.dtype} {masks.shape}; expected uint8 {images.shape[:3]}, one a pixel")
    known = np.unique(masks[masks != IGNORED])
    if not len(known):
        raise ValueError(f"all pixels of all masks are {IGNORED}, not labelled; give some a class")
    largest = int(known[-1])
    if "classes" in arrays:
        classes = checked_classes(arrays["classes"].ravel().astype(str).tolist(), "classes")
        if largest >= len(classes):
            image = int(np.flatnonzero((masks == largest).any((1, 2)))[0])
            raise ValueError(f"masks[{image}] has the class number {largest}; there are {len(classes)} classes")
    else:
        classes = tuple(map(str, range(largest + 1)))
    names = [f"{path}:images[{i}]" for i in range(len(images))]
    source = MaskArrays(pixels, torch.from_numpy(masks), names, image_size)
    marks = marks_of_arrays(arrays, len(images))
    if marks.given is not None:
        for number, part in enumerate(SPLITS):
            own = masks[marks.given.numpy() == number]
            if len(own) and bool((own == IGNORED).all()):
                raise ValueError(f"all pixels of the {part} split are {IGNORED}, not labelled; give some a class")
    return MaskedImages(source, classes, marks=marks)
