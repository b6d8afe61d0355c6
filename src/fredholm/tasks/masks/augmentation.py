"""Random augmentation of images together with their masks."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, final

import torch
import torch.nn.functional as F
from torch import Tensor

from fredholm._settings import refuse_idle
from fredholm.tasks.images.changes import drawing
from fredholm.tasks.images.kornia_changes import Change, of_kornia
from fredholm.tasks.optional_packages import importing_kornia

COLOURS = ("brightness", "contrast", "saturation", "hue")


@final
class Masked(NamedTuple):
    """Images of a batch, floating `(B, C, H, W)` in [0, 1], with their masks, uint8 `(B, H, W)`."""

    images: Tensor
    masks: Tensor


@final
class MaskAugmentation:
    """Crops and mirrors each image with its mask, and changes its colours, independently for each image.

    A crop is resized to the image's size, images bilinearly and masks to the nearest pixel. Colours are changed by
    kornia, in the order of the settings; it is imported only if one of them is on.

    Args:
        config: settings of the augmentation.
        channels: number of channels of the images.

    Raises:
        ValueError: saturation or hue is set for grey images.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """Settings of the augmentation; by default there is none.

        Args:
            crop_scale: smallest and largest relative area of a crop (uniform), above 0, at most 1.
            crop_ratio: smallest and largest aspect ratio (width to height) of a crop relative to the image (uniform in
                the logarithm); longer sides are cut to the image's. Refused without crops.
            horizontal_flip: probability of mirroring left and right.
            vertical_flip: probability of mirroring top and bottom.
            brightness: largest number that is added to or subtracted from all pixels.
            contrast: largest relative change of all pixels.
            saturation: largest relative change of the saturation.
            hue: largest turn of the hue either way, as a share of the colour circle, at most 0.5.
        """

        crop_scale: tuple[float, float] = (1.0, 1.0)
        crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
        horizontal_flip: float = 0.0
        vertical_flip: float = 0.0
        brightness: float = 0.0
        contrast: float = 0.0
        saturation: float = 0.0
        hue: float = 0.0

        def __post_init__(self) -> None:
            (least, most), (narrow, wide) = self.crop_scale, self.crop_ratio
            for name, is_valid, range_text in (
                ("crop_scale", 0 < least <= most <= 1, "two shares above 0 and at most 1, the smaller first"),
                ("crop_ratio", 0 < narrow <= wide < math.inf, "two positive numbers, the smaller first"),
                ("horizontal_flip", 0 <= self.horizontal_flip <= 1, "a probability"),
                ("vertical_flip", 0 <= self.vertical_flip <= 1, "a probability"),
                ("brightness", 0 <= self.brightness <= 1, "from 0 to 1"),
                ("contrast", 0 <= self.contrast <= 1, "from 0 to 1"),
                ("saturation", 0 <= self.saturation <= 1, "from 0 to 1"),
                ("hue", 0 <= self.hue <= 0.5, "from 0 to 0.5"),
            ):
                if not is_valid:
                    raise ValueError(f"{name} is {getattr(self, name)}; expected {range_text}")
            if not self.crops:
                own = "crop_scale=(1.0, 1.0)"
                refuse_idle("", type(self), own, "give crop_scale", crop_ratio=self.crop_ratio)

        @property
        def crops(self) -> bool:
            """Whether images are cropped."""
            return self.crop_scale != (1.0, 1.0)

    def __init__(self, config: Config, channels: int) -> None:
        self._config = config
        for name in ("saturation", "hue"):
            if channels != 3 and getattr(config, name):
                raise ValueError(
                    f"augmentation.{name} is {getattr(config, name)}, but the images are grey; leave it out"
                )

    @cached_property
    def _colours(self) -> list[Change]:
        return _colours(self._config)

    def check_packages(self) -> None:
        """Raises an ImportError where a setting needs kornia, which is not installed."""
        _colours(self._config)

    def __call__(self, given: Masked, generator: torch.Generator) -> Masked:
        """Augments images and masks with draws from ``generator`` alone; torch's global generators are unchanged."""
        count = len(given.images)
        return self.some(given, torch.arange(count), count, generator)

    def some(self, given: Masked, places: Tensor, batch_size: int, generator: torch.Generator) -> Masked:
        """Augments some images of a batch, and their masks, as in the whole batch.

        Args:
            given: these images and masks, `(n, ...)`.
            places: their indices in the batch, int64 `(n,)`.
            batch_size: size of the whole batch.
            generator: as above; draws for the whole batch.
        """
        images, masks = given
        config = self._config
        if config.crops:
            images, masks = _cropped(images, masks, _boxes(config, batch_size, generator)[places])
        for dim, chance in ((-1, config.horizontal_flip), (-2, config.vertical_flip)):
            if chance:
                mirrored = (torch.rand(batch_size, generator=generator) < chance)[places]
                images = torch.where(mirrored[:, None, None, None], images.flip(dim), images)
                masks = torch.where(mirrored[:, None, None], masks.flip(dim), masks)
        if self._colours:
            with torch.no_grad(), drawing(generator):
                for change in self._colours:
                    images = change(torch.Size((batch_size, *images.shape[1:])))(images, places)
        return Masked(images, masks)


