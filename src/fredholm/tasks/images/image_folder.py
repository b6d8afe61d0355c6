"""A folder of image files, one subfolder a class."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, final

import torch
from torch import Tensor
from tqdm import tqdm

from fredholm.tasks.files.class_folders import class_folders
from fredholm.tasks.files.noted import noted
from fredholm.tasks.files.read_errors import reads_data
from fredholm.tasks.splits.split_marks import NO_MARKS, SplitMarks
from fredholm.tasks.splits.splits import Splits
from fredholm.tasks.targets import Answers, ClassAnswers

from .dataset import ImageDataset
from .kept import Kept
from .read import IMAGE_SUFFIXES, is_grey, read_images, size_of
from .resize import check_image_size, common_size


@final
class ImageFolder(ImageDataset):
    """Image files, decoded when asked for and kept decoded while they fit.

    Args:
        root: the folder that names are given relative to.
        files: the image files.
        answers: one a file; None: nothing is known.
        channels: 1 (grey) or 3 (RGB), to which every image is brought (see `read_images`).
        image_size: height and width, to which every image is brought.
        cache_bytes: the first images, as many as fit into this much memory, are decoded only once.
        marks: what the data say of splits.
    """

    def __init__(
        self,
        root: Path,
        files: Sequence[Path],
        answers: Answers | None,
        *,
        channels: int,
        image_size: tuple[int, int],
        cache_bytes: int = 512 << 20,
        marks: SplitMarks = NO_MARKS,
    ) -> None:
        super().__init__(answers, marks)
        if answers is not None and len(files) != len(answers):
            raise ValueError(f"{len(files)} files, but {len(answers)} answers: give one a file")
        check_image_size(image_size)
        self._root, self._files = root, [noted(file) for file in files]
        self._channels, self._image_size = channels, image_size
        self._pixels = Kept(len(files), (channels, *image_size), self._decode, cache_bytes=cache_bytes)

    @property
    def channels(self) -> int:
        return self._channels

    @property
    def image_size(self) -> tuple[int, int]:
        return self._image_size

    def __len__(self) -> int:
        return len(self._files)

    def _images(self, indices: Tensor) -> Tensor:
        return self._pixels[indices]

    def _name(self, index: int) -> str:
        return self._files[index].relative_to(self._root).as_posix()

    def _decode(self, indices: Tensor) -> Tensor:
        return read_images([self._files[index] for index in indices.tolist()], self._channels, self._image_size)


@reads_data
def image_folder(folder: str | Path, image_size: tuple[int, int] | None = None) -> Splits[ImageDataset]:
    """Open a folder with one subfolder a class, or with folders of splits that hold such subfolders.

    See `class_folders`. Without folders of splits all images are one set. Images are the files of the kinds of
    `read_images`. They are grey if the headers of all files say so, otherwise RGB.
    Every header is read here; the pixels only when they are asked for.

    Args:
        folder: the folder.
        image_size: height and width to deliver; default: the size all images share, or `common_size` of the training
            folder's, with `Splits.sizes`.

    Raises:
        ValueError: no class folder, only one, or one without images; a test class unknown in training; two folders of
            one split; or an unreadable file.
        ImportError: pillow is not installed.
    """
    root = Path(folder)
    classes, parts = class_folders(root, IMAGE_SUFFIXES, "images", "cat/1.png")
    files = [file for files, _ in parts.values() for file in files]
    channels, image_size, sizes = inspect(files, image_size, len(parts["train"][0]))
    found = {
        split: ImageFolder(
            root,
            files,
            ClassAnswers(names=classes, values=torch.tensor(labels, dtype=torch.int64)),
            channels=channels,
            image_size=image_size,
        )
        for split, (files, labels) in parts.items()
    }
    return Splits(found["train"], found.get("test"), found.get("valid"), is_given=len(parts) > 1, sizes=sizes)


class Headers(NamedTuple):
    """What the headers of some image files say."""

    channels: int
    """1 where all are grey, else 3."""
    image_size: tuple[int, int]
    """The one asked for, that of all, or `common_size`."""
    sizes: tuple[tuple[int, int], tuple[int, int]] | None
    """The smallest and the largest where a common one was chosen; see `Splits.sizes`."""


def inspect(files: list[Path], image_size: tuple[int, int] | None, num_train: int) -> Headers:
    """Reads all headers.

    Args:
        files: of all splits, those to learn from first.
        image_size: the one asked for; None: what suits the first `num_train` images, which takes longer.
        num_train: at least 1.

    Raises:
        ValueError: one cannot be read.
    """
    bar = tqdm(files, desc="reading image headers", unit="file", delay=1.0, leave=False, disable=None)
    found = [(is_grey(path), (0, 0) if image_size is not None else size_of(path)) for path in bar]
    channels, sizes = (1 if all(grey for grey, _ in found) else 3), [size for _, size in found]
    if len(set(sizes)) == 1:
        return Headers(channels, image_size or sizes[0], None)
    return Headers(channels, common_size(sizes[:num_train]), (min(sizes, key=math.prod), max(sizes, key=math.prod)))
