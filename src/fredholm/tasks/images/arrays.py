"""Images in arrays: unlabelled ones for a prediction, and data sets for training."""

from collections.abc import Container, Iterable
from pathlib import Path
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from fredholm.tasks.files.array_names import no_array
from fredholm.tasks.files.mapped import Rows
from fredholm.tasks.files.npz_arrays import load_arrays, refuse_unread
from fredholm.tasks.files.parts import choose_part, refuse_part
from fredholm.tasks.files.read_errors import reads_data
from fredholm.tasks.splits.split_files import SPLIT_WORDS, Split
from fredholm.tasks.splits.split_marks import ARRAYS, NO_MARKS, SplitMarks
from fredholm.tasks.targets import Answers

from .dataset import ImageDataset
from .resize import check_image_size, fit

NAMES = ("classes", "labels", "target_names")
"""Arrays that describe the targets, and have no row for each example."""
OF_IMAGES = ("x", "y", *ARRAYS)
"""Arrays that have a row for each example."""


@final
class Layout(NamedTuple):
    """Names of the arrays of images and answers, and a format string that adds the word of a split."""

    images: str
    answers: str
    form: str

    def named(self, word: str) -> tuple[str, str]:
        """The names of the arrays of images and answers for a word of `SPLIT_WORDS`."""
        return self.form.format(name=self.images, word=word), self.form.format(name=self.answers, word=word)


KERAS = Layout("x", "y", "{name}_{word}")
MEDMNIST = Layout("images", "labels", "{word}_{name}")
"""The layout of MedMNIST (Yang et al., arXiv 2110.14795), such as train_images and val_labels."""
_RED, _GREEN, _BLUE = 19595, 38470, 7471  # the ITU-R 601 luma in 65536ths, as pillow has it


@reads_data
def read_image_arrays(path: Path, channels: int, image_size: tuple[int, int], *, part: Split | None = None) -> Tensor:
    """Read `x` of an .npz file, or its part of `x_train`, `x_valid` (or `x_val`) and `x_test`, or an .npy file.

    Parts may also be named as `train_images`, `val_images` and `test_images`.

    Images are uint8 `(n, H, W)` or `(n, H, W, C)` with C of 1 or 3. Colour becomes grey and grey colour, and images of
    another size are scaled and trimmed, as by `read_images`. `(H, W, 1 or 3)` is refused, since it may be one image,
    unless `image_size` has that width.

    Args:
        path: the file.
        channels: 1 (grey) or 3 (RGB), of the result.
        image_size: height and width of the result.
        part: see `choose_part`.

    Returns:
        uint8 `(n, channels, *image_size)`.

    Raises:
        ValueError: it is no such file, or has no such array or part. The message names file and array.
    """
    arrays = load_arrays(path, alone="x")
    layout, present = layout_of(arrays), dict[Split, str]()
    for word, split in SPLIT_WORDS.items():
        if (name := layout.named(word)[0]) in arrays:
            present.setdefault(split, name)
    if "x" in arrays:
        refuse_part(path, part)
        name = "x"
    elif present:
        name = present[choose_part(path, present, part)]
    else:
        absent = no_array("'x' or 'x_test'", arrays, OF_IMAGES, "{name}_{word}")
        raise ValueError(f"{path}: {absent}")
    if not arrays[name].size:
        raise ValueError(f"{path}: {name} has the shape {arrays[name].shape}; expected at least one image")
    try:
        refuse_unread_of_images(arrays)
        _refuse_one_in_colour(arrays[name].shape, name, image_size)
        return fit(with_channels(pixels_of(arrays[name], name), channels), image_size)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _refuse_one_in_colour(shape: tuple[int, ...], name: str, image_size: tuple[int, int]) -> None:
    """Raises ValueError for `(H, W, 1 or 3)`: either one image, or H grey ones of width 1 or 3."""
    if len(shape) == 3 and shape[2] in (1, 3) and image_size[1] != shape[2]:
        raise ValueError(
            f"{name} is {shape}: one image, or {shape[0]} grey ones of {shape[1]} x {shape[2]}; "
            f"expected {(1, *shape)} of the first, {(*shape, 1)} of the others"
        )


