"""Mean and deviation of pixels."""

from typing import NamedTuple, Protocol, final

import torch
from torch import Tensor

CHUNK = 1 << 19
"""Values of pixels read at a time, about."""


@final
class Moments(NamedTuple):
    """Mean and deviation of pixels in [0, 1], one per channel; a constant channel has deviation 1, so it becomes 0."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]


class Pixels(Protocol):
    """Images of one size, read by index; see `ImageDataset`."""

    @property
    def channels(self) -> int: ...

    @property
    def image_size(self) -> tuple[int, int]: ...

    def images(self, indices: Tensor) -> Tensor: ...


def moments(images: Pixels, indices: Tensor) -> Moments:
    """Mean and deviation over all pixels of the images at `indices`, int64 `(n,)`, n >= 1; errors as `images`."""
    height, width = images.image_size
    sums = torch.zeros(2, images.channels, dtype=torch.int64)  # exact, whatever the size of the chunks
    for some in indices.split(max(1, CHUNK // (images.channels * height * width))):
        pixels = images.images(some).int()
        sums += torch.stack([pixels.sum((0, 2, 3)), pixels.square().sum((0, 2, 3))])
    mean, square = sums.double() / torch.tensor([[255.0], [255.0**2]]) / (len(indices) * height * width)
    deviation = (square - mean.square()).clamp(min=0).sqrt()
    return Moments(tuple(mean.tolist()), tuple(torch.where(deviation > 1e-6, deviation, 1.0).tolist()))
