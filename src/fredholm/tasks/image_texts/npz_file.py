"""Examples with their images in an .npz file of numpy arrays."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fredholm.tasks.files.array_names import no_array
from fredholm.tasks.files.cache import LARGE
from fredholm.tasks.files.mapped import Rows, arrays_of_folder
from fredholm.tasks.files.npz_arrays import load_arrays, refuse_unread
from fredholm.tasks.images.arrays import ArrayImages
from fredholm.tasks.splits.split_marks import ARRAYS, marks_of_arrays

from .image_text_set import Example, ImageTextSet, numbered

_KNOWN = ("images", "text", "label", "split", *ARRAYS)


def read_npz(path: Path, *, image_size: tuple[int, int] | None = None, reads_labels: bool = True) -> ImageTextSet:
    """Read `images`, `text` and, where there are some, `label`, `split`, `groups` and `example_times`.

    Images are uint8 `(n, M, H, W, C)`, or `(n, H, W, C)` of one image each, with C of 1 or 3. All other
    arrays are `(n,)`: texts; labels as texts, integers or truth values; splits, groups and times as `marks_of_arrays`
    reads them.

    Args:
        path: the file.
        image_size: height and width to deliver; None: the size that images have.
        reads_labels: whether labels are read, where there are some.

    Raises:
        ValueError: it is no such file, arrays are missing, unknown or do not fit together, a text is empty, or a label
            is no class. The message names file and array.
    """
    arrays = load_arrays(path, map_from=LARGE)
    for name in ("images", "text"):
        if name not in arrays:
            raise ValueError(f"{path}: {no_array(name, arrays, _KNOWN)}")
    images = arrays.pop("images")
    if images.ndim == 0:
        raise _no_images(path, images)
    return _read(path, Rows([images], [path.name]), arrays, None, image_size, reads_labels=reads_labels)


def read_npz_shards(folder: Path, *, image_size: tuple[int, int] | None = None) -> ImageTextSet:
    """Read a folder of .npz files of `read_npz`, which are one data set.

    A split is a word of a name, as in train-00000.npz, train-00001.npz and test-00000.npz (`find_split_files`). Where
    no name has one, `split` is read.

    Args:
        folder: the folder of the files.
        image_size: as in `read_npz`.

    Raises:
        ValueError: what `read_npz` refuses, or files do not fit together.
    """
    what = "file of images with text"
    (images,), arrays, split = arrays_of_folder(folder, what=what, rows=("images",), shared=())
    if "text" not in arrays:
        raise ValueError(f"{folder}: {no_array('text', {'images': images, **arrays}, _KNOWN)}")
    return _read(folder, images, arrays, split, image_size)


def _read(
    path: Path,
    images: Rows,
    arrays: dict[str, np.ndarray],
    split: Tensor | None,
    image_size: tuple[int, int] | None,
    *,
    reads_labels: bool = True,
) -> ImageTextSet:
    """Images with the texts, labels and marks of other arrays, and the split given by file names."""
    texts, axes = arrays["text"], len(images.shape)
    if images.dtype != np.uint8 or axes not in (4, 5) or images.shape[-1] not in (1, 3) or 0 in images.shape:
        raise _no_images(path, images)
    count, num_images = len(images), images.shape[1] if axes == 5 else 1
    if texts.dtype.kind != "U" or texts.shape != (count,):
        raise ValueError(f"{path}: text is {texts.dtype} {texts.shape}; expected texts ({count},), one an example")
    words = _labels(path, arrays, count) if reads_labels else None
    folder, places = path if path.is_dir() else path.parent, [images.place(i) for i in range(count)]
    examples = tuple(
        Example(
            images=tuple(f"{i}:{m}" for m in range(num_images)),
            text=str(texts[i]),
            label=None if words is None else words[i],
            path=folder / file,
            line=row + 1,
        )
        for i, (file, row) in enumerate(places)
    )
    for example in examples:
        if not example.text.strip():
            raise ValueError(f"{example.place}: the text is empty; write one, or leave the example out")
    try:
        refuse_unread(arrays, _KNOWN, form="")
        marks = marks_of_arrays(arrays, count)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    marks = marks if split is None else replace(marks, given=split)
    labels, classes = numbered(examples, marks.given)
    return ImageTextSet(
        examples=examples,
        pictures=ArrayImages(images.flattened(4), "images", None, image_size),
        index=torch.arange(count * num_images).view(count, num_images),
        labels=labels,
        classes=classes,
        marks=marks,
    )


def _no_images(path: Path, images: np.ndarray | Rows) -> ValueError:
    return ValueError(
        f"{path}: images is {images.dtype} {images.shape}; expected uint8 (n, M, H, W, C) or (n, H, W, C), C 1 or 3"
    )


def _labels(path: Path, arrays: dict[str, np.ndarray], count: int) -> list[str] | None:
    if "label" not in arrays:
        return None
    labels = arrays["label"]
    if labels.dtype.kind not in "Uiub" or labels.shape != (count,):
        raise ValueError(f"{path}: label is {labels.dtype} {labels.shape}; expected classes ({count},), one an example")
    words = [str(label).strip() for label in labels.tolist()]
    if labels.dtype.kind == "b":
        return [word.lower() for word in words]
    if empty := [i for i, word in enumerate(words) if not word]:
        raise ValueError(f"{path}, line {empty[0] + 1}: the label is empty; expected a class")
    return words