def layout_of(arrays: Container[str]) -> Layout:
    """The layout of a file: MedMNIST's if images of splits have its names and none has Keras's; else Keras's."""
    keras, medmnist = (any(layout.named(word)[0] in arrays for word in SPLIT_WORDS) for layout in (KERAS, MEDMNIST))
    return MEDMNIST if medmnist and not keras else KERAS


def refuse_unread_of_images(arrays: Iterable[str]) -> None:
    """Raises ValueError where a file of images has an array with an unknown name."""
    arrays = tuple(arrays)
    layout = layout_of(arrays)
    if {"x", "y"} & {*arrays}:
        refuse_unread(arrays, (*OF_IMAGES, "split", *NAMES))
    elif layout == MEDMNIST:
        refuse_unread(arrays, NAMES, of_splits=(layout.images, layout.answers), form=layout.form)
    else:
        refuse_unread(arrays, NAMES, of_splits=OF_IMAGES, besides=("split",))


def pixels_of(images: np.ndarray, name: str) -> Tensor:
    """Images of the kinds of `read_image_arrays` as uint8 `(n, C, H, W)`, with C of 1 or 3.

    Raises:
        ValueError: they are of another type or shape.
    """
    check_pixels_array(images, name)
    return torch.from_numpy(images if images.ndim == 4 else images[..., None]).movedim(-1, 1).contiguous()


def check_pixels_array(images: np.ndarray | Rows, name: str) -> None:
    """Raises ValueError where images are of another type or shape than those of `read_image_arrays`."""
    shape = images.shape
    is_shaped = len(shape) in (3, 4) and shape[3:] in ((), (1,), (3,)) and 0 not in shape[1:]
    if images.dtype != np.uint8 or not is_shaped:
        raise ValueError(f"{name} is {images.dtype} {shape}; expected uint8 (n, H, W) or (n, H, W, 1 or 3)")


@final
class ArrayImages(ImageDataset):
    """Images in arrays, which may be mapped from files.

    Args:
        rows: uint8 `(n, H, W)` or `(n, H, W, C)` with C of 1 or 3.
        name: name of the array of images, for messages.
        answers: labels or targets, one per image; None: there are none.
        image_size: height and width to deliver (`fit` on the way out); None: the size the images have.
        marks: splits, groups and times of the images.

    Raises:
        ValueError: shapes or types do not agree.
    """

    def __init__(
        self,
        rows: Rows,
        name: str,
        answers: Answers | None,
        image_size: tuple[int, int] | None = None,
        marks: SplitMarks = NO_MARKS,
    ) -> None:
        super().__init__(answers, marks)
        check_pixels_array(rows, name)
        if image_size is not None:
            check_image_size(image_size)
        height, width, *channels = rows.shape[1:]
        self._rows, self._array, self._channels = rows, name, channels[0] if channels else 1
        self._image_size = image_size or (height, width)

    @property
    def channels(self) -> int:
        return self._channels

    @property
    def image_size(self) -> tuple[int, int]:
        return self._image_size

    @property
    def shards(self) -> Tensor | None:
        return self._rows.shards

    def __len__(self) -> int:
        return len(self._rows)

    def _images(self, indices: Tensor) -> Tensor:
        return fit(pixels_of(self._rows[indices.numpy()], self._array), self._image_size)

    def _name(self, index: int) -> str:
        file, row = self._rows.place(index)
        return f"{file}:{self._array}[{row}]"


def with_channels(images: Tensor, channels: int) -> Tensor:
    """Images uint8 `(n, C, H, W)` with 1 (grey) or 3 (RGB) channels."""
    if images.shape[1] == channels:
        return images
    if channels == 3:
        return images.expand(-1, 3, -1, -1)
    red, green, blue = images.int().unbind(1)
    return ((_RED * red + _GREEN * green + _BLUE * blue + 0x8000) >> 16).to(torch.uint8)[:, None]
