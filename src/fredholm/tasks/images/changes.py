"""Random changes to training images that leave their targets as they are."""

import abc
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from fredholm._settings import refuse_idle
from fredholm.tasks.optional_packages import importing_kornia

from .kornia_changes import Change, of_kornia
from .rand_augment import MAX_MAGNITUDE, MAX_OPS, rand_augment


@dataclass(frozen=True, kw_only=True)
class ChangeSettings(abc.ABC):  # noqa: B024  subclasses add fields
    """Settings of random changes to images; the defaults change nothing.

    Args:
        shift: largest shift along either axis, as a fraction of that side (uniform, not rounded to pixels).
        rotation: largest rotation either way, in degrees (uniform).
        scale: smallest and largest magnification (uniform); 1 keeps the size.
        horizontal_flip: probability of mirroring left and right.
        crop_padding: pixels of 0 added on all sides before a crop of the original size is cut out at random.
        rand_augment_ops: operations of RandAugment an image goes through, 0 to 11; 0 turns it off.
        rand_augment_magnitude: strength of these operations, 1 to 29; refused without any.
        random_erasing: probability of blanking a box of 2 to 33 % of the image.

    Raises:
        ValueError: a setting is out of its range, or has no effect.
    """

    shift: float = 0.0
    rotation: float = 0.0
    scale: tuple[float, float] = (1.0, 1.0)
    horizontal_flip: float = 0.0
    crop_padding: int = 0
    rand_augment_ops: int = 0
    rand_augment_magnitude: int = 9
    random_erasing: float = 0.0

    def __post_init__(self) -> None:
        smallest, largest = self.scale
        for name, is_valid, range_text in (
            ("shift", 0 <= self.shift <= 1, "from 0 to 1"),
            ("rotation", 0 <= self.rotation <= 180, "from 0 to 180 degrees"),
            ("scale", 0 < smallest <= largest < float("inf"), "two positive numbers, the smaller first"),
            ("horizontal_flip", 0 <= self.horizontal_flip <= 1, "a probability"),
            ("crop_padding", self.crop_padding >= 0, "0 or more pixels"),
            ("rand_augment_ops", 0 <= self.rand_augment_ops <= MAX_OPS, f"from 0 to {MAX_OPS}"),
            ("rand_augment_magnitude", 0 < self.rand_augment_magnitude < MAX_MAGNITUDE, "from 1 to 29"),
            ("random_erasing", 0 <= self.random_erasing <= 1, "a probability"),
        ):
            if not is_valid:
                raise ValueError(f"{name} is {getattr(self, name)}; expected {range_text}")
        if self.rand_augment_ops == 0:
            none, given = "rand_augment_ops=0", {"rand_augment_magnitude": self.rand_augment_magnitude}
            refuse_idle("", type(self), none, "give rand_augment_ops", **given)

    @property
    def changes_images(self) -> bool:
        """Whether an image transform, and with it kornia, is needed."""
        return self.has_affine or any(
            (self.horizontal_flip, self.crop_padding, self.rand_augment_ops, self.random_erasing)
        )

    @property
    def has_affine(self) -> bool:
        """Whether images are shifted, rotated or scaled."""
        return self.shift > 0 or self.rotation > 0 or self.scale != (1.0, 1.0)


@final
class ImageChanges:
    """Changes images at random.

    In this order, each only where its setting asks for it: horizontal flip, padded crop, affine map (shift, rotation
    and scale in one bilinear resampling), RandAugment, random erasing. Pixels from outside an image are 0. All come
    from kornia, which is imported only if one of them is on. Changes are drawn independently for each image, except
    for the choice of operations in `rand_augment`.

    Args:
        config: the changes and their strengths.
    """

    @final
    @dataclass(frozen=True, kw_only=True)
    class Config(ChangeSettings):
        """Settings of random changes to images; the defaults change nothing."""

    def __init__(self, config: ChangeSettings) -> None:
        self._config = config
        self._changes: list[Change] = []
        self._shape: tuple[int, int, int] | None = None

    def check_packages(self) -> None:
        """Raises an ImportError where a setting needs kornia, which is not installed."""
        if self._config.changes_images:
            with importing_kornia():
                import kornia.augmentation  # noqa: F401

    def drawn(self, shape: torch.Size) -> Callable[[Tensor, Tensor], Tensor]:
        """Draws the changes of a batch of shape `(B, C, H, W)` from torch's CPU generator.

        Returns:
            A function that changes images in [0, 1] `(n, C, H, W)`, given their places in the batch, int64 `(n,)`.

        Raises:
            ImportError: a setting needs kornia, which is not installed.
        """
        changes = [change(shape) for change in self._changes_for(shape)]

        def changed(images: Tensor, places: Tensor) -> Tensor:
            for change in changes:
                images = change(images, places)
            return images

        return changed

    def _changes_for(self, shape: torch.Size) -> list[Change]:
        _, channels, height, width = shape
        if self._shape != (channels, height, width):
            self._changes = _build(self._config, channels, height, width) if self._config.changes_images else []
            self._shape = (channels, height, width)
        return self._changes


@contextlib.contextmanager
def drawing(generator: torch.Generator) -> Iterator[None]:
    """A context in which torch's CPU generator, from which kornia and Beta draw, is seeded by a draw of `generator`.

    Afterwards it is restored. The generators of other devices are never touched.
    """
    seed = int(torch.randint(2**63 - 1, (), generator=generator, device=generator.device))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def _build(config: ChangeSettings, channels: int, height: int, width: int) -> list[Change]:
    with importing_kornia():
        from kornia import augmentation as kornia

    changes: list[Change] = []
    if config.horizontal_flip:
        changes.append(of_kornia(kornia.RandomHorizontalFlip(p=config.horizontal_flip)))
    if config.crop_padding:
        changes.append(of_kornia(kornia.RandomCrop((height, width), padding=config.crop_padding, p=1.0)))
    if config.has_affine:
        shift = (config.shift, config.shift)
        changes.append(of_kornia(kornia.RandomAffine(config.rotation, translate=shift, scale=config.scale, p=1.0)))
    if config.rand_augment_ops:
        num_ops, magnitude = config.rand_augment_ops, config.rand_augment_magnitude
        changes.append(rand_augment(num_ops, magnitude, channels=channels, height=height, width=width))
    if config.random_erasing:
        changes.append(of_kornia(kornia.RandomErasing(p=config.random_erasing)))
    return changes
