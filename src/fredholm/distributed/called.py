"""One model on several processes: copies whose gradients are added up."""

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, final

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from fredholm.distributed.processes import Processes


@final
class Called(nn.Module):
    """A model whose every use is a call of this module.

    Processes meet where a module is called. A task may use any part of a model, so this one is called with a function
    of the whole.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, use: Callable[..., Any], *arguments: Any) -> Any:
        """``use(model, *arguments)``."""
        return use(self.model, *arguments)


def replicated(model: nn.Module, processes: Processes) -> nn.Module:
    """To be called as `Called`; in the backward pass gradients become their mean over the processes.

    A parameter that no process uses has no gradient, as on one.

    Raises:
        ValueError: what the model computes of an example depends on the others of the batch, which are elsewhere.
    """
    called = Called(model)
    if processes.size == 1 or not any(parameter.requires_grad for parameter in model.parameters()):
        return called
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and not isinstance(module, nn.SyncBatchNorm):
            raise ValueError(
                f"{name} normalises over a batch, of which each of {processes.size} processes has a part; train on one "
                "process, or take a model with other norms, such as LayerNorm"
            )
    # which are unused depends on the batch, and past Python torch warns where none ever is
    called.unused = nn.Parameter(torch.zeros(1))
    return DistributedDataParallel(
        called.to(next(model.parameters()).device),
        init_sync=False,
        find_unused_parameters=True,
        gradient_as_bucket_view=True,
    )


def without_meeting(called: nn.Module) -> AbstractContextManager[object]:
    """While entered gradients are added up here alone; the next backward pass after it adds in those of all others."""
    return called.no_sync() if isinstance(called, DistributedDataParallel) else contextlib.nullcontext()
