"""Bringing images to one size without changing their proportions."""

import torch.nn.functional as F
from torch import Tensor


def check_image_size(image_size: tuple[int, int]) -> None:
    """Raise `ValueError` unless ``image_size`` is a height and a width of at least one pixel."""
    if len(image_size) != 2 or not all(isinstance(side, int) and side >= 1 for side in image_size):
        raise ValueError(f"image_size is {image_size}; pass height and width, two integers of at least 1")


def fit(images: Tensor, image_size: tuple[int, int]) -> Tensor:
    """Scale images to cover ``image_size`` and cut what stands over equally on both sides.

    The scaling is bilinear with antialiasing; images that have the size already come back unchanged.

    Args:
        images: uint8 ``(n, C, H, W)``.
        image_size: the height and width wanted.

    Returns:
        uint8 ``(n, C, *image_size)``.
    """
    height, width = images.shape[-2:]
    target_height, target_width = image_size
    if (height, width) == (target_height, target_width):
        return images
    # the larger factor covers; rounding the other side cannot take it below the target, which is an integer
    if target_height * width >= target_width * height:
        scaled = (target_height, round(width * target_height / height))
    else:
        scaled = (round(height * target_width / width), target_width)
    if len(images):
        images = F.interpolate(images, scaled, mode="bilinear", antialias=True)
    else:
        images = images.new_empty((0, images.shape[1], *scaled))
    top, left = (scaled[0] - target_height) // 2, (scaled[1] - target_width) // 2
    return images[..., top : top + target_height, left : left + target_width]
