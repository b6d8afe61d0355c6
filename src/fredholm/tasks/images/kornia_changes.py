"""kornia's random changes of a batch of images, of which all are drawn and those that are asked for are computed.

Processes that share a batch draw alike, and each reads and changes its own images alone.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from kornia.augmentation.auto import RandAugment
    from kornia.augmentation.base import _BasicAugmentationBase  # pyright: ignore[reportPrivateUsage]

Drawn = Callable[[Tensor, Tensor], Tensor]
"""Changes images `(n, C, H, W)` that are those of some places of the batch, int64 `(n,)`."""
Change = Callable[[torch.Size], Drawn]
"""Draws, from torch's CPU generator, how to change a batch of shape `(B, C, H, W)`."""


def of_kornia(operation: "_BasicAugmentationBase | RandAugment") -> Change:
    """A change of kornia's."""

    def draw(shape: torch.Size) -> Drawn:
        drawn: Any = operation.forward_parameters(shape)
        return lambda images, places: operation(images, params=_of_places(drawn, places, shape[0]))

    return draw


def in_groups(change: Change, size: int) -> Change:
    """A change that neighbours in a batch, `size` of them each, draw apart from others."""

    def draw(shape: torch.Size) -> Drawn:
        counts = [min(size, shape[0] - start) for start in range(0, shape[0], size)]
        groups = [change(torch.Size((count, *shape[1:]))) for count in counts]

        def changed(images: Tensor, places: Tensor) -> Tensor:
            found = torch.empty_like(images)
            for number in (places // size).unique().tolist():
                own = places // size == number
                found[own] = groups[number](images[own], places[own] % size)
            return found

        return changed

    return draw


def _of_places(drawn: Any, places: Tensor, count: int) -> Any:
    """What kornia drew for a batch of so many images, of some of them: tensors of an entry an image, nested."""
    from kornia.augmentation.container.params import ParamItem

    if isinstance(drawn, dict):
        return {name: _entries(name, value, places, count) for name, value in drawn.items()}
    assert isinstance(drawn, Sequence)
    return [ParamItem(item.name, _of_places(item.data, places, count)) for item in drawn]


def _entries(name: str, value: Tensor, places: Tensor, count: int) -> Tensor:
    if name == "forward_input_shape":  # of the whole batch, as a tensor
        return torch.cat([value.new_tensor([len(places)]), value[1:]])
    if len(value) != count:
        raise ImportError('augmentation needs kornia 0.9 or later; get it with: pip install "fredholm[augment]"')
    return value[places.to(value.device)]
