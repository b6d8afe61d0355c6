"""Settings of a model, and the pretrained checkpoint that they may name as the start of a run."""

import abc
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, final

from torch import Tensor

Settings = TypeVar("Settings")


@final
class Pixels(NamedTuple):
    """Normalisation of pixels in [0, 1] before a model reads them, (x - mean) / deviation, per channel.

    `image_size` is the size of the images that the checkpoint expects; None if unknown.
    """

    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    image_size: tuple[int, int] | None


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Pretrained(Generic[Settings]):
    """Settings and tensors of a pretrained checkpoint.

    Args:
        model: the settings of the model without its head.
        folder: folder of the checkpoint.
        files: its files that hold these settings.
        weights: its files that hold the tensors.
        pixels: normalisation of pixels of an image model; None if unknown.
        image_size: height and width of the training images of an image model; None if unknown.
        vocab_size: number of token embeddings, including unused ones; None: there are none.
        max_input_tokens: the longest sequence of tokens that the model reads; None: no limit.
        tensors: function from settings of the model to its tensors in the checkpoint, float32, by name, without the
            head. The settings may differ where tensors can be adapted, such as in the size of images. None: the
            settings come from a finished run, which has the weights.
    """

    model: Settings
    folder: Path
    files: tuple[Path, ...] = ()
    weights: tuple[Path, ...] = ()
    tensors: Callable[[Settings], dict[str, Tensor]] | None = None
    pixels: Pixels | None = None
    image_size: tuple[int, int] | None = None
    vocab_size: int | None = None
    max_input_tokens: int | None = None


class ModelSettings(abc.ABC):  # noqa: B024 - most settings need no override
    """Settings of a model, possibly with the place of a pretrained checkpoint."""

    is_pretrained: ClassVar[bool] = False
    """Whether the model is pretrained; see `open_pretrained`."""

    @property
    def place(self) -> str | None:
        """Place of the pretrained checkpoint, as these settings name it; None: there is none."""
        return None

    @property
    def rated_width(self) -> int | None:
        """Number of channels that a transformer's learning rate is inversely proportional to; None: the task's rate."""
        return None

    def open_pretrained(self) -> Pretrained[Any] | None:
        """Opens the pretrained checkpoint that these settings name; None: there is none.

        Raises:
            ValueError, OSError: the checkpoint is missing, damaged or of another kind.
        """
        return None
