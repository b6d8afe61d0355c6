"""From encoded images to uint8 tensors, by pillow."""

import contextlib
import io
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar, final

import numpy as np
import torch
from torch import Tensor

from fredholm.tasks.files.data_files import open_file
from fredholm.tasks.files.limits import check_pixels
from fredholm.tasks.files.read_errors import reads_data

from .resize import check_image_size, covering_size, fit

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

T = TypeVar("T")

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff")
"""Suffixes of image files, in lower case."""
_FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "TIFF")
_GREY_MODES = {"1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L"}
_ORIENTATION = 0x0112
_MANY_PIXELS = 1 << 24
_LARGE = threading.Lock()  # images of more than _MANY_PIXELS are decoded one at a time
_FILTERS = threading.Lock()
_SIDEWAYS = {5, 6, 7, 8}  # EXIF orientations that exchange height and width


@final
@dataclass(frozen=True)
class EncodedImage:
    """The content of an image file that is stored elsewhere, and its place for messages."""

    content: bytes | memoryview
    place: str

    def __str__(self) -> str:
        """The place, for messages."""
        return self.place


Source = str | Path | EncodedImage
"""The path of an image file, or an encoded image."""


def read_images(sources: Sequence[Source], channels: int, image_size: tuple[int, int]) -> Tensor:
    """Decode images, several at a time, into one tensor.

    The EXIF orientation is applied; transparent parts are laid over white; 16-bit grey is scaled to 8 bits (not cut
    off); colour becomes grey by the ITU-R 601 luma, grey becomes colour by repetition. Images of another size are
    scaled to cover ``image_size`` and trimmed equally on both sides.

    Args:
        sources: PNG, JPEG, BMP, WebP or TIFF, of one image of integers each.
        channels: 1 (grey) or 3 (RGB).
        image_size: height and width of the result.

    Returns:
        uint8 ``(len(sources), channels, *image_size)``.

    Raises:
        ValueError: a file cannot be read or decoded, an image has more than `limits.PIXELS`, as it is or scaled to
            cover ``image_size``, or ``channels`` or ``image_size`` make no sense.
        ImportError: pillow is not installed.
    """
    if channels not in (1, 3):
        raise ValueError(f"channels is {channels}; pass 1 (grey) or 3 (RGB)")
    check_image_size(image_size)
    images = torch.empty((len(sources), channels, *image_size), dtype=torch.uint8)
    decode = partial(_decode, channels=channels, image_size=image_size)
    with ThreadPoolExecutor(min(len(sources), os.cpu_count() or 1) or 1) as pool:
        for row, pixels in enumerate(pool.map(decode, sources)):
            images[row] = fit(pixels.unsqueeze(0), image_size)[0]
    return images


def is_grey(source: Source) -> bool:
    """Whether the file's header says that it holds no colour (a palette of greys counts as grey); errors as above."""
    return use_image(source, _header_is_grey)


def size_of(source: Source) -> tuple[int, int]:
    """Return height and width as `read_images` sees them, with the EXIF orientation applied; errors as above."""
    return use_image(source, _upright_size)


@reads_data
def use_image(source: Source, read: "Callable[[Picture], T]") -> T:
    """The result of `read` on the opened image; errors as above."""
    try:
        from PIL import UnidentifiedImageError
    except ImportError as error:
        raise ImportError('images are read by pillow, which is missing: pip install "fredholm[data]"') from error
    try:
        with _file_of(source) as file, _opened(file) as image:
            check_pixels(image.height, image.width, "it has", "scale it down")
            if getattr(image, "n_frames", 1) > 1:
                raise ValueError("it holds several images")
            if image.mode == "F":
                raise ValueError("its pixels are no integers")
            return read(image)
    except UnidentifiedImageError:
        raise ValueError(f"{source}: not a PNG, JPEG, BMP, WebP or TIFF image; replace or remove it") from None
    except MemoryError:
        raise
    except Exception as error:  # a broken file makes pillow's decoders raise almost anything
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"{source}: cannot be read as an image ({reason}); replace or remove it") from error


def _file_of(source: Source) -> IO[bytes]:
    return io.BytesIO(source.content) if isinstance(source, EncodedImage) else open_file(source)


def _opened(file: IO[bytes]) -> "Picture":
    from PIL import Image

    # Pillow warns of very many pixels, which are refused; filters of warnings are shared by all threads
    with _FILTERS, warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        return Image.open(file, formats=_FORMATS)


def _decode(source: Source, channels: int, image_size: tuple[int, int]) -> Tensor:
    return use_image(source, partial(_pixels, channels=channels, image_size=image_size))


def _pixels(image: "Picture", channels: int, image_size: tuple[int, int]) -> Tensor:
    """The image at its own size, `(C, H, W)`."""
    height, width = covering_size(_upright_size(image), image_size)
    check_pixels(height, width, f"to cover {image_size[0]} x {image_size[1]} it would have", "cut it to shape")
    with _LARGE if image.height * image.width > _MANY_PIXELS else contextlib.nullcontext():
        return _decoded(image, channels)


def _decoded(image: "Picture", channels: int) -> Tensor:
    from PIL import Image, ImageOps

    ImageOps.exif_transpose(image, in_place=True)
    if image.mode.startswith("I"):  # pillow's own conversion clips 16 bits at 255
        image = _sixteen_to_eight_bits(image)
    elif image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    pixels = torch.from_numpy(np.array(image.convert("L" if channels == 1 else "RGB")))
    return pixels.reshape(image.height, image.width, channels).permute(2, 0, 1)


def _sixteen_to_eight_bits(image: "Picture") -> "Picture":
    from PIL import Image

    deep = np.asarray(image).astype(np.int64)
    if deep.min(initial=0) < 0 or deep.max(initial=0) > 65535:
        raise ValueError(f"its pixels run from {deep.min()} to {deep.max()}; expected 0 to 65535")
    shallow = ((deep + 128) // 257).astype(np.uint8)  # 65535 = 255 * 257
    if isinstance(image.info.get("transparency"), int):
        shallow[deep == image.info["transparency"]] = 255
    return Image.fromarray(shallow)


def _header_is_grey(image: "Picture") -> bool:
    from PIL.PngImagePlugin import PngImageFile

    if image.mode == "P":
        palette = np.array(image.getpalette("RGB")).reshape(-1, 3)
        return bool((palette == palette[:, :1]).all())
    if isinstance(image, PngImageFile) and any(part.args == "LA;16B" for part in image.tile):
        return True  # grey with alpha of 16 bits, which pillow opens as colour
    return image.mode in _GREY_MODES


def _upright_size(image: "Picture") -> tuple[int, int]:
    from PIL.TiffImagePlugin import IMAGELENGTH, IMAGEWIDTH, TiffImageFile

    width, height = image.size
    if isinstance(image, TiffImageFile):  # some versions of Pillow give its upright size
        width, height = image.tag_v2[IMAGEWIDTH], image.tag_v2[IMAGELENGTH]
    return (width, height) if image.getexif().get(_ORIENTATION) in _SIDEWAYS else (height, width)
