"""What the models of images have in common: how they are sized and built for the images of some data."""

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
    """The images that reach a model.

    Args:
        image_size: height and width in pixels.
        channels: of a pixel, 1 or 3.
        encoder: a new encoder that makes a signal of so many channels of them, for models that read one.
    """

    image_size: tuple[int, int]
    channels: int
    encoder: Callable[[int], Encoder]

    def check_channels(self, name: str, channels: int) -> None:
        """Raises a ValueError, in the name of a model, where images have other channels than it reads."""
        if channels != self.channels:
            raise ValueError(
                f"{name}: channels={channels}, and the images have {self.channels}; convert them, or pass channels="
                f"{self.channels}"
            )


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Room:
    """What suits images of some data.

    Args:
        image_size: height and width in pixels.
        channels: of a pixel.
        patch: side of a square patch, which divides them.
        width: channels of a network.
        depth: its blocks.
        most_dropout: the largest rate at which a network leaves out channels and layers in training; 1: any.
    """

    image_size: tuple[int, int]
    channels: int
    patch: int
    width: int
    depth: int
    most_dropout: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageModelConfig(ModelSettings, abc.ABC):
    """A model that gives one vector for each image."""

    reads_encoder: ClassVar[bool] = False
    """Whether it reads the signal of an encoder, and not pixels."""
    learns_by_steps: ClassVar[bool] = True
    """Whether training goes on in steps, so that something is chosen by a validation split."""

    def check_pools(self, whole: str) -> None:
        """Raises a ValueError where the model answers at every point, and one answer is wanted of a whole input."""

    def at_size(self, image_size: tuple[int, int]) -> Self:
        """The same for images of this height and width in pixels, where the settings name one.

        Raises:
            ValueError: there is none.
        """
        return self

    @abc.abstractmethod
    def sized_for(self, room: Room, default: ImageModelConfig) -> Self:
        """The same with sizes that suit some images, where none were set.

        Args:
            room: what suits them.
            default: the task's model: what is as there, or as the kind has it by itself, was not set.
        """

    @abc.abstractmethod
    def build_for(self, reading: ImageReading, num_outputs: int) -> SavedModel:
        """A new model, from the global torch seed.

        Args:
            reading: the images.
            num_outputs: such as one logit a class.

        Raises:
            ValueError: it reads other images.
        """


def check_unset(name: str, num_classes: int, default: int) -> None:
    """Raises a ValueError, in the name of a model, where its outputs were set, which the answers of the data decide."""
    if num_classes != default:
        raise ValueError(
            f"{name}: num_classes={num_classes} has no effect, since the data say how many there are; leave it at "
            f"{default}"
        )
