"""A test of whether mirroring images together with their masks gives further examples.

Features of a pixel are positive parts of random filters of images, as means over POOLED pixels a side, and mean
colours, all around the pixel and on its four sides; and its position. A ridge regression predicts the classes of pixels
from them with and without those of mirror images, and images that are left out decide.
"""

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor

from fredholm.tasks.images.mirroring import FEWEST, left_out_errors
from fredholm.tasks.targets import Target

from .mask_set import IGNORED, MaskedImages

MOST, READ = 200, 1 << 22
"""Largest number of images in the test, and about the largest number of their pixels."""
PIXELS = 32
"""Labelled pixels of each image; images with fewer are left out."""
CHUNK = 1 << 16
"""Number of pixels of images that are read together."""
FILTERS, SIDE, DILATIONS, POOLED = 48, 5, (1, 3), 5
"""Number of random filters of each dilation, and their sides in taps."""
_COLOURS = (3, 9)
"""Sides of the squares of mean colours."""


@torch.no_grad()
def mirroring_keeps_classes(images: MaskedImages, target: Target, axis: int) -> bool:
    """Whether pixels of other images are predicted at least as well with mirrored images and masks as without them.

    Args:
        images: the training images; a part of them is used, the same each time. Of fewer than `FEWEST`: yes.
        target: their classes.
        axis: -1 for left and right, -2 for top and bottom.
    """
    generator, (height, width) = torch.Generator().manual_seed(0), images.image_size
    size = height * width
    most, count = min(MOST, max(FEWEST, READ // size)), min(PIXELS, size)
    filters = _filters(images.channels, generator)
    plain, mirrored, labels = list[Tensor](), list[Tensor](), list[Tensor]()
    for part in torch.randperm(len(images), generator=generator)[:most].split(max(1, CHUNK // size)):
        masks = images.masks(part).long().flatten(1)
        key = torch.where(masks == IGNORED, -1.0, torch.rand(masks.shape, generator=generator))
        chosen = key.topk(count, dim=1)
        labelled = (chosen.values >= 0).all(1)
        pixel = chosen.indices[labelled]
        down, right = pixel // width, pixel % width
        opposite = (height - 1 - down) * width + right if axis == -2 else down * width + width - 1 - right
        shares = images.images(part[labelled]).float() / 255
        plain.append(_features(shares, pixel, filters))
        mirrored.append(_features(shares.flip(axis), opposite, filters))
        labels.append(masks[labelled].gather(1, pixel).flatten())
    if sum(map(len, labels)) < FEWEST * count:
        return True
    alone, beside, _ = left_out_errors(torch.cat(mirrored), torch.cat(plain), torch.cat(labels), target, each=count)
    return bool(beside.mean() <= alone.mean())


def _filters(channels: int, generator: torch.Generator) -> Tensor:
    """Random filters `(len(DILATIONS) * FILTERS, channels, SIDE, SIDE)` with mean 0 and norm 1."""
    drawn = torch.randn(len(DILATIONS) * FILTERS, channels, SIDE, SIDE, generator=generator)
    drawn = drawn - drawn.mean((1, 2, 3), keepdim=True)
    return drawn / drawn.flatten(1).norm(dim=1)[:, None, None, None]


def _features(images: Tensor, pixels: Tensor, filters: Tensor) -> Tensor:
    """Features of pixels `(B, K)` of images `(B, C, H, W)`: float64 `(B * K, 5 * maps + 5)`."""
    height, width = images.shape[2:]
    maps = [_means(images, side) for side in _COLOURS]
    for dilation, some in zip(DILATIONS, filters.split(FILTERS), strict=True):
        beyond = dilation * (SIDE // 2)
        wide = F.pad(images, (beyond,) * 4, mode="replicate")
        maps.append(_means(F.conv2d(wide, some, dilation=dilation).relu(), POOLED))
    wide = F.pad(torch.cat(maps, dim=1), (POOLED,) * 4, mode="replicate").flatten(2)
    down, right = pixels // width, pixels % width
    found = list[Tensor]()
    for lower, farther in ((0, 0), (-POOLED, 0), (POOLED, 0), (0, -POOLED), (0, POOLED)):
        place = (down + POOLED + lower) * (width + 2 * POOLED) + right + POOLED + farther
        found.append(wide.gather(2, place[:, None].expand(-1, wide.shape[1], -1)))
    y, x = (((place + 0.5) / extent)[:, None] for place, extent in ((down, height), (right, width)))
    found += [y, x, *(a * b for a, b in itertools.combinations_with_replacement((y, x), 2))]
    return torch.cat(found, dim=1).mT.flatten(0, 1).double()


def _means(maps: Tensor, side: int) -> Tensor:
    """Means over squares of `side` pixels, an odd number, around each pixel; those beyond the border do not count."""
    return F.avg_pool2d(maps, side, 1, side // 2, count_include_pad=False)
