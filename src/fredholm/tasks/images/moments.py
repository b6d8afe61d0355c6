"""Mean and deviation of pixels."""

from typing import NamedTuple, final

import torch
from torch import Tensor

from .dataset import ImageDataset

CHUNK = 4096
"""Images read at a time."""


@final
class Moments(NamedTuple):
    """Of pixels in [0, 1], one number a channel; a constant channel has deviation 1, so that it becomes 0."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]


def moments(images: ImageDataset, indices: Tensor) -> Moments:
    """Over all pixels of the images at `indices`, int64 `(n,)`, at least one; errors as those of `images`."""
    sums = torch.zeros(2, images.channels, dtype=torch.float64)
    for some in indices.split(CHUNK):
        pixels = images.images(some).double() / 255
        sums += torch.stack([pixels.sum((0, 2, 3)), pixels.square().sum((0, 2, 3))])
    mean, square = sums / (len(indices) * images.image_size[0] * images.image_size[1])
    deviation = (square - mean.square()).clamp(min=0).sqrt()
    return Moments(tuple(mean.tolist()), tuple(torch.where(deviation > 1e-6, deviation, 1.0).tolist()))
