"""Bringing images to one size without changing their proportions."""

import statistics
from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor


def check_image_size(image_size: tuple[int, int]) -> None:
    """Raise `ValueError` unless ``image_size`` is a height and a width of at least one pixel."""
    if len(image_size) != 2 or not all(isinstance(side, int) and side >= 1 for side in image_size):
        raise ValueError(f"image_size is {image_size}; pass height and width, two integers of at least 1")


def common_size(sizes: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """A height and a width for images of several sizes: the median longer side, in the median proportions.

    Of an even number the lower of the middle two counts.

    Args:
        sizes: heights and widths, at least one.
    """
    longer = statistics.median_low(max(size) for size in sizes)
    ratio = statistics.median_low(height / width for height, width in sizes)
    return max(1, round(longer * min(1.0, ratio))), max(1, round(longer * min(1.0, 1 / ratio)))


def fit(images: Tensor, image_size: tuple[int, int]) -> Tensor:
    """Scale images to cover ``image_size`` and crop the excess equally on both sides.

    The scaling is bilinear with antialiasing; images that have the size already come back unchanged.

    Args:
        images: uint8 ``(n, C, H, W)``.
        image_size: height and width of the result.

    Returns:
        uint8 ``(n, C, *image_size)``.
    """
    return _fitted(images, image_size, {"mode": "bilinear", "antialias": True})


def fit_masks(masks: Tensor, image_size: tuple[int, int]) -> Tensor:
    """Scale and crop masks of class numbers as `fit` does their images, by nearest neighbour.

    Args:
        masks: uint8 ``(n, H, W)``.
        image_size: height and width of the result.

    Returns:
        uint8 ``(n, *image_size)``.
    """
    return _fitted(masks[:, None], image_size, {"mode": "nearest-exact"})[:, 0]


def covering_size(size: tuple[int, int], image_size: tuple[int, int]) -> tuple[int, int]:
    """The height and width of an image once it is scaled to cover ``image_size``."""
    (height, width), (target_height, target_width) = size, image_size
    # the larger factor covers; rounding the other side cannot take it below the target, which is an integer
    if target_height * width >= target_width * height:
        return target_height, round(width * target_height / height)
    return round(height * target_width / width), target_width


def _fitted(images: Tensor, image_size: tuple[int, int], scaling: dict[str, Any]) -> Tensor:
    size = (images.shape[-2], images.shape[-1])
    if size == image_size:
        return images
    scaled = covering_size(size, image_size)
    if len(images):
        images = F.interpolate(images, scaled, **scaling)
    else:
        images = images.new_empty((0, images.shape[1], *scaled))
    top, left = ((have - want) // 2 for have, want in zip(scaled, image_size, strict=True))
    return images[..., top : top + image_size[0], left : left + image_size[1]]
