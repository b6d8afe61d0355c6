"""Images that fit in memory as one tensor."""

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from fredholm.tasks.splits.split_marks import NO_MARKS, SplitMarks
from fredholm.tasks.targets import Answers

from .dataset import ImageDataset
from .resize import check_image_size, fit


@final
class InMemoryImages(ImageDataset):
    """A data set held as one uint8 tensor.

    Args:
        images: uint8 ``(n, C, H, W)`` with C of 1 or 3.
        answers: labels or targets, one per image; None: there are none.
        name: maps an index to the origin of the image.
        image_size: height and width to deliver (`fit` on the way out); default: the size the images have.
        marks: splits, groups and times of the images.

    Raises:
        ValueError: shapes or types do not agree.
    """

    def __init__(
        self,
        images: Tensor,
        answers: Answers | None,
        name: Callable[[int], str],
        image_size: tuple[int, int] | None = None,
        marks: SplitMarks = NO_MARKS,
    ) -> None:
        super().__init__(answers, marks)
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
            raise ValueError(f"images are {images.dtype} {tuple(images.shape)}; pass uint8 (n, 1 or 3, H, W)")
        if answers is not None and len(answers) != len(images):
            raise ValueError(f"there are {len(answers)} answers of {len(images)} images; pass one each")
        if image_size is not None:
            check_image_size(image_size)
        self._pixels, self._name_of = images, name
        self._image_size = image_size or (images.shape[2], images.shape[3])

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

    def _name(self, index: int) -> str:
        return self._name_of(index)
