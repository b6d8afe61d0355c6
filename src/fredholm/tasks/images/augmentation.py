"""Random changes to a batch of training images and their targets."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from fredholm.tasks.targets import Target

from .changes import ChangeSettings, ImageChanges, drawing
from .mixing import drawn_blend


@final
class Augmentation:
    """Turns a batch of images and targets into augmented images and soft targets.

    In this order, each only where its setting asks for it: `ImageChanges`, Mixup or CutMix, label smoothing.

    Args:
        config: the changes and their strengths.
        target: the target of the task. Numbers are mixed by Mixup alone, linearly, and never smoothed.

    Raises:
        ValueError: a setting does not fit the target.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(ChangeSettings):
        """Settings of the augmentation, with those of `ChangeSettings`; the defaults change nothing.

        Args:
            mixup_alpha: parameter of Mixup's Beta distribution; 0 turns it off.
            cutmix_alpha: parameter of CutMix's Beta distribution; 0 turns it off.
            label_smoothing: share of every target spread evenly over all classes, or over presence and absence of each
                label, below 1.

        Raises:
            ValueError: a setting is out of its range, or has no effect.
        """

        mixup_alpha: float = 0.0
        cutmix_alpha: float = 0.0
        label_smoothing: float = 0.0

        def __post_init__(self) -> None:
            super().__post_init__()
            for name, is_valid, range_text in (
                ("mixup_alpha", 0 <= self.mixup_alpha < float("inf"), "0 or more"),
                ("cutmix_alpha", 0 <= self.cutmix_alpha < float("inf"), "0 or more"),
                ("label_smoothing", 0 <= self.label_smoothing < 1, "from 0 to below 1"),
            ):
                if not is_valid:
                    raise ValueError(f"{name} is {getattr(self, name)}; expected {range_text}")

    def __init__(self, config: Config, target: Target) -> None:
        if not target.has_shares:
            for name in ("cutmix_alpha", "label_smoothing"):
                if getattr(config, name):
                    raise ValueError(
                        f"{name} is {getattr(config, name)}; numbers have no shares of an image: leave it at 0"
                    )
        self.config = config
        self.target = target
        self._changes = ImageChanges(config)

    def check_packages(self) -> None:
        """Raises an ImportError where a setting needs kornia, which is not installed."""
        self._changes.check_packages()

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
        """A part of an augmented batch, equal to the same part of `__call__`; other images are read only for mixing.

        Args:
            wanted: indices in the batch, int64 ``(n,)``.
            read: maps indices in the batch to images, floating in [0, 1].
            shape: shape of the whole batch, ``(B, C, H, W)``.
            targets: targets of the whole batch, ``(B, ...)``.
            generator: the source of randomness, which draws for the whole batch.

        Returns:
            Images ``(n, C, H, W)`` and targets ``(n, ...)``, as from `__call__`.
        """
        config = self.config
        targets = self.target.soft(targets, config.label_smoothing)
        with drawing(generator):
            changed = self._changes.drawn(shape)
            blend = drawn_blend(shape, config.mixup_alpha, config.cutmix_alpha)
            places = wanted if blend is None else blend.needed(wanted)
            images = changed(read(places), places)
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
