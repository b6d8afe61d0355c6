"""Helpers for the image encoders with stencils: sizes, encoders with random parameters, and filters."""

from typing import Any

import torch
from torch import Tensor

from fredholm.encoders import ConvolutionalImage, Image, ImagePyramid

SHAPES = [
    ((8, 12), 4, 1, 1),
    ((6, 12), 6, 3, 2),
    ((6, 10), (3, 5), 2, 1),
    ((8, 6), (4, 1), 1, 0),
    ((8, 6), (4, 3), 1, 1),
    ((5, 7), 1, 2, 2),
    ((8, 6), (4, 6), 3, 1),  # one patch
]
"""Height and width of images, sides of patches, channels and depth."""
STRIDES = {
    4: [(2, 2), (2, 2)],
    6: [(2, 2), (3, 3)],
    (3, 5): [(3, 5)],
    (4, 1): [(2, 1), (2, 1)],
    (4, 3): [(2, 1), (2, 3)],
    1: [(1, 1)],
    (4, 6): [(2, 2), (2, 3)],
}
"""Strides from the pixels to patches of these sides."""


def encoder(
    kind: Any,
    image_size: tuple[int, int],
    patch_size: int | tuple[int, int],
    channels: int,
    depth: int = 1,
    **more: Any,
) -> Any:
    """A `ConvolutionalImage` or an `ImagePyramid` in float64 with parameters from N(0, 1)."""
    settings = {"image_size": image_size, "patch_size": patch_size, "channels": channels, "num_frequencies": 3}
    built: ConvolutionalImage | ImagePyramid = kind(Image.Config(**settings | more), 10, depth=depth).double()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return built


def filters(stencil: Any) -> Tensor:
    """Filters of a standardised convolution."""
    weight, each = stencil.kernel.weight, (1, 2, 3)
    centred = weight - weight.mean(each, keepdim=True)
    return stencil.kernel.gain[:, None, None, None] * centred / centred.square().sum(each, keepdim=True).sqrt()
