"""The base of all sources of images, in memory or on disk."""

from abc import abstractmethod
from typing import ClassVar, final

import torch
from torch import Tensor

from fredholm.tasks.files.mapped import shards_of_some
from fredholm.tasks.splits.split_marks import SplitMarks
from fredholm.tasks.splits.splits import Divisible
from fredholm.tasks.splits.stratified_split import SplitKeys
from fredholm.tasks.targets import Answers


class ImageDataset(Divisible):
    """Images of one size and one number of channels, read by index, with their labels or targets.

    Everything is returned on the CPU; pixels are uint8 in 0..255, so that moving and normalising them is the caller's
    choice.

    Args:
        answers: labels or targets, one per image; None: there are none.
        marks: splits, groups and times of the images.
    """

    shared: ClassVar[tuple[str, ...]] = ("answer_names", "channels", "image_size")

    def __init__(self, answers: Answers | None, marks: SplitMarks) -> None:
        self.answers, self.marks = answers, marks

    @property
    def answer_names(self) -> tuple[str, ...]:
        """Names of the classes, labels or numbers; () where there are no answers."""
        return () if self.answers is None else self.answers.names

    @property
    @abstractmethod
    def channels(self) -> int:
        """1 (grey) or 3 (RGB)."""

    @property
    @abstractmethod
    def image_size(self) -> tuple[int, int]:
        """Height and width in pixels."""

    @property
    def shards(self) -> Tensor | None:
        """Sizes of the shards on disk, see `Task.train_shards`; None: any order of reading is equally fast."""
        return None

    def images(self, indices: Tensor) -> Tensor:
        """Return the images at ``indices``.

        Args:
            indices: int64 ``(n,)``, each in ``0 .. len(self) - 1``; order and repetition are kept.

        Returns:
            uint8 ``(n, C, H, W)``.

        Raises:
            TypeError: ``indices`` is not int64.
            ValueError: ``indices`` has another rank or leaves the range, or an image file cannot be read.
        """
        return self._images(self._checked(indices))

    def name(self, index: int) -> str:
        """Return the origin of image ``index``, for messages and result files."""
        if not 0 <= index < len(self):
            raise ValueError(f"image {index} asked for, but there are {len(self)}: pass 0 to {len(self) - 1}")
        return self._name(index)

    @property
    def keys(self) -> SplitKeys:
        """Keys for splitting the images: names, strata of the answers, groups and times."""
        n = len(self)
        strata = [0] * n if self.answers is None else self.answers.strata.tolist()
        return self.marks.keys([self.name(i) for i in range(n)], strata)

    def select(self, indices: Tensor) -> "ImageDataset":  # type: ignore[override]
        """The images at ``indices``, in that order; arguments and errors as for `images`."""
        return _SelectedImages(self, self._checked(indices))

    @abstractmethod
    def _images(self, indices: Tensor) -> Tensor: ...

    @abstractmethod
    def _name(self, index: int) -> str: ...

    def _checked(self, indices: Tensor) -> Tensor:
        if indices.dtype != torch.int64:
            raise TypeError(f"indices are {indices.dtype}; pass torch.int64")
        if indices.ndim != 1:
            raise ValueError(f"indices have shape {tuple(indices.shape)}; pass one dimension, (n,)")
        indices = indices.cpu()
        if len(indices) and not (int(indices.min()) >= 0 and int(indices.max()) < len(self)):
            low, high = int(indices.min()), int(indices.max())
            raise ValueError(f"indices run from {low} to {high}, but the data hold 0 to {len(self) - 1}")
        return indices


@final
class _SelectedImages(ImageDataset):
    """A selection of the images of another data set."""

    def __init__(self, whole: ImageDataset, numbers: Tensor) -> None:
        answers = whole.answers
        super().__init__(None if answers is None else answers.select(numbers), whole.marks.select(numbers))
        self._whole, self._numbers = whole, numbers

    @property
    def channels(self) -> int:
        return self._whole.channels

    @property
    def image_size(self) -> tuple[int, int]:
        return self._whole.image_size

    @property
    def shards(self) -> Tensor | None:
        return shards_of_some(self._whole.shards, self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def _images(self, indices: Tensor) -> Tensor:
        return self._whole.images(self._numbers[indices])

    def _name(self, index: int) -> str:
        return self._whole.name(int(self._numbers[index]))