def _boxes(config: MaskAugmentation.Config, count: int, generator: torch.Generator) -> Tensor:
    """Draws top, left, height and width of crops relative to the image, `(count, 4)`, anywhere within it."""
    drawn = torch.rand(4, count, generator=generator)
    (least, most), (narrow, wide) = config.crop_scale, config.crop_ratio
    area = least + (most - least) * drawn[0]
    ratio = (math.log(narrow) + (math.log(wide) - math.log(narrow)) * drawn[1]).exp()
    height, width = ((area / ratio).sqrt().clamp(max=1), (area * ratio).sqrt().clamp(max=1))
    return torch.stack([drawn[2] * (1 - height), drawn[3] * (1 - width), height, width], dim=1)


def _cropped(images: Tensor, masks: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Returns each image and mask cropped to its box, at its original size."""
    height, width = masks.shape[1:]
    top, left, tall, wide = boxes.to(images.dtype)[..., None].unbind(1)
    rows = top + tall * (torch.arange(height) + 0.5) / height  # sources of the pixel centres of a crop, in [0, 1]
    columns = left + wide * (torch.arange(width) + 0.5) / width
    grid = torch.stack([columns[:, None, :].expand(-1, height, -1), rows[:, :, None].expand(-1, -1, width)], dim=-1)
    # points within half a pixel of the border have no neighbour beyond it
    changed = F.grid_sample(images, 2 * grid - 1, mode="bilinear", padding_mode="border", align_corners=False)
    row, column = ((at * size).long().clamp(max=size - 1) for at, size in ((rows, height), (columns, width)))
    entry = torch.arange(len(masks))[:, None, None]
    return changed, masks[entry, row[:, :, None], column[:, None, :]]


def _colours(config: MaskAugmentation.Config) -> list[Change]:
    if not any(getattr(config, name) for name in COLOURS):
        return []
    with importing_kornia():
        from kornia import augmentation as kornia
    changes: list[Change] = []
    if config.brightness:
        changes.append(of_kornia(kornia.RandomBrightness((1 - config.brightness, 1 + config.brightness), p=1.0)))
    if config.contrast:
        changes.append(of_kornia(kornia.RandomContrast((1 - config.contrast, 1 + config.contrast), p=1.0)))
    if config.saturation:
        changes.append(of_kornia(kornia.RandomSaturation((1 - config.saturation, 1 + config.saturation), p=1.0)))
    if config.hue:
        changes.append(of_kornia(kornia.RandomHue((-config.hue, config.hue), p=1.0)))
    return changes
