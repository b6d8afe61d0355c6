"""One model on several processes: replicas with averaged gradients, or shards of one model."""

import contextlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeGuard, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from fredholm.distributed.processes import Processes

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor


@final
class CalledModel(nn.Module):
    """A model that is used only through calls of this module, each with a function of the model.


    Data-parallel wrappers synchronise when a module is called. A task may use any part of a model, so this module is
    called with a function of the whole model.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, use: Callable[..., Any], *arguments: Any) -> Any:
        """``use(model, *arguments)``."""
        return use(self.model, *arguments)


def replicated(model: nn.Module, processes: Processes, settled: Iterable[str] = ()) -> nn.Module:
    """A replica to be called as `CalledModel`; the backward pass averages gradients over the processes.

    A parameter that no process uses has no gradient, as on a single process. Buffers of the first process are copied to
    all others before each pass.

    Args:
        model: the same on all.
        processes: the processes, with a replica each.
        settled: names of buffers that no pass changes, which are not copied.

    Raises:
        ValueError: the model normalises over a batch, of which each process has only a part.
    """
    called = CalledModel(model)
    if processes.size == 1 or not any(parameter.requires_grad for parameter in model.parameters()):
        return called
    _refuse_batch_norms(model, processes)
    # the set of unused parameters depends on the batch, and torch's C++ code warns where none is ever unused
    called.unused = nn.Parameter(torch.zeros(1))
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(called, [f"model.{name}" for name in settled])
    # harmless: the gradient of a filter in another memory layout is copied
    warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
    return DistributedDataParallel(
        called.to(next(model.parameters()).device),
        init_sync=False,
        find_unused_parameters=True,
        gradient_as_bucket_view=True,
    )


def sharded(model: nn.Module, processes: Processes, methods: Mapping[type[nn.Module], Sequence[str]]) -> CalledModel:
    """A model for `CalledModel` calls whose parameters, gradients and optimiser states are sharded over the processes.

    The parameters of a block are gathered only while it computes. Nothing is rounded: they are sent, and gradients are
    summed, in their own dtype.

    Args:
        model: the same on all, on the device to compute on; its parameters become `DTensor`.
        processes: the processes; each keeps a part of every parameter, split along its first axis.
        methods: methods of blocks that are called beside `forward`, by class.

    Raises:
        ValueError: as of `replicated`; or a parameter is a scalar.
    """
    from torch.distributed.device_mesh import init_device_mesh  # takes seconds to import
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    _refuse_batch_norms(model, processes)
    called = CalledModel(model)
    mesh = init_device_mesh(next(model.parameters()).device.type, (processes.size,))
    for block in blocks_of(model):
        fully_shard(block, mesh=mesh)
        for kind, names in methods.items():
            for name in names if isinstance(block, kind) else ():
                register_fsdp_forward_method(block, name)
    fully_shard(called, mesh=mesh, reshard_after_forward=True)
    return called


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The consecutive blocks of a model: members of its module lists that have submodules.

    A member that shares a parameter with another module is left out: only one of the two would gather it.
    """
    uses = _uses(model)
    return [
        part
        for part in _listed(model)
        if next(part.children(), None) is not None and all(uses[each] == own for each, own in _uses(part).items())
    ]


def _listed(model: nn.Module) -> Iterator[nn.Module]:
    """The members of a model's outermost module lists."""
    if isinstance(model, nn.ModuleList):
        yield from model
        return
    for child in model.children():
        yield from _listed(child)


def _uses(model: nn.Module) -> Counter[nn.Parameter]:
    """Number of modules in which each parameter of a model is registered."""
    return Counter(parameter for part in model.modules() for parameter in part.parameters(recurse=False))


def _refuse_batch_norms(model: nn.Module, processes: Processes) -> None:
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and not isinstance(module, nn.SyncBatchNorm):
            raise ValueError(
                f"{name} normalises over a batch, of which each of {processes.size} processes has a part; train on one "
                "process, or take a model with other norms, such as LayerNorm"
            )


def without_meeting(called: nn.Module) -> AbstractContextManager[object]:
    """Context without gradient synchronisation: gradients accumulate locally until the next pass outside of it."""
    return called.no_sync() if isinstance(called, DistributedDataParallel) else contextlib.nullcontext()


@contextlib.contextmanager
def held_whole(called: nn.Module) -> Iterator[None]:
    """Context, entered by all processes together, in which each has all weights of `called` and may call it alone."""
    parts = _shards(called)
    try:
        for part in parts:
            part.set_reshard_after_forward(False, recurse=False)
            part.unshard()
        yield
    finally:
        for part in parts:
            part.set_reshard_after_forward(True, recurse=False)
            part.reshard()


def _shards(called: nn.Module) -> "list[FSDPModule]":
    """The FSDP modules of a sharded model; empty for another."""
    if not any(map(_is_shared, called.parameters())):
        return []
    from torch.distributed.fsdp import FSDPModule

    return [part for part in called.modules() if isinstance(part, FSDPModule)]


def whole(tensor: Tensor) -> Tensor:
    """The full tensor; for a sharded one all processes must call this together."""
    return tensor.full_tensor() if _is_shared(tensor) else tensor


def own_part(tensor: Tensor) -> Tensor:
    """The local part of a tensor, which is all of it unless it is sharded."""
    return tensor.to_local() if _is_shared(tensor) else tensor


def _is_shared(tensor: Tensor) -> "TypeGuard[DTensor]":
    if not dist.is_initialized():
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)
