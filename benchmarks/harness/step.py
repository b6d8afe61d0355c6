"""What is timed: one pass of a computation, forward or forward and backward."""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

Direction = Literal["forward", "forward+backward"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
Step = Callable[[], Sequence[Tensor]]


def both_ways(names: Iterable[str]) -> dict[str, Sequence[Direction]]:
    """Every step forward, and forward and backward."""
    return dict.fromkeys(names, DIRECTIONS)


def directed(
    apply: Callable[[], Tensor], direction: Direction, leaves: Iterable[Tensor], cotangent: Tensor | None
) -> Step:
    """The output of ``apply``, without a graph; or the output and its gradients by all ``leaves`` against a cotangent.

    Leaves without entries, such as the hidden layers of a kernel that has none, are passed over.
    """
    wanted = [leaf for leaf in leaves if leaf.numel()]

    def forward() -> Sequence[Tensor]:
        with torch.no_grad():
            return (apply(),)

    def forward_backward() -> Sequence[Tensor]:
        output = apply()
        given = torch.ones_like(output) if cotangent is None else cotangent.to(output.dtype)
        return (output.detach(), *torch.autograd.grad(output, wanted, given))

    return forward if direction == "forward" else forward_backward
