"""Random changes to a batch of training images and their targets."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from fredholm._settings import refuse_idle
from fredholm.tasks.extras import importing_kornia
from fredholm.tasks.targets import Target

from .kornia_changes import Change, of_kornia
from .mixing import drawn_blend
from .rand_augment import MAX_MAGNITUDE, MAX_OPS, rand_augment


@final
class Augmentation:
    """Turns a batch of images and targets into augmented images and soft targets.

    In this order, each only where its setting asks for it: horizontal flip, padded crop, affine map (shift, rotation
    and scale in one bilinear resampling), RandAugment, random erasing, Mixup or CutMix, label smoothing. What enters
    from outside an image is 0. All up to random erasing come from kornia, which is imported only if one of them is on.
    Every image draws for itself, except for the choice of operations in `rand_augment`.

    Args:
        config: what to do and how strongly.
        target: what is told of an image. Numbers are mixed by Mixup alone, linearly, and never smoothed.

    Raises:
        ValueError: a setting does not fit the target.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """How strongly to augment; the defaults change nothing.

        Args:
            shift: largest shift along either axis, as a fraction of that side (uniform, not rounded to pixels).
            rotation: largest rotation either way, in degrees (uniform).
            scale: smallest and largest magnification (uniform); 1 keeps the size.
            horizontal_flip: probability of mirroring left and right.
            crop_padding: pixels of 0 added on all sides before a crop of the original size is cut out at random.
            rand_augment_ops: operations of RandAugment an image goes through, 0 to 11; 0 turns it off.
            rand_augment_magnitude: strength of these operations, 1 to 29; refused without any.
            random_erasing: probability of blanking a box of 2 to 33 % of the image.
            mixup_alpha: parameter of Mixup's Beta distribution; 0 turns it off.
            cutmix_alpha: parameter of CutMix's Beta distribution; 0 turns it off.
            label_smoothing: share of every target spread evenly over all classes, or over having a label and lacking
                it, below 1.

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
        mixup_alpha: float = 0.0
        cutmix_alpha: float = 0.0
        label_smoothing: float = 0.0

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
                ("mixup_alpha", 0 <= self.mixup_alpha < float("inf"), "0 or more"),
                ("cutmix_alpha", 0 <= self.cutmix_alpha < float("inf"), "0 or more"),
                ("label_smoothing", 0 <= self.label_smoothing < 1, "from 0 to below 1"),
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

    def __init__(self, config: Config, target: Target) -> None:
        if not target.has_shares:
            for name in ("cutmix_alpha", "label_smoothing"):
                if getattr(config, name):
                    raise ValueError(
                        f"{name} is {getattr(config, name)}; numbers have no shares of an image: leave it at 0"
                    )
        self.config = config
        self.target = target
        self._changes: list[Change] = []
        self._shape: tuple[int, int, int] | None = None

    def check_packages(self) -> None:
        """Raises an ImportError where a setting needs kornia, which is not installed."""
        if self.config.changes_images:
            with importing_kornia():
                import kornia.augmentation  # noqa: F401

    def __call__(self, images: Tensor, targets: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Augment one batch.

        Args:
            images: floating ``(B, C, H, W)`` in [0, 1], on any device. They are not changed in place.
            targets: ``(B, ...)``, as `Target.targets` gives them.
            generator: the only source of randomness, advanced by one draw. Torch's own generators are left as
                they were, and on one machine the same state gives the same result.

        Returns:
            Images of the same shape, type and device in [0, 1], and targets as `Target.soft` has them,
            float32.

        Raises:
            TypeError: ``images`` are not floating.
            ValueError: a shape is wrong.
            ImportError: a setting needs kornia, which is not installed.
        """
        self._check(images, targets)
        return self.some(torch.arange(len(images)), lambda places: images[places], images.shape, targets, generator)

    @torch.no_grad()
    def some(
        self,
        wanted: Tensor,
        read: Callable[[Tensor], Tensor],
        shape: torch.Size,
        targets: Tensor,
        generator: torch.Generator,
    ) -> tuple[Tensor, Tensor]:
        """Some images of an augmented batch, equal to those of the whole; few others are read.

        Args:
            wanted: their places in the batch, int64 ``(n,)``.
            read: gives the images of some places, of which no other is needed; see above.
            shape: of the whole batch, ``(B, C, H, W)``.
            targets: of the whole batch, ``(B, ...)``.
            generator: likewise, which draws for the whole batch.

        Returns:
            Images ``(n, C, H, W)`` and targets ``(n, ...)``, as above.
        """
        seed = int(torch.randint(2**63 - 1, (), generator=generator, device=generator.device))
        config = self.config
        targets = self.target.soft(targets, config.label_smoothing)
        # kornia and Beta draw from the global CPU generator; the other devices' generators are never touched
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            changes = [change(shape) for change in self._changes_for(shape)]
            blend = drawn_blend(shape, config.mixup_alpha, config.cutmix_alpha)
            places = wanted if blend is None else blend.needed(wanted)
            images = read(places)
            for change in changes:
                images = change(images, places)
        if blend is None:
            return images, targets[wanted.to(targets.device)]
        return blend.images(images, places, wanted), blend.targets(targets, wanted)

    def _check(self, images: Tensor, targets: Tensor) -> None:
        if not images.is_floating_point():
            raise TypeError(f"images are {images.dtype}; pass floating point in [0, 1]")
        if images.ndim != 4:
            raise ValueError(f"images have shape {tuple(images.shape)}; pass (B, C, H, W)")
        if len(targets) != len(images):
            raise ValueError(f"targets have shape {tuple(targets.shape)}; pass one for each of {len(images)} images")

    def _changes_for(self, shape: torch.Size) -> list[Change]:
        _, channels, height, width = shape
        if self._shape != (channels, height, width):
            self._changes = _build(self.config, channels, height, width) if self.config.changes_images else []
            self._shape = (channels, height, width)
        return self._changes


def _build(config: Augmentation.Config, channels: int, height: int, width: int) -> list[Change]:
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
