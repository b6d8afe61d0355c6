"""The unit of timing: one pass of a computation, forward or forward and backward."""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

Direction = Literal["forward", "forward+backward"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
Step = Callable[[], Sequence[Tensor]]


def both_ways(names: Iterable[str]) -> dict[str, Sequence[Direction]]:
    """Every name with both directions."""
    return dict.fromkeys(names, DIRECTIONS)


def directed(
    apply: Callable[[], Tensor], direction: Direction, leaves: Iterable[Tensor], cotangent: Tensor | None
) -> Step:
    """A step that returns the output of ``apply``, without a graph or with the gradients of all ``leaves``.

    Without a cotangent the gradients are those of the output's sum. Empty leaves, such as the hidden layers of a kernel
    that has none, are skipped.
    """
    inputs = [leaf for leaf in leaves if leaf.numel()]

    def forward() -> Sequence[Tensor]:
        with torch.no_grad():
            return (apply(),)

    def forward_backward() -> Sequence[Tensor]:
        output = apply()
        grad_output = torch.ones_like(output) if cotangent is None else cotangent.to(output.dtype)
        return (output.detach(), *torch.autograd.grad(output, inputs, grad_output))

    return forward if direction == "forward" else forward_backward
