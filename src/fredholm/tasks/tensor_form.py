"""A task's model as a function of tensors alone, for programs without this library.

A task's model takes prepared inputs, and its outputs are interpreted by the task. A form includes both: it maps tensors
that anyone can make from a file to the task's predictions, such as probabilities.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, final

import torch
from torch import Generator, Tensor, nn

Sizes = Mapping[str, int]
"""Sizes of the open axes, by name."""

Draw = Callable[[Sizes, Generator], tuple[Tensor, ...]]
"""Draws realistic inputs for given sizes of all open axes, on the CPU."""


class Axis(NamedTuple):
    """One dimension of a tensor.

    Args:
        name: name of the dimension, such as classes.
        size: its size; None: any size, the same in all tensors with an axis of this name.
    """

    name: str
    size: int | None = None


BATCH = Axis("batch")
ABOUT_PIXELS = "grey or RGB pixels from 0 to 255, as an image file holds them"


class Slot(NamedTuple):
    """An input or output tensor of a form.

    Args:
        name: a Python name.
        axes: dimensions of the tensor.
        about: content, with its range or unit.
    """

    name: str
    axes: tuple[Axis, ...]
    about: str


class OpenAxis(NamedTuple):
    """An axis of any size.

    Args:
        example: an example size, above 1; different for different axes.
        other: another size, for a check.
        fixed: size for models that need to know it beforehand.
        most: largest size; None: unlimited.
    """

    example: int
    other: int
    fixed: int
    most: int | None = None

    @property
    def tried(self) -> tuple[int, int]:
        """The example size and the other one."""
        return self.example, self.other


@final
@dataclass(frozen=True, kw_only=True)
class TensorForm:
    """A model with its pre- and postprocessing.

    Args:
        model: model of the task, in evaluation mode.
        call: computes the output from the model and the inputs, by PyTorch operations on tensors of any sizes.
        inputs: input tensors.
        output: output tensor, float.
        draw: see `Draw`.
        open_axes: axes of any size except for the batch, with example sizes.
        names: names of the entries along some axes of the output, by axis.
        notes: steps that are left to the caller, a sentence each.
        files: texts of further required files, such as a tokenizer, by file name.
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
        """Returns the form as a module, from the inputs in their order to the output.

        Args:
            model: a model in place of the form's own, such as a copy with other weights.
        """
        return _Called(self.model if model is None else model, self.call)

    def example(self, sizes: Sizes, seed: int = 0) -> tuple[Tensor, ...]:
        """Returns example inputs of these sizes, the same on each call."""
        return self.draw(sizes, torch.Generator().manual_seed(seed))


@final
class _Called(nn.Module):
    def __init__(self, model: nn.Module, call: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model, self._call = model, call

    def forward(self, *inputs: Tensor) -> Tensor:
        return self._call(self.model, *inputs)


def pixel_axes(channels: int, size: tuple[int, int]) -> tuple[Axis, Axis, Axis]:
    """Returns the axes of an image: channels, height and width."""
    return Axis("channels", channels), Axis("height", size[0]), Axis("width", size[1])


def sizes_of(axes: tuple[Axis, ...]) -> tuple[int, ...]:
    """Returns the sizes of axes, none of them open."""
    return tuple(axis.size for axis in axes if axis.size is not None)


def random_pixels(shape: tuple[int, ...], generator: Generator) -> Tensor:
    """Returns noise, uint8."""
    return torch.randint(256, shape, generator=generator, dtype=torch.uint8)


def first_of_each(batch: int, most: int) -> Tensor:
    """Returns a mask, bool `(batch, most)`: the first row keeps all points, each further row one less, cyclically."""
    lengths = most - torch.arange(batch) % max(most // 2, 1)
    return torch.arange(most) < lengths[:, None]
