"""The common interface of image models: configuration, sizing and construction for a data set."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import ClassVar, Self, final

from fredholm.encoders.encoder import Encoder
from fredholm.models.model_settings import ModelSettings
from fredholm.models.saved_model import SavedModel


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageReading:
    """Description of the images that a model reads.

    Args:
        image_size: height and width in pixels.
        channels: number of channels, 1 or 3.
        encoder: builds an encoder with a given number of channels, for models on an encoder's signal.
    """

    image_size: tuple[int, int]
    channels: int
    encoder: Callable[[int], Encoder]

    def check_channels(self, name: str, channels: int) -> None:
        """Raises a ValueError, with the model's name, if the images have another number of channels."""
        if channels != self.channels:
            raise ValueError(
                f"{name}: channels={channels}, and the images have {self.channels}; convert them, or pass channels="
                f"{self.channels}"
            )


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Room:
    """Recommended sizes for the images of a data set.

    Args:
        image_size: height and width in pixels.
        channels: number of channels.
        patch: side of a square patch, which divides the image size.
        width: number of channels of a network.
        depth: number of blocks of a network.
        max_dropout: upper bound of the rates of dropout and stochastic depth; 1: no bound.
    """

    image_size: tuple[int, int]
    channels: int
    patch: int
    width: int
    depth: int
    max_dropout: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageModelConfig(ModelSettings, abc.ABC):
    """Configuration of a model with one output vector per image."""

    reads_encoder: ClassVar[bool] = False
    """Whether the model reads the signal of an encoder instead of pixels."""
    learns_by_steps: ClassVar[bool] = True
    """Whether the model is trained in steps, so that a validation split is needed to choose the best one."""

    def check_pools(self, whole: str) -> None:
        """Raises a ValueError if the model has an output at every point where one output per input is needed."""

    def at_size(self, image_size: tuple[int, int]) -> Self:
        """Returns the settings for images of this height and width in pixels, if they depend on the size.

        Raises:
            ValueError: the settings do not allow this size.
        """
        return self

    @abc.abstractmethod
    def sized_for(self, room: Room, default: ImageModelConfig) -> Self:
        """Returns the settings with recommended sizes in place of those that were not set.

        Args:
            room: recommended sizes.
            default: the task's default model: a setting equal to it, or to the class's default, counts as not set.
        """

    @abc.abstractmethod
    def build_for(self, reading: ImageReading, num_outputs: int) -> SavedModel:
        """Builds a model, with random numbers from the global torch seed.

        Args:
            reading: description of the images.
            num_outputs: number of outputs, such as one logit per class.

        Raises:
            ValueError: the model does not fit the images.
        """


def check_unset(name: str, num_classes: int, default: int) -> None:
    """Raises a ValueError, with the model's name, if `num_classes` was set, which the data determine."""
    if num_classes != default:
        raise ValueError(
            f"{name}: num_classes={num_classes} has no effect, since the data determine it; leave it at {default}"
        )
