"""Images that stay encoded, in files of their own or in the cells of a table, and are decoded on demand."""

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, final

from torch import Tensor

from fredholm.tasks.files.read_every import read_every
from fredholm.tasks.files.read_record import recorded
from fredholm.tasks.splits.split_marks import NO_MARKS, SplitMarks
from fredholm.tasks.targets import Answers

from .dataset import ImageDataset
from .decoding_cache import DecodingCache
from .read import EncodedImage, is_grey, read_images, size_of
from .resize import check_image_size, common_size

SEARCHED = 10_000
"""Images among which all broken ones are looked for, once one cannot be decoded."""


@final
class EncodedImages(ImageDataset):
    """Encoded images that are decoded on demand, and cached as far as they fit in memory.

    Args:
        sources: image files, or encoded images.
        name: maps an index to the origin of the image.
        answers: labels or targets, one per image; None: there are none.
        channels: 1 (grey) or 3 (RGB), to which every image is brought (see `read_images`).
        image_size: height and width, to which every image is brought.
        cache_bytes: the first images, as many as fit into this much memory, are decoded only once.
        marks: splits, groups and times of the images.
        shards: sizes of the shards on disk, see `Task.train_shards`; None: each image is stored by itself.
    """

    def __init__(
        self,
        sources: Sequence[Path] | Sequence[EncodedImage],
        name: Callable[[int], str],
        answers: Answers | None,
        *,
        channels: int,
        image_size: tuple[int, int],
        cache_bytes: int = 512 << 20,
        marks: SplitMarks = NO_MARKS,
        shards: Tensor | None = None,
    ) -> None:
        super().__init__(answers, marks)
        if answers is not None and len(sources) != len(answers):
            raise ValueError(f"{len(sources)} images, but {len(answers)} answers: give one an image")
        check_image_size(image_size)
        self._sources, self._name_of, self._shards = sources, name, shards
        self._channels, self._image_size = channels, image_size
        self._pixels = DecodingCache(len(sources), (channels, *image_size), self._decode, cache_bytes=cache_bytes)

    @property
    def channels(self) -> int:
        return self._channels

    @property
    def image_size(self) -> tuple[int, int]:
        return self._image_size

    @property
    def shards(self) -> Tensor | None:
        return self._shards

    def __len__(self) -> int:
        return len(self._sources)

    def _images(self, indices: Tensor) -> Tensor:
        return self._pixels[indices]

    def _name(self, index: int) -> str:
        return self._name_of(index)

    def _decode(self, indices: Tensor) -> Tensor:
        def read(sources: Sequence[Path | EncodedImage]) -> Tensor:
            return read_images(sources, self._channels, self._image_size)

        try:
            return read([self._sources[index] for index in indices.tolist()])
        except ValueError:
            if len(self._sources) <= SEARCHED:
                read_every(self._sources, lambda source: read([source]), "looking for other broken images")
            raise


def image_files(
    root: Path,
    files: Sequence[Path],
    answers: Answers | None,
    *,
    channels: int,
    image_size: tuple[int, int],
    cache_bytes: int = 512 << 20,
    marks: SplitMarks = NO_MARKS,
) -> EncodedImages:
    """The images of files, named by their paths relative to the folder `root`; see `EncodedImages`."""
    sources = [recorded(file) for file in files]
    return EncodedImages(
        sources,
        lambda index: sources[index].relative_to(root).as_posix(),
        answers,
        channels=channels,
        image_size=image_size,
        cache_bytes=cache_bytes,
        marks=marks,
    )


class Headers(NamedTuple):
    """Channels and sizes, from the headers of some images."""

    channels: int
    """1 where all are grey, else 3."""
    image_size: tuple[int, int]
    """The requested size, the size of all images, or `common_size`."""
    sizes: tuple[tuple[int, int], tuple[int, int]] | None
    """The smallest and the largest size where a common one was chosen; see `Splits.sizes`."""


def notes_on_sizes(sizes: tuple[tuple[int, int], tuple[int, int]] | None, size: tuple[int, int]) -> tuple[str, ...]:
    """A note that images of several sizes (`Headers.sizes`) are brought to a common one; empty for one size."""
    if sizes is None:
        return ()
    smallest, largest, one = (f"{height} x {width}" for height, width in (*sizes, size))
    return (f"images of {smallest} to {largest} pixels are scaled and cut to {one}; image_size chooses another size",)


def inspect(sources: Iterable[Path | EncodedImage], image_size: tuple[int, int] | None, num_train: int) -> Headers:
    """Reads all headers.

    Args:
        sources: images of all splits, training images first.
        image_size: the requested size; None: a common size of the first `num_train` images, which takes longer.
        num_train: the number of training images, at least 1.

    Raises:
        ValueError: images cannot be read.
    """

    def read(source: Path | EncodedImage) -> tuple[bool, tuple[int, int]]:
        return is_grey(source), (0, 0) if image_size is not None else size_of(source)

    found = read_every(sources, read, "reading image headers")
    channels, sizes = (1 if all(grey for grey, _ in found) else 3), [size for _, size in found]
    if len(set(sizes)) == 1:
        return Headers(channels, image_size or sizes[0], None)
    return Headers(channels, common_size(sizes[:num_train]), (min(sizes, key=math.prod), max(sizes, key=math.prod)))
