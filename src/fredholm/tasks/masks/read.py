"""Masks in PNG files, whose values are class numbers."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from fredholm.tasks.files.read_errors import reads_data
from fredholm.tasks.images.read import use_image

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

_MODES = {"1", "L", "P"}


@final
class _Read(NamedTuple):
    """Content of a file: its format, Pillow's mode, the mode of its bytes, and its values where they are numbers."""

    format: str | None
    mode: str
    raw: str
    values: np.ndarray | None


@reads_data
def read_mask(path: str | Path) -> Tensor:
    """Reads class numbers.

    A mask is a PNG of 8-bit grey values, of palette indices of up to 8 bits, whose colours are ignored, or of one bit.

    Returns:
        uint8 `(H, W)`.

    Raises:
        ValueError: it cannot be read, or is another kind of image.
        ImportError: pillow is not installed.
    """
    found = use_image(path, _read)
    if found.format != "PNG":
        raise ValueError(f"{path}: is a {found.format} image, which changes numbers; save masks as PNG")
    if found.values is None:
        kind = f"{found.mode} of {found.raw}" if found.mode in _MODES else found.mode
        raise ValueError(
            f"{path}: is an image of {kind}; a mask has class numbers, as 8-bit grey values or palette indices"
        )
    return torch.from_numpy(found.values)


def _read(image: "Picture") -> _Read:
    tiles = getattr(image, "tile", ())  # only image files have it
    raw = str(tiles[0][3]) if tiles else image.mode
    # Pillow scales grey values of 2 and 4 bits to 0 to 255
    fits = image.mode in _MODES and not (image.mode == "L" and raw != "L")
    return _Read(image.format, image.mode, raw, np.array(image).astype(np.uint8) if fits else None)
