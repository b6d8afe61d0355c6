"""Random changes of kornia: drawn for a whole batch, applied to a part of it.

Processes that share a batch draw the same changes, and each reads and changes its own images alone.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from kornia.augmentation.auto import RandAugment
    from kornia.augmentation.base import _BasicAugmentationBase  # pyright: ignore[reportPrivateUsage]

Drawn = Callable[[Tensor, Tensor], Tensor]
"""Applies drawn changes to images `(n, C, H, W)`, given their places in the batch, int64 `(n,)`."""
Change = Callable[[torch.Size], Drawn]
"""Draws the changes of a batch of shape `(B, C, H, W)` from torch's CPU generator."""


def of_kornia(operation: "_BasicAugmentationBase | RandAugment") -> Change:
    """A `Change` that applies an operation of kornia."""

    def draw(shape: torch.Size) -> Drawn:
        drawn: Any = operation.forward_parameters(shape)
        return lambda images, places: operation(images, params=_of_places(drawn, places, shape[0]))

    return draw


def in_groups(change: Change, size: int) -> Change:
    """A `Change` that draws anew for each `size` consecutive images of a batch."""

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
    """The drawn parameters of a batch of `count` images, restricted to some places; nested as kornia has them."""
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
