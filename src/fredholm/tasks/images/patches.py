"""Image sizes and patch sizes for the images of a data set, and the encoder of the patches."""

import math

from fredholm.encoders.convolutional_image import ConvolutionalImage
from fredholm.encoders.image import Image
from fredholm.tasks.schedule import Preset

STEM: dict[Preset, int] = {"small": 1, "base": 2}
"""Residual convolutions on each grid between pixels and patches."""


def patch_encoder(images: Image.Config, width: int, stem_depth: int | None) -> Image | ConvolutionalImage:
    """The encoder from patches to `width` channels: convolutional, or a linear map where `stem_depth` is None."""
    return Image(images, width) if stem_depth is None else ConvolutionalImage(images, width, depth=stem_depth)


def divided_into_patches(size: tuple[int, int], longest: int, most: int) -> tuple[tuple[int, int], int]:
    """Height and width to scale images to, and the side of a square patch that divides both.

    Images of up to `longest` pixels keep their size if some patch divides it with `most` / 2 to `most` patches along
    the longer side. Others are scaled to whole patches; those of larger images have 2, 4, 8, ... pixels a side, which
    convolutions halve step by step.

    Args:
        size: height and width of the images.
        longest: pixels of the longer side, to which larger images are scaled.
        most: most patches along the longer side.
    """
    side = min(max(size), longest)
    least = math.ceil(side / most)
    if side == max(size):
        fitting = (patch for patch in range(least, 2 * least + 1) if size[0] % patch == size[1] % patch == 0)
        if (patch := next(fitting, None)) is not None:
            return size, patch
    else:
        least = 2 ** math.ceil(math.log2(least))
    return in_whole_patches(size, least, side), least


def in_whole_patches(size: tuple[int, int], patch: int | tuple[int, int], longest: int) -> tuple[int, int]:
    """The height and width of whole patches nearest to images of a size, scaled so that no side is over `longest`."""
    scale = min(1.0, longest / max(size))
    sides = (patch, patch) if isinstance(patch, int) else patch
    height, width = (max(1, round(scale * side / each)) * each for side, each in zip(size, sides, strict=True))
    return height, width
