"""A test of whether mirroring images together with their masks gives further examples."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fredholm.tasks.images.mirroring import FEWEST, are_as_good_with
from fredholm.tasks.targets import Target

from .mask_set import IGNORED, MaskedImages

MOST, PIXELS = 200, 16
"""Largest number of images in the test, and number of labelled pixels of each; images with fewer are left out."""
CHUNK = 1 << 20
"""Number of pixels of images that are read together."""
_WINDOWS = (3, 9)
"""Sides of the squares whose mean colours are features of a pixel: one round it, and one on each of its sides."""


@torch.no_grad()
def mirroring_keeps_classes(images: MaskedImages, target: Target, axis: int) -> bool:
    """Whether images and masks mirrored along an axis can serve as further examples.

    The features of a pixel are mean colours round it and on its four sides, and its position; see `are_as_good_with`.

    Args:
        images: the training images; at most `MOST` of them are used, the same each time.
        target: their classes.
        axis: -1 for left and right, -2 for top and bottom.
    """
    generator, (height, width) = torch.Generator().manual_seed(0), images.image_size
    count = min(PIXELS, height * width)
    plain, mirrored, labels = list[Tensor](), list[Tensor](), list[Tensor]()
    for part in torch.randperm(len(images), generator=generator)[:MOST].split(max(1, CHUNK // (height * width))):
        masks = images.masks(part).long().flatten(1)
        key = torch.where(masks == IGNORED, -1.0, torch.rand(masks.shape, generator=generator))
        chosen = key.topk(count, dim=1)
        labelled = (chosen.values >= 0).all(1)
        pixel = chosen.indices[labelled]
        down, right = pixel // width, pixel % width
        opposite = (height - 1 - down) * width + right if axis == -2 else down * width + width - 1 - right
        shares = images.images(part[labelled]).double() / 255
        plain.append(_features(shares, pixel))
        mirrored.append(_features(shares.flip(axis), opposite))
        labels.append(masks[labelled].gather(1, pixel).flatten())
    if sum(map(len, labels)) < FEWEST * count:
        return True
    return are_as_good_with(torch.cat(mirrored), torch.cat(plain), torch.cat(labels), target, each=count)


def _features(images: Tensor, pixels: Tensor) -> Tensor:
    """Features of pixels `(B, K)` of images `(B, C, H, W)`: `(B * K, 10 C + 5)`."""
    height, width = images.shape[2:]
    found = list[Tensor]()
    for side in _WINDOWS:
        wide = F.pad(F.avg_pool2d(images, side, 1, side // 2, count_include_pad=False), (side,) * 4, mode="replicate")
        for down, right in ((1, 1), (0, 1), (2, 1), (1, 0), (1, 2)):
            found.append(wide[:, :, down * side :, right * side :][:, :, :height, :width])
    maps = torch.cat(found, dim=1).flatten(2)
    colours = maps.gather(2, pixels[:, None].expand(-1, maps.shape[1], -1)).mT.flatten(0, 1)
    y, x = (((place + 0.5) / size).flatten() for place, size in ((pixels // width, height), (pixels % width, width)))
    return torch.cat([colours, torch.stack([y, x, y.square(), x.square(), x * y], dim=1).to(colours)], dim=1)
