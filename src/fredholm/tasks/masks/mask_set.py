"""Images with the class of each of their pixels, read by index."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, final

import torch
from torch import Tensor

from fredholm.tasks.files.mapped import Rows, shards_of_some
from fredholm.tasks.files.read_record import recorded
from fredholm.tasks.images.arrays import pixels_of
from fredholm.tasks.images.decoding_cache import DecodingCache
from fredholm.tasks.images.read import read_images
from fredholm.tasks.images.resize import fit, fit_masks
from fredholm.tasks.splits.split_marks import NO_MARKS, SplitMarks
from fredholm.tasks.splits.splits import Examples

from .read import read_mask

IGNORED = 255
"""Class number of a pixel whose class is unknown."""


class MaskSource(ABC):
    """A source of images and masks, all of one size."""

    channels: int
    """1 (grey) or 3 (RGB)."""
    image_size: tuple[int, int]
    """Height and width in pixels."""
    names: tuple[str, ...]
    """Origin of each image."""
    shards: Tensor | None = None
    """Sizes of contiguous shards of images on the disk, see `Task.train_shards`; None: any order is equally fast."""

    @abstractmethod
    def images(self, indices: Tensor) -> Tensor:
        """Returns images, uint8 `(n, channels, H, W)`."""

    @abstractmethod
    def masks(self, indices: Tensor) -> Tensor:
        """Returns masks, uint8 `(n, H, W)`."""


@final
class MaskArrays(MaskSource):
    """Images and masks in arrays, which may be memory-mapped.

    Args:
        images: uint8 `(n, H, W)` or `(n, H, W, C)`, C of 1 or 3.
        masks: uint8 `(n, H, W)`.
        names: a name per image.
        image_size: size to return; None: the size of the arrays.
    """

    def __init__(self, images: Rows, masks: Rows, names: Sequence[str], image_size: tuple[int, int] | None) -> None:
        self._images, self._masks, self.names = images, masks, tuple(names)
        height, width, *channels = images.shape[1:]
        self.channels = channels[0] if channels else 1
        self.image_size = image_size or (height, width)
        self.shards = images.shards

    def images(self, indices: Tensor) -> Tensor:
        return fit(pixels_of(self._images[indices.numpy()], "images"), self.image_size)

    def masks(self, indices: Tensor) -> Tensor:
        return fit_masks(torch.from_numpy(self._masks[indices.numpy()]), self.image_size)


@final
class MaskFiles(MaskSource):
    """Images and masks on disk, decoded on demand and cached.

    Args:
        files: pairs of an image and a mask of the same size.
        channels: number of channels that images are converted to.
        image_size: size that images and masks are scaled to.
        cache_bytes: memory for images, and the same for masks.
    """

    def __init__(
        self,
        files: Sequence[tuple[Path, Path]],
        *,
        channels: int,
        image_size: tuple[int, int],
        cache_bytes: int = 256 << 20,
    ) -> None:
        self._files = [(recorded(image), recorded(mask)) for image, mask in files]
        self.channels, self.image_size = channels, image_size
        self.names = tuple(str(image) for image, _ in files)
        self._images = DecodingCache(len(files), (channels, *image_size), self._decoded, cache_bytes=cache_bytes)
        self._masks = DecodingCache(len(files), image_size, self._decoded_masks, cache_bytes=cache_bytes)

    def images(self, indices: Tensor) -> Tensor:
        return self._images[indices]

    def masks(self, indices: Tensor) -> Tensor:
        return self._masks[indices]

    def _decoded(self, indices: Tensor) -> Tensor:
        return read_images([self._files[i][0] for i in indices.tolist()], self.channels, self.image_size)

    def _decoded_masks(self, indices: Tensor) -> Tensor:
        masks = [fit_masks(read_mask(self._files[i][1])[None], self.image_size) for i in indices.tolist()]
        return torch.cat(masks)


@final
class MaskedImages(Examples):
    """Images of one size with a class per pixel.

    Args:
        source: source of images and masks.
        classes: class names; number i of a mask means `classes[i]`, and `IGNORED` an unknown class.
        marks: splits, groups and times in the data.
        indices: indices of the images in the source; None: all.
    """

    shared: ClassVar[tuple[str, ...]] = ("classes", "channels", "image_size")

    def __init__(
        self,
        source: MaskSource,
        classes: tuple[str, ...],
        *,
        marks: SplitMarks = NO_MARKS,
        indices: Tensor | None = None,
    ) -> None:
        self._source, self.classes, self.marks = source, classes, marks
        self._indices = torch.arange(len(source.names)) if indices is None else indices
        marks.check(len(self))

    def __len__(self) -> int:
        return len(self._indices)

    @property
    def channels(self) -> int:
        """1 (grey) or 3 (RGB)."""
        return self._source.channels

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self._source.image_size

    @property
    def names(self) -> tuple[str, ...]:
        """Origin of each image."""
        return tuple(self._source.names[i] for i in self._indices.tolist())

    @property
    def shards(self) -> Tensor | None:
        """Sizes of shards of images that are contiguous on the disk, see `Task.train_shards`."""
        return shards_of_some(self._source.shards, self._indices)

    def select(self, indices: Tensor) -> "MaskedImages":
        """Returns the images of these indices, in order."""
        marks = self.marks.select(indices)
        return MaskedImages(self._source, self.classes, marks=marks, indices=self._indices[indices])

    def images(self, indices: Tensor) -> Tensor:
        """Returns images, uint8 `(n, channels, H, W)`; raises a ValueError where a file cannot be read."""
        return self._source.images(self._indices[indices])

    def masks(self, indices: Tensor) -> Tensor:
        """Returns masks, uint8 `(n, H, W)`; likewise."""
        return self._source.masks(self._indices[indices])
