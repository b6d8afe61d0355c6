"""What the backward pass computes anew, from the parameters that the forward pass saw."""

from collections.abc import Callable
from typing import Any, TypeVar, cast, final

import torch
from torch import nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

Result = TypeVar("Result")


def recomputed(module: nn.Module | None, function: Callable[..., Result], *args: Any) -> Result:
    """`function(*args)`, of which the backward pass is left nothing but the arguments.

    Args:
        module: whose parameters `function` may read. Those of now are read backward too: under
            `torch.func.functional_call` the module has others by then. None: it reads none.
        function: computes tensors.
        args: its arguments.

    Under `torch.func.grad`, vjp and the like everything is kept, for they cannot compute anew.
    """
    if not torch.is_grad_enabled():
        return function(*args)
    if not torch.compiler.is_compiling():
        if torch._C._are_functorch_transforms_active():
            return function(*args)
        if module is not None:
            reader = _Reader(module, function)
            state = {**dict(reader.named_parameters()), **dict(reader.named_buffers())}
            return cast("Result", checkpoint(functional_call, reader, state, args, use_reentrant=False))
    return cast("Result", checkpoint(function, *args, use_reentrant=False))


@final
class _Reader(nn.Module):
    """A function that reads the parameters of a module."""

    def __init__(self, module: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.module, self.function = module, function

    def forward(self, *args: Any) -> Any:
        """The function's result."""
        return self.function(*args)
