"""Settings of a model, and what they name that was trained elsewhere, which a run starts from."""

import abc
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, final

from torch import Tensor

Settings = TypeVar("Settings")


@final
class Pixels(NamedTuple):
    """What pixels in [0, 1] become before a model reads them, (x - mean) / deviation, with a number a channel each.

    The size of the images it was made for is None where nothing says it.
    """

    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    image_size: tuple[int, int] | None


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Pretrained(Generic[Settings]):
    """What a checkpoint says of a model, and the tensors of it.

    Args:
        model: the settings of the model without its head.
        folder: where the checkpoint lies.
        files: what of it holds these settings.
        weights: the files with its tensors.
        pixels: of a model of images; None: nothing says them.
        image_size: height and width of the images that such a model was trained on; None: nothing says it.
        vocab_size: rows of a table of tokens, those included that no token has; None: there is no such table.
        most_tokens: the longest sequence of tokens that it reads; None: nothing bounds it.
        tensors: given settings of the model, of which those may be other that its tensors can be brought to, such as
            the size of images: the tensors of it that the checkpoint has, float32, by name. None is of the head. None:
            a run knows the rest, and has the weights.
    """

    model: Settings
    folder: Path
    files: tuple[Path, ...] = ()
    weights: tuple[Path, ...] = ()
    tensors: Callable[[Settings], dict[str, Tensor]] | None = None
    pixels: Pixels | None = None
    image_size: tuple[int, int] | None = None
    vocab_size: int | None = None
    most_tokens: int | None = None


class ModelSettings(abc.ABC):  # noqa: B024 - most say all by themselves
    """Settings of a model, or of where one lies that was trained elsewhere."""

    is_pretrained: ClassVar[bool] = False
    """Whether it was trained elsewhere; see `open_pretrained`."""

    @property
    def place(self) -> str | None:
        """Where that lies, as these settings name it; None: they name nothing."""
        return None

    @property
    def rated_width(self) -> int | None:
        """The channels to which the learning rate of a transformer is inverse; None: the task's rate suits."""
        return None

    def open_pretrained(self) -> Pretrained[Any] | None:
        """What these settings name that was trained elsewhere; None: they say all by themselves.

        Raises:
            ValueError, OSError: it is missing, damaged or of another kind.
        """
        return None
