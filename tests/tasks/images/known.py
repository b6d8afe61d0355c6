"""Known answers of images."""

from torch import Tensor

from fredholm.tasks.images import ImageDataset


def labels_of(data: ImageDataset, indices: Tensor) -> Tensor:
    """The answers at `indices`."""
    assert data.answers is not None
    return data.answers.values[indices]
