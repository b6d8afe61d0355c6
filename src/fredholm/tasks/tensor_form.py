"""A task's model as a function of tensors alone, which programs without this library compute.

A model of a task takes what the task made of its files, and gives numbers that the task reads. A form holds both ends:
from tensors that anyone can make of a file to what the task predicts, such as probabilities.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, final

import torch
from torch import Generator, Tensor, nn

Sizes = Mapping[str, int]
"""How many there are along open axes, by their names."""

Draw = Callable[[Sizes, Generator], tuple[Tensor, ...]]
"""Makes inputs such as they occur, by the sizes of all open axes, on the CPU."""


class Axis(NamedTuple):
    """One dimension of a tensor.

    Args:
        name: what runs along it, such as classes.
        size: how many there are; None: any number, the same in all tensors that have an axis of this name.
    """

    name: str
    size: int | None = None


BATCH = Axis("batch")
ABOUT_PIXELS = "grey or RGB pixels from 0 to 255, as an image file holds them"


class Slot(NamedTuple):
    """A tensor that a form takes or gives.

    Args:
        name: a Python name.
        axes: its dimensions.
        about: what it holds, in which range or unit.
    """

    name: str
    axes: tuple[Axis, ...]
    about: str


class OpenAxis(NamedTuple):
    """An axis along which there may be any number.

    Args:
        example: how many an example has, above 1; of two axes different ones.
        other: how many another one has, to try it with.
        fixed: how many there are where a model needs to know it beforehand.
        most: how many there may be; None: any number.
    """

    example: int
    other: int
    fixed: int
    most: int | None = None

    @property
    def tried(self) -> tuple[int, int]:
        """How many an example has, and another one."""
        return self.example, self.other


@final
@dataclass(frozen=True, kw_only=True)
class TensorForm:
    """A model with what comes before it and after it.

    Args:
        model: of the task, in evaluation mode.
        call: computes the output from the model and the inputs, by operations of PyTorch on tensors of any sizes.
        inputs: what it takes.
        output: what it gives, a float tensor.
        draw: see `Draw`.
        open_axes: which of the axes but the batch may have any size, and examples of it.
        names: of the entries along some axes of the output, by the axis.
        notes: what is left to whoever calls it, a sentence each.
        files: texts of what else is needed, such as a tokenizer, by the names of their files.
    """

    model: nn.Module
    call: Callable[..., Tensor]
    inputs: tuple[Slot, ...]
    output: Slot
    draw: Draw
    open_axes: Mapping[str, OpenAxis] = field(default_factory=dict)
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)

    def module(self, model: nn.Module | None = None) -> nn.Module:
        """The form as a module: the inputs in their order, to the output.

        Args:
            model: another one in place of the form's own, such as a copy with other weights.
        """
        return _Called(self.model if model is None else model, self.call)

    def example(self, sizes: Sizes, seed: int = 0) -> tuple[Tensor, ...]:
        """Inputs of these sizes, the same each time."""
        return self.draw(sizes, torch.Generator().manual_seed(seed))


@final
class _Called(nn.Module):
    def __init__(self, model: nn.Module, call: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model, self._call = model, call

    def forward(self, *inputs: Tensor) -> Tensor:
        return self._call(self.model, *inputs)


def pixel_axes(channels: int, size: tuple[int, int]) -> tuple[Axis, Axis, Axis]:
    """Those of an image of so many channels, height and width."""
    return Axis("channels", channels), Axis("height", size[0]), Axis("width", size[1])


def sizes_of(axes: tuple[Axis, ...]) -> tuple[int, ...]:
    """How many there are along axes, none of them open."""
    return tuple(axis.size for axis in axes if axis.size is not None)


def random_pixels(shape: tuple[int, ...], generator: Generator) -> Tensor:
    """Noise, uint8."""
    return torch.randint(256, shape, generator=generator, dtype=torch.uint8)


def first_of_each(batch: int, most: int) -> Tensor:
    """Bool `(batch, most)`: that of so many points the first row has all, the next one less, and so on round again."""
    lengths = most - torch.arange(batch) % max(most // 2, 1)
    return torch.arange(most) < lengths[:, None]
