"""Images that fit in memory as one tensor."""

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from .dataset import ImageDataset
from .resize import check_image_size, fit


@final
class InMemoryImages(ImageDataset):
    """A data set held as one uint8 tensor.

    Args:
        images: uint8 ``(n, C, H, W)`` with C of 1 or 3.
        labels: int64 ``(n,)``, each in ``0 .. len(classes) - 1``.
        classes: the class names.
        name: maps an index to where the image came from.
        image_size: height and width to deliver (`fit` on the way out); default: the size the images have.

    Raises:
        ValueError: shapes, types or labels do not agree.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        classes: tuple[str, ...],
        name: Callable[[int], str],
        image_size: tuple[int, int] | None = None,
    ) -> None:
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
            raise ValueError(f"images are {images.dtype} {tuple(images.shape)}; pass uint8 (n, 1 or 3, H, W)")
        if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
            raise ValueError(f"labels are {labels.dtype} {tuple(labels.shape)}; pass int64 ({len(images)},)")
        if len(labels) and not (int(labels.min()) >= 0 and int(labels.max()) < len(classes)):
            low, high = int(labels.min()), int(labels.max())
            raise ValueError(f"labels run from {low} to {high}, but {len(classes)} classes are named")
        if image_size is not None:
            check_image_size(image_size)
        self._pixels, self._targets, self._classes, self._name_of = images, labels, tuple(classes), name
        self._image_size = image_size or (images.shape[2], images.shape[3])

    @property
    def classes(self) -> tuple[str, ...]:
        return self._classes

    @property
    def channels(self) -> int:
        return self._pixels.shape[1]

    @property
    def image_size(self) -> tuple[int, int]:
        return self._image_size

    def __len__(self) -> int:
        return len(self._pixels)

    def _images(self, indices: Tensor) -> Tensor:
        return fit(self._pixels[indices], self._image_size)

    def _labels(self, indices: Tensor) -> Tensor:
        return self._targets[indices]

    def _name(self, index: int) -> str:
        return self._name_of(index)
